"""The records beside a build: `ID.begun`, its life before and beside the manifest, and `ID.bad`, the reason against it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self, get_args

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.removal import make_stamp
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.measure.growth_mark import MARK_BYTES, read_mark, write_mark
from prefect_cachewatch.store.files import (
    exists,
    holds_change_times,
    open_small_file,
    read_small_file,
    remove_file,
    sync_directory,
    write_durably,
)
from prefect_cachewatch.store.folder import CacheFolder
from prefect_cachewatch.store.locks import boot_id

BEGUN, MANIFEST, BAD = ".begun", ".json", ".bad"
#: A writer shows this often that it lives; after two beats without a sign it is taken for gone with its host.
BEAT_S = 15.0
Status = Literal["refused", "damaged", "unhealthy", "rolled_back"]
_LIMIT_BYTES = 1 << 26
_WHY_MAX = 500
_CLOCKS_DIFFER_NS = 3600 * 10**9
# Before the first mark: nothing is known about when the files were written.
_NO_MARK = b" " * (MARK_BYTES - 1) + b"\n"


@dataclass(frozen=True)
class Begun:
    """What is known of a build beside its manifest. One whose record was cut has no key, and is never resumed."""

    key: str = ""
    host: str = ""
    boot: str = ""
    started_s: float = 0.0
    #: Files that the last run saw open or growing at its end, by path in the build.
    reported: tuple[str, ...] = ()
    #: What clean-ups before attempts removed: path in the build, bytes, and when, on the file system's clock.
    removed: tuple[tuple[str, int, int], ...] = ()
    #: Whether it was current once, and another build was made current since.
    was_current: bool = False
    #: The machine's lasting identifier, empty if it has none.
    machine: str = ""

    @classmethod
    def now(cls, key: str, started_s: float) -> Self:
        """Describe a build that this process begins."""
        return cls(key, socket.gethostname(), boot_id(), started_s, machine=_machine())

    @property
    def is_of_this_host(self) -> bool:
        """Whether its writer's locks are seen from here, or its writer ended with this machine's last boot."""
        rebooted = bool(self.machine) and (self.machine, self.host) == (_machine(), socket.gethostname())
        return self.boot == boot_id() or rebooted

    def by(self, other: Begun) -> Begun:
        """The same build, continued by another writer."""
        return replace(self, host=other.host, boot=other.boot, machine=other.machine)


def _machine() -> str:
    try:
        with open("/etc/machine-id") as file:
            return file.read(100).strip()
    except OSError:
        return ""


def read_begun(folder: CacheFolder, build_id: str) -> Begun | None:
    """Read a build's record; None if no run of this store began such a build."""
    try:
        body = _parse(read_small_file(folder.builds_fd, build_id + BEGUN, _LIMIT_BYTES)[MARK_BYTES:])
        datetime.fromtimestamp(body["started_s"], UTC)  # a time that a clock shows
        body["removed"] = tuple((str(path), int(size), int(at_ns)) for path, size, at_ns in body["removed"])
        body["reported"] = tuple(map(str, body["reported"]))
        return Begun(**body | {name: str(body[name]) for name in ("key", "host", "boot", "machine")})
    except FileNotFoundError:
        return None
    except (OSError, StoreError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return Begun()


def _parse(data: bytes) -> Any:
    # What follows is the rest of a longer record, whose writer was killed before it cut the file.
    return json.JSONDecoder().raw_decode(data.decode("ascii"))[0]


def write_begun(folder: CacheFolder, build_id: str, begun: Begun) -> None:
    """Write a build's record; raises OSError.

    A new one appears in one step: one that is cut does not tell whose it is. Then it is written in its place, since the scan
    process has it open; cut by a power failure it is no JSON, and the build is begun anew.
    """
    data, name = json.dumps(asdict(begun)).encode("ascii") + b"\n", build_id + BEGUN
    if not exists(folder.builds_fd, name):
        write_durably(folder.builds_fd, name, _NO_MARK + data)
        return
    with Opened(os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.builds_fd)) as fd:
        done = 0
        while done < len(data):  # a disk that fills up takes a part first, and refuses the rest
            done += os.pwrite(fd, data[done:], MARK_BYTES + done)
        os.ftruncate(fd, MARK_BYTES + done)
        os.fsync(fd)


def note_reported(path: str, paths: Sequence[str]) -> None:
    """Note in a record, by its path, the files that a run saw open or growing at its end; raises OSError, and may hang."""
    with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b") as file:
        file.seek(MARK_BYTES)
        body = _parse(file.read(_LIMIT_BYTES)) | {"reported": list(paths)}
        file.seek(MARK_BYTES)
        file.write(json.dumps(body).encode("ascii") + b"\n")
        file.truncate()


def release_build(folder: CacheFolder, build_id: str) -> None:
    """Note that a build stops being current; its record's change time tells since when. Raises OSError."""
    mark = _NO_MARK
    with contextlib.suppress(FileNotFoundError, StoreError):
        mark = read_small_file(folder.builds_fd, build_id + BEGUN, _LIMIT_BYTES)[:MARK_BYTES].ljust(MARK_BYTES)
    begun = replace(read_begun(folder, build_id) or Begun(), was_current=True)
    # By a rename: another user of a shared volume may switch too.
    write_durably(folder.builds_fd, build_id + BEGUN, mark + json.dumps(asdict(begun)).encode("ascii") + b"\n")


def note_growth(folder: CacheFolder, build_id: str) -> None:
    """Record this moment of the file system's clock as the last growth; raises OSError."""
    with Opened(os.open(build_id + BEGUN, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.builds_fd)) as fd:
        write_mark(fd, folder.build_path(build_id), make_stamp(folder.builds_fd).changed_ns)
        os.fsync(fd)


def read_growth(folder: CacheFolder, build_id: str, build_fd: int) -> int | str:
    """Return the moment after which an earlier attempt's last growth came, or why it is unknown.

    Raises:
        OSError: the file system refuses the look; then nothing is known of the files either, and none may be removed.
        StoreError: there is no regular file in the record's place.
    """
    if not holds_change_times(folder.builds_fd):
        return "on its file system any program may set a file's change time"
    try:
        data = read_small_file(folder.builds_fd, build_id + BEGUN, _LIMIT_BYTES)[:MARK_BYTES]
    except FileNotFoundError:
        return f"{build_id}{BEGUN} is gone"
    return read_mark(data, build_fd, make_stamp(folder.builds_fd).changed_ns)


def read_beat(directory_fd: int, name: str) -> int:
    """Return when a writer last touched a record or a lock file, on the file system's clock.

    It is 0 if the writer has ended or there is no such file, and -1 if that cannot be read.
    """
    try:
        # Opened, so that NFS asks its server.
        with Opened(open_small_file(directory_fd, name, _LIMIT_BYTES)) as fd:
            return os.fstat(fd).st_mtime_ns
    except (FileNotFoundError, StoreError):
        return 0
    except OSError:
        return -1


def is_fresh(folder: CacheFolder, beat_ns: int) -> bool:
    """Say whether a sign of life is less than two beats old, on the file server's clock.

    Where no file can be made, as on a full disk, it is this host's clock, less than an hour. A sign that cannot be read is
    fresh: two writers at once would be worse.
    """
    try:
        now_ns = make_stamp(folder.builds_fd).changed_ns
    except OSError:
        now_ns = time.time_ns() - _CLOCKS_DIFFER_NS
    return beat_ns < 0 or 0 <= now_ns - beat_ns < 2 * BEAT_S * 1e9


def end_beat(folder: CacheFolder, build_id: str) -> None:
    """Show writers on other hosts that this one has ended."""
    with contextlib.suppress(OSError):
        os.utime(build_id + BEGUN, (0, 0), dir_fd=folder.builds_fd, follow_symlinks=False)


@dataclass(frozen=True)
class Bad:
    """Why a build is not used: the first reason that was found. It stays until the build is activated by its id."""

    status: Status
    #: The reason, in one sentence.
    why: str
    #: When it was found, in ISO 8601, UTC.
    at: str

    def sentence(self) -> str:
        """Describe it for a list or a message.

        Example:
            >>> Bad("rolled_back", "by hand", "2026-01-31T23:59:59+00:00").sentence()
            'rolled back at 2026-01-31T23:59:59+00:00: by hand'
        """
        return f"{self.status.replace('_', ' ')} at {self.at}: {self.why}"


def read_bad(folder: CacheFolder, build_id: str) -> Bad | None:
    """Read what is known against a build. A record that was cut counts: a bad build must not pass for a good one."""
    name = build_id + BAD
    try:
        body = json.loads(read_small_file(folder.builds_fd, name, _LIMIT_BYTES))
        if body["status"] not in get_args(Status):
            raise ValueError(body["status"])
        return Bad(body["status"], str(body["why"]), str(body["at"]))
    except FileNotFoundError:
        return None
    except (OSError, StoreError, ValueError, LookupError, TypeError, RecursionError):
        return Bad("damaged", f"{name} was cut short or edited, and nothing else is known", "an unknown time")


def write_bad(folder: CacheFolder, build_id: str, status: Status, why: str, **more: Any) -> None:
    """Record why a build is not used, unless a reason is known already; the caller holds the switch's lock.

    Args:
        folder: the open cache.
        build_id: which build.
        status: what kind of reason.
        why: the reason, in one sentence.
        more: details for people and programs.

    Raises:
        OSError: it cannot be written.
    """
    if read_bad(folder, build_id) is None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        # It is escaped when it is shown. A lone surrogate from a file name must not stop the writing.
        body = {"status": status, "why": redact(why)[:_WHY_MAX], "at": at, **more}
        write_durably(folder.builds_fd, build_id + BAD, json.dumps(body, indent=1).encode("ascii") + b"\n")


def clear_bad(folder: CacheFolder, build_id: str) -> None:
    """Take back what is known against a build; the caller holds the switch's lock. Raises OSError."""
    remove_file(folder.builds_fd, build_id + BAD)
    sync_directory(folder.builds_fd)
