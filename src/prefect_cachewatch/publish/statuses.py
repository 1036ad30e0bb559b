"""What is known against builds: one small file of the cache, changed under the switch's lock."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.publish.durable import read_record, write_durably
from prefect_cachewatch.publish.layout import CacheFolder

#: From the mildest to the worst.
Status = Literal["rolled_back", "unhealthy", "doubtful", "damaged"]

_RECORD = ".status.json"
_LIMIT_BYTES = 1 << 22
_ORDER = get_args(Status)
_WHY_MAX = 500


@dataclass(frozen=True)
class BuildStatus:
    """The defect of a build, from one small file of the store that is changed under the switch's lock."""

    #: damaged, doubtful, unhealthy or rolled_back.
    status: Status
    #: The reason, in one sentence.
    why: str
    #: When it was found, in ISO 8601, UTC.
    at: str
    #: What was known before it was found damaged, and holds again once every byte is right.
    before: BuildStatus | None = None

    def sentence(self) -> str:
        """Describe it for a list or a message.

        Example:
            >>> BuildStatus("rolled_back", "by hand", "2026-01-31T23:59:59+00:00").sentence()
            'rolled back at 2026-01-31T23:59:59+00:00: by hand'
        """
        return f"{self.status.replace('_', ' ')} at {self.at}: {self.why}"


def merge_status(known: BuildStatus | None, found: BuildStatus) -> BuildStatus:
    """Join a known status with a new one: the worse one stays; of two equal ones, the earlier.

    Example:
        >>> damaged, back = BuildStatus("damaged", "x", "t"), BuildStatus("rolled_back", "y", "u")
        >>> merge_status(damaged, back).status, merge_status(back, damaged).status, merge_status(None, back).status
        ('damaged', 'damaged', 'rolled_back')
        >>> merge_status(damaged, back).before == back
        True
    """
    if known is None:
        return found
    worse = _ORDER.index(found.status) > _ORDER.index(known.status)
    if found.status == "damaged":
        return replace(found, before=known) if worse else known
    if known.status == "damaged":
        # It is not seen while the build is damaged, and must not be lost when that is mended.
        return replace(known, before=merge_status(known.before, found))
    return found if worse else known


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


def mark_build(folder: CacheFolder, build_id: str, status: Status, why: str, now_s: float) -> BuildStatus:
    """Record a build's status; the caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: which build.
        status: the new status.
        why: the reason, in one sentence.
        now_s: wall seconds.

    Returns:
        The resulting status: a worse one that was recorded before stays.

    Raises:
        StoreError: the record cannot be read.
        OSError: it cannot be written.
    """
    known = read_statuses(folder)
    at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    # It is escaped when it is shown. A lone surrogate from a file name must not stop the writing.
    found = merge_status(known.get(build_id), BuildStatus(status, redact(why)[:_WHY_MAX], at))
    if known.get(build_id) != found:
        _write(folder, known | {build_id: found})
    return found


def clear_status(folder: CacheFolder, build_id: str) -> None:
    """Clear a build's status; the caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: a build that was verified again, or chosen by a person.

    Raises:
        StoreError: the record cannot be read.
        OSError: it cannot be written.
    """
    known = read_statuses(folder)
    if known.pop(build_id, None) is not None:
        _write(folder, known)


def drop_damage(folder: CacheFolder, build_id: str) -> None:
    """Clear that a build is damaged; what else is known against it stays. The caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: a build whose every digest agrees with its manifest again.

    Raises:
        StoreError: the record cannot be read.
        OSError: it cannot be written.
    """
    known = read_statuses(folder)
    if (status := known.get(build_id)) is None or status.status != "damaged":
        return
    del known[build_id]
    _write(folder, known | ({build_id: status.before} if status.before else {}))


def _write(folder: CacheFolder, statuses: Mapping[str, BuildStatus]) -> None:
    # Removed builds are dropped here, so that the record does not grow over the years.
    there = set(os.listdir(folder.builds_fd))
    builds = {build: asdict(status) for build, status in sorted(statuses.items()) if build in there}
    body = {"schema_version": 1, "builds": builds}
    write_durably(folder.fd, _RECORD, json.dumps(body, indent=1).encode("ascii") + b"\n")


def _decode_all(body: Any) -> dict[str, BuildStatus]:
    return {str(build): _decode(entry) for build, entry in body["builds"].items()}


def _decode(entry: Mapping[str, Any]) -> BuildStatus:
    if entry["status"] not in _ORDER:
        raise ValueError(entry["status"])
    before = _decode(entry["before"]) if entry.get("before") else None
    return BuildStatus(cast("Status", entry["status"]), str(entry["why"]), str(entry["at"]), before)
