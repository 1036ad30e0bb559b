"""Chooses the directory of bundles, finds bundles again, and removes old ones."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.directories import FileRefused, make_own_directory, state_directory
from prefect_cachewatch.common.files import open_input, write_file
from prefect_cachewatch.common.mounts import mount_of, parse_mountinfo, read_mounts
from prefect_cachewatch.common.removal import Entry, look_path, remove_path
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.evidence.model import FilesystemFacts

#: In the bundle of a stall that stopped nothing: the report of how the run ended.
END = "end.json"

_NAME = re.compile(r"\d{8}T\d{6}Z-[a-z0-9-]+-[0-9a-f]{6}")
#: Ends the name of a cancelled run's bundle before its digits; no job's name in lower case and single dashes ends so.
CANCELLED = "--cancelled"
_CANCELLED = re.compile(rf"{CANCELLED}-[0-9a-f]{{6}}$")
_CANCELLED_KEPT = 10
_PARTIAL = re.compile(r"\.\d{8}T\d{6}Z-[a-z0-9-]+-[0-9a-f]{6}\.partial")
_LEAST_FREE_BYTES = 64 << 20
_PARTIAL_AGE_S = 3600.0
_REPORT_BYTES = 64 << 20


@dataclass(frozen=True)
class BundleRoot:
    """The directory for bundles; `note` says why it is not the usual one, or has a remark on it.

    A directory that the user chose (`wanted`) may be shared with others; any other must be this user's alone.
    """

    path: Path
    note: str = ""
    wanted: bool = False


def default_bundle_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the default directory of bundles.

    Example:
        >>> str(default_bundle_root({"XDG_STATE_HOME": "/var/state"}))
        '/var/state/cachewatch/bundles'
    """
    return Path(state_directory("bundles", environ))


def choose_bundle_root(
    filesystems: Sequence[FilesystemFacts],
    wanted: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    mountinfo: str | None = None,
) -> BundleRoot:
    """Choose a directory that the cache's fault does not affect, by the mount table alone.

    The default is used if it is on another file system than every cache, or on one that is healthy. If that file system
    is hung, full or read-only, a runtime or temporary directory on another mount is used.

    Args:
        filesystems: the evidence's facts about the cache directories.
        wanted: a directory chosen by the user, taken as it is.
        environ: for the default place.
        mountinfo: text of /proc/self/mountinfo; default this process's.

    Returns:
        The directory and a note.
    """
    if wanted is not None:
        return BundleRoot(wanted, wanted=True)
    mounts = read_mounts() if mountinfo is None else parse_mountinfo(mountinfo)
    usual = default_bundle_root(environ)
    taken = {facts.mount_point for facts in filesystems}
    mount = mount_of(str(usual), mounts)
    if mount is None or mount.mount_point not in taken:
        return BundleRoot(usual)
    if all(_is_well(facts) for facts in filesystems):
        return BundleRoot(usual, "the bundle lies on the same file system as the cache; XDG_STATE_HOME moves it")
    user = os.getuid()
    for base in (environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/dev/shm", "/run"):  # noqa: S108
        mount = mount_of(base, mounts) if base.startswith("/") else None
        if mount and mount.mount_point not in taken and os.access(base, os.W_OK):
            why = "the usual place for bundles lies on the cache's file system, which is in trouble"
            try:
                return _own_place(base, f"cachewatch-{user}", why)
            except OSError:
                continue
    return BundleRoot(usual, "no other file system was found for the bundle than the cache's")


def find_bundles(root: Path) -> list[Path]:
    """List the bundles below a directory, the newest first.

    Example:
        >>> find_bundles(Path("/nowhere"))
        []
    """
    try:
        names = sorted((name for name in os.listdir(root) if _NAME.fullmatch(name)), reverse=True)
    except OSError:
        return []
    return [root / name for name in names if not (root / name).is_symlink()]


def note_end(bundles: Sequence[str], text: str) -> None:
    """Add to the bundles of stalls that stopped nothing how the run ended.

    Args:
        bundles: their directories.
        text: the report of the whole run, as JSON.

    Raises:
        OSError: it cannot be written.
    """
    for bundle in filter(os.path.isdir, bundles):
        write_file(os.path.join(bundle, END), text.encode("ascii") + b"\n")


def load_end(bundle: Path) -> dict[str, Any] | None:
    """Read how the run of a bundle ended; None unless the bundle is of a stall that stopped nothing."""
    try:
        return _load(bundle / END) if (bundle / END).is_file() else None
    except InputError:
        return None


def load_report(bundle: Path) -> dict[str, Any]:
    """Read the report of a bundle.

    Args:
        bundle: its directory, or its report.json.

    Returns:
        The JSON object.

    Raises:
        InputError: it is not a bundle; the sentence says what is wrong.
    """
    path = bundle / "report.json" if bundle.is_dir() else bundle
    report = _load(path)
    if not isinstance(report.get("diagnosis"), dict):
        raise InputError(f"{path} is not a bundle's report: it has no diagnosis in it")
    return report


def _load(path: Path) -> dict[str, Any]:
    try:
        with open_input(path) as file:
            raw = file.read(_REPORT_BYTES + 1)
        if len(raw) > _REPORT_BYTES:
            raise InputError(f"{path} is not a report: it is larger than {_REPORT_BYTES >> 20} MiB")
        report = json.loads(raw)
    except FileNotFoundError:
        raise InputError(
            f"{path.parent} is not a bundle: {path.name} is missing; `cachewatch report --list` shows those there are"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a report: it is no JSON; was it cut short?") from None
    if not isinstance(report, dict):
        raise InputError(f"{path} is not a bundle's report: it has no diagnosis in it")
    return report


def prune_bundles(
    root: Path,
    *,
    keep: int = 50,
    max_age_s: float = 30 * 86400.0,
    spare: Sequence[Path] = (),
    wall_clock: Callable[[], float] = time.time,
) -> list[Path]:
    """Remove old bundles: those beyond the newest `keep`, and those older than `max_age_s`.

    Those of cancelled runs count apart, so that they drive out none that explains a stall: the newest ten are kept.
    Only directories of this user with a bundle's name are touched; no symlink is followed.

    Args:
        root: directory of bundles.
        keep: how many are kept.
        max_age_s: seconds after which a bundle is removed even if there are few.
        spare: bundles that are kept in any case.
        wall_clock: seconds since the epoch.

    Returns:
        The removed bundles.
    """
    removed = []
    now, found = wall_clock(), find_bundles(root)
    few = [path for path in found if _CANCELLED.search(path.name)]
    kept = {*few[:_CANCELLED_KEPT], *[path for path in found if path not in few][:keep]}
    doomed = [path for path in found if path not in kept or _age_s(path, now) > max_age_s]
    try:
        partial = [root / name for name in os.listdir(root) if _PARTIAL.fullmatch(name)]
    except OSError:
        partial = []
    doomed += [path for path in partial if _age_s(path, now) > _PARTIAL_AGE_S]
    for path in doomed:
        own = _own_directory(path)
        if path not in spare and own is not None and not remove_path(path, own).failed:
            removed.append(path)
    return removed


def _own_place(base: str, name: str, why: str) -> BundleRoot:
    """Make our directory in one that all users may write to; under another name if another user has taken it."""
    path = Path(base, name, "bundles")
    try:
        os.close(make_own_directory(path))
    except FileRefused as error:
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base), "bundles")
        return BundleRoot(path, f"{why}; {Path(base, name)} is not used: {error}")
    return BundleRoot(path, why)


def _is_well(facts: FilesystemFacts) -> bool:
    return facts.responded and not facts.read_only and (facts.free_bytes or 0) >= _LEAST_FREE_BYTES


def _age_s(path: Path, now: float) -> float:
    try:
        return now - path.lstat().st_mtime
    except OSError:
        return 0.0


def _own_directory(path: Path) -> Entry | None:
    try:
        entry = look_path(path)
    except OSError:
        return None
    return entry if entry.is_directory and entry.owner == os.getuid() else None
