"""What is known against a build: that it is damaged, was unhealthy, or was rolled back from; with when and why.

One small file of the store, changed under the switch's lock. A build of which nothing is said here is in order as
far as anybody knows; who looks, and what follows from it, is the matter of the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from prefect_cachewatch.common.text import redact
from prefect_cachewatch.publish.durable import read_record, write_durably
from prefect_cachewatch.publish.layout import CacheFolder

__all__ = ["BuildStatus", "Status", "clear_status", "mark_build", "merge_status", "read_statuses"]

#: From the least to the worst.
Status = Literal["rolled_back", "unhealthy", "damaged"]

_RECORD = ".status.json"
_LIMIT_BYTES = 1 << 22
_ORDER = get_args(Status)
_WHY_MAX = 500


@dataclass(frozen=True)
class BuildStatus:
    """What is known against a build."""

    #: damaged, unhealthy or rolled_back.
    status: Status
    #: In one sentence.
    why: str
    #: When it was found, ISO 8601 in UTC.
    at: str

    def sentence(self) -> str:
        """Say it for a list or a message.

        Example:
            >>> BuildStatus("rolled_back", "by hand", "2026-01-31T23:59:59+00:00").sentence()
            'rolled back at 2026-01-31T23:59:59+00:00: by hand'
        """
        return f"{self.status.replace('_', ' ')} at {self.at}: {self.why}"


def merge_status(known: BuildStatus | None, found: BuildStatus) -> BuildStatus:
    """Join what was known with what was found: the worse one stays, and of two alike the earlier.

    Example:
        >>> damaged, back = BuildStatus("damaged", "x", "t"), BuildStatus("rolled_back", "y", "u")
        >>> merge_status(damaged, back).status, merge_status(back, damaged).status, merge_status(None, back).status
        ('damaged', 'damaged', 'rolled_back')
    """
    return found if known is None or _ORDER.index(found.status) > _ORDER.index(known.status) else known


def read_statuses(folder: CacheFolder) -> dict[str, BuildStatus]:
    """Read what is known against the builds of a cache.

    Args:
        folder: the open cache.

    Returns:
        By build id; builds in order are not in it.

    Raises:
        StoreError: if the file was cut or edited: a damaged build must not pass for a good one by that.
    """
    lost = "(what was known against builds is lost then), and verify the builds with cachewatch store verify"
    return read_record(folder.fd, _RECORD, _LIMIT_BYTES, _decode_all, path=folder.path, lost=lost) or {}


def mark_build(folder: CacheFolder, build_id: str, status: Status, why: str, now_s: float) -> BuildStatus:
    """Note what was found against a build; the caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: which build.
        status: what was found.
        why: in one sentence.
        now_s: wall seconds.

    Returns:
        What is known now: a worse status that was noted before stays.

    Raises:
        StoreError: if the record cannot be read.
        OSError: if it cannot be written.
    """
    known = read_statuses(folder)
    at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    # Escaped when it is shown; a lone surrogate of a file's name must not stop the writing.
    found = merge_status(known.get(build_id), BuildStatus(status, redact(why)[:_WHY_MAX], at))
    if known.get(build_id) != found:
        _write(folder, known | {build_id: found})
    return found


def clear_status(folder: CacheFolder, build_id: str) -> None:
    """Forget what was known against a build; the caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: a build that was verified again, or chosen by a person.

    Raises:
        StoreError: if the record cannot be read.
        OSError: if it cannot be written.
    """
    known = read_statuses(folder)
    if known.pop(build_id, None) is not None:
        _write(folder, known)


def _write(folder: CacheFolder, statuses: Mapping[str, BuildStatus]) -> None:
    # Builds that clean-up has removed are forgotten here, so that the record does not grow with the years.
    there = set(os.listdir(folder.builds_fd))
    builds = {build: asdict(status) for build, status in sorted(statuses.items()) if build in there}
    body = {"schema_version": 1, "builds": builds}
    write_durably(folder.fd, _RECORD, json.dumps(body, indent=1).encode("ascii") + b"\n")


def _decode_all(body: Any) -> dict[str, BuildStatus]:
    return {str(build): _decode(entry) for build, entry in body["builds"].items()}


def _decode(entry: Mapping[str, Any]) -> BuildStatus:
    if entry["status"] not in _ORDER:
        raise ValueError(entry["status"])
    return BuildStatus(cast("Status", entry["status"]), str(entry["why"]), str(entry["at"]))
