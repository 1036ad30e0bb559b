"""The records beside a build: `ID.begun`, its life before and beside the manifest; `ID.json`, the manifest; `ID.bad`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self, get_args

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.removal import make_stamp
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.measure.growth_mark import MARK_BYTES, read_mark, write_mark
from prefect_cachewatch.store.layout import (
    BAD,
    BEGUN,
    MANIFEST,
    CacheFolder,
    holds_change_times,
    open_small_file,
    read_small_file,
    write_durably,
)
from prefect_cachewatch.store.locks import boot_id

#: A writer shows this often that it lives; after two beats without a sign it is taken for gone with its host.
BEAT_S = 15.0
# Cryptographic, in every toolbox (sha256sum -c), and the fastest such digest in hashlib on processors with SHA instructions.
DIGEST_ALGORITHM = "sha256"
SCHEMA_VERSION = 1
Status = Literal["refused", "damaged", "unhealthy", "rolled_back"]
_LIMIT_BYTES = 1 << 26
# 100,000 files with long names take some 30 MB.
_MANIFEST_MAX_BYTES = 1 << 30
_WHY_MAX = 500
_CLOCKS_DIFFER_NS = 3600 * 10**9
# Before the first mark: nothing is known about when the files were written.
_NO_MARK = b" " * (MARK_BYTES - 1) + b"\n"
_HEX = frozenset("0123456789abcdef")
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)


# -- begun


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
    #: When it stopped being current, on the file system's clock; 0 if it never was.
    left_ns: int = 0

    @classmethod
    def now(cls, key: str, started_s: float) -> Self:
        """Describe a build that this process begins."""
        return cls(key, socket.gethostname(), boot_id(), started_s)


def read_begun(folder: CacheFolder, build_id: str) -> Begun | None:
    """Read a build's record; None if no run of this store began such a build."""
    try:
        body = _parse(read_small_file(folder.builds_fd, build_id + BEGUN, _LIMIT_BYTES)[MARK_BYTES:])
        datetime.fromtimestamp(body["started_s"], UTC)  # a time that a clock shows
        body["removed"] = tuple((str(path), int(size), int(at_ns)) for path, size, at_ns in body["removed"])
        body["reported"] = tuple(map(str, body["reported"]))
        texts = {name: str(body[name]) for name in ("key", "host", "boot")}
        return Begun(**body | texts | {"left_ns": int(body["left_ns"])})
    except FileNotFoundError:
        return None
    except (OSError, StoreError, *_NONSENSE):
        return Begun()


def _parse(data: bytes) -> Any:
    # What follows is the rest of a longer record, whose writer was killed before it cut the file.
    return json.JSONDecoder().raw_decode(data.decode("ascii"))[0]


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode("ascii") + b"\n"


def write_begun(folder: CacheFolder, build_id: str, begun: Begun) -> None:
    """Write a new record in one step: one that is cut does not tell whose it is. Raises OSError."""
    write_durably(folder.builds_fd, build_id + BEGUN, _NO_MARK + _encode(asdict(begun)))


def change_begun(path: str, directory_fd: int | None, changes: Mapping[str, Any]) -> None:
    """Change a record in its place, since the scan process has it open; raises OSError, and may hang.

    Cut by a power failure it is no JSON, and the build is begun anew.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    with open(fd, "r+b") as file:
        file.seek(MARK_BYTES)
        found: Any = None
        with contextlib.suppress(ValueError):
            found = _parse(file.read(_LIMIT_BYTES))
        data = _encode({**(found if isinstance(found, dict) else {}), **changes})
        os.posix_fallocate(fd, MARK_BYTES, len(data))  # on a full disk the old record stays whole
        file.seek(MARK_BYTES)
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(fd)


def leave_current(folder: CacheFolder, build_id: str) -> None:
    """Note that a build stops being current, and when; raises OSError.

    By a rename: another user of a shared volume may switch too.
    """
    mark = _NO_MARK
    with contextlib.suppress(FileNotFoundError, StoreError):
        mark = read_small_file(folder.builds_fd, build_id + BEGUN, _LIMIT_BYTES)[:MARK_BYTES].ljust(MARK_BYTES)
    begun = replace(read_begun(folder, build_id) or Begun(), left_ns=make_stamp(folder.builds_fd).changed_ns)
    write_durably(folder.builds_fd, build_id + BEGUN, mark + _encode(asdict(begun)))


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
    if beat_ns < 0:
        return True
    try:
        return 0 <= make_stamp(folder.builds_fd).changed_ns - beat_ns < 2 * BEAT_S * 1e9
    except OSError:
        return beat_ns > time.time_ns() - _CLOCKS_DIFFER_NS


def end_beat(folder: CacheFolder, build_id: str) -> None:
    """Show writers on other hosts that this one has ended."""
    with contextlib.suppress(OSError):
        os.utime(build_id + BEGUN, (0, 0), dir_fd=folder.builds_fd, follow_symlinks=False)


# -- bad


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
    except (OSError, StoreError, *_NONSENSE):
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


# -- manifest


@dataclass(frozen=True)
class FileEntry:
    """A regular file of the build: path relative to it, size, and the digest of its contents."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class LinkEntry:
    """A symbolic link of the build, which leads to something inside it."""

    path: str
    target: str


@dataclass(frozen=True)
class Manifest:
    """A whole build: its origin, its inputs, and every file of it."""

    name: str
    build_id: str
    key: str
    cache_key: Mapping[str, str]
    argv: tuple[str, ...]
    tool_versions: Mapping[str, str]
    host: Mapping[str, str]
    started_at: str
    finished_at: str
    files: tuple[FileEntry, ...]
    links: tuple[LinkEntry, ...] = ()
    growth: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    digest_algorithm: str = DIGEST_ALGORITHM
    ignore: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry.size_bytes for entry in self.files)

    @property
    def total_files(self) -> int:
        """How many files there are."""
        return len(self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as JSON, with a digest of itself, so that it shows when it was cut or edited.

    Example:
        >>> m = Manifest("c", "b", "k", {}, (), {}, {}, "", "", (FileEntry("a", 1, "0" * 64),))
        >>> decode_manifest(encode_manifest(m), "m.json") == m
        True
    """
    body = {"kind": "cachewatch-manifest", "schema_version": SCHEMA_VERSION, **asdict(manifest)}
    body["totals"] = {"bytes": manifest.total_bytes, "files": manifest.total_files}
    # Indented, so that a manifest of 100,000 files is readable with less, grep and diff.
    return json.dumps({**body, "manifest_digest": _self_digest(body)}, indent=1).encode("ascii") + b"\n"


def _self_digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest and refuse one that was cut short or changed since it was written.

    Args:
        data: contents of the file.
        where: its path, for the message.

    Raises:
        BuildDamaged: it is not JSON, of another version, its own digest does not fit, or an entry makes no sense.
    """
    why = "was cut short, or changed after it was written: the build cannot be trusted; generate it again"
    try:
        body = json.loads(data)
        if body.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            version = for_terminal(str(body["schema_version"]), 20)
            why = f"has schema_version {version}, and this cachewatch reads {SCHEMA_VERSION}: use the version that wrote it"
        elif body.pop("manifest_digest") == _self_digest(body):
            why = "has an entry that makes no sense: the build cannot be trusted"
            return _from_body(body)
    except _NONSENSE:
        pass
    raise BuildDamaged(f"the manifest {for_terminal(where, 1000)} {why}", path=where)


def _from_body(body: dict[str, Any]) -> Manifest:
    lists: dict[str, Any] = {name: tuple(body[name]) for name in ("argv", "warnings", "ignore")}
    lists["files"] = tuple(FileEntry(str(e["path"]), int(e["size_bytes"]), str(e["digest"])) for e in body["files"])
    lists["links"] = tuple(LinkEntry(str(e["path"]), str(e["target"])) for e in body["links"])
    manifest = Manifest(**{one.name: body[one.name] for one in fields(Manifest)} | lists)
    for path in [*(entry.path for entry in manifest.files), *(entry.path for entry in manifest.links)]:
        if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise ValueError(path)
    if manifest.digest_algorithm != DIGEST_ALGORITHM or not all(
        len(entry.digest) == 64 and _HEX.issuperset(entry.digest) for entry in manifest.files
    ):
        raise ValueError(manifest.digest_algorithm)
    return manifest


def read_manifest(folder: CacheFolder, build_id: str) -> Manifest:
    """Read a build's manifest and refuse one that was copied from another build.

    Raises:
        BuildDamaged: there is none, it was cut or edited, or it belongs to another build.
        StoreError: there is a link in its place, or it cannot be read.
    """
    where = folder.build_path(build_id) + MANIFEST
    shown = for_terminal(where, 1000)
    try:
        data = read_small_file(folder.builds_fd, build_id + MANIFEST, _MANIFEST_MAX_BYTES)
    except FileNotFoundError:
        raise BuildDamaged(f"there is no manifest {shown}: the build was never finished", path=where) from None
    except OSError as error:
        raise StoreError(f"cannot read {shown}: {os.strerror(error.errno or 0)}", path=where) from None
    manifest = decode_manifest(data, where)
    if (manifest.name, manifest.build_id) != (folder.name, build_id):
        told = f"the manifest {shown} is that of '{for_terminal(manifest.name)}' {for_terminal(manifest.build_id)}"
        raise BuildDamaged(f"{told}: the build cannot be trusted", path=folder.build_path(build_id))
    return manifest
