"""What is known against builds: one small file of the cache, changed under the switch's lock."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.publish.durable import read_record, write_durably
from prefect_cachewatch.publish.layout import CacheFolder

Status = Literal["damaged", "unhealthy", "rolled_back"]

_RECORD = ".status.json"
_LIMIT_BYTES = 1 << 22
_WHY_MAX = 500


@dataclass(frozen=True)
class BuildStatus:
    """Why a build is not used: the first reason that was found. It stays until the build is activated by its id."""

    #: damaged, unhealthy or rolled_back.
    status: Status
    #: The reason, in one sentence.
    why: str
    #: When it was found, in ISO 8601, UTC.
    at: str

    def sentence(self) -> str:
        """Describe it for a list or a message.

        Example:
            >>> BuildStatus("rolled_back", "by hand", "2026-01-31T23:59:59+00:00").sentence()
            'rolled back at 2026-01-31T23:59:59+00:00: by hand'
        """
        return f"{self.status.replace('_', ' ')} at {self.at}: {self.why}"


def read_statuses(folder: CacheFolder) -> dict[str, BuildStatus]:
    """Read the statuses of a cache's builds.

    Args:
        folder: the open cache.

    Returns:
        Statuses by build id; builds in order have none.

    Raises:
        StoreError: the file was cut or edited; a damaged build must not pass for a good one because of that.
    """
    lost = "(what was known against builds is lost then), and verify the builds with cachewatch store verify"
    return read_record(folder.fd, _RECORD, _LIMIT_BYTES, _decode_all, path=folder.path, lost=lost) or {}


def mark_build(folder: CacheFolder, build_id: str, status: Status, why: str, now_s: float) -> None:
    """Record why a build is not used, unless a reason is known already; the caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: which build.
        status: the new status.
        why: the reason, in one sentence.
        now_s: wall seconds.

    Raises:
        StoreError: the record cannot be read.
        OSError: it cannot be written.
    """
    known = read_statuses(folder)
    if build_id not in known:
        at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
        # It is escaped when it is shown. A lone surrogate from a file name must not stop the writing.
        _write(folder, known | {build_id: BuildStatus(status, redact(why)[:_WHY_MAX], at)})


def clear_status(folder: CacheFolder, build_id: str) -> None:
    """Clear a build's status; the caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: a build that a person has chosen, and that was verified again.

    Raises:
        StoreError: the record cannot be read.
        OSError: it cannot be written.
    """
    known = read_statuses(folder)
    if known.pop(build_id, None) is not None:
        _write(folder, known)


def _write(folder: CacheFolder, statuses: Mapping[str, BuildStatus]) -> None:
    # Removed builds are dropped here, so that the record does not grow over the years.
    there = set(os.listdir(folder.builds_fd))
    builds = {build: asdict(status) for build, status in sorted(statuses.items()) if build in there}
    body = {"schema_version": 1, "builds": builds}
    write_durably(folder.fd, _RECORD, json.dumps(body, indent=1).encode("ascii") + b"\n")


def _decode_all(body: Any) -> dict[str, BuildStatus]:
    return {str(build): _decode(entry) for build, entry in body["builds"].items()}


def _decode(entry: Mapping[str, Any]) -> BuildStatus:
    if entry["status"] not in get_args(Status):
        raise ValueError(entry["status"])
    return BuildStatus(cast("Status", entry["status"]), str(entry["why"]), str(entry["at"]))
