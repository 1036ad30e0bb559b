"""Chooses the directory of bundles, finds bundles again, and removes old ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.directories import state_directory
from prefect_cachewatch.common.files import open_input, write_file
from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.common.removal import look_path, remove_path
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.evidence.model import FilesystemFacts

#: In the bundle of a stall that stopped nothing: the report of how the run ended.
END = "end.json"

_NAME = re.compile(r"\d{8}T\d{6}Z-[a-z0-9-]+-[0-9a-f]{6}")
#: Ends the name of a cancelled run's bundle before its digits; no job's name in lower case and single dashes ends so.
CANCELLED = "--cancelled"
_CANCELLED = re.compile(rf"{CANCELLED}-[0-9a-f]{{6}}$")
_KEPT, _CANCELLED_KEPT = 50, 10
_MAX_AGE_S = 30 * 86400.0
_PARTIAL = re.compile(r"\.\d{8}T\d{6}Z-[a-z0-9-]+-[0-9a-f]{6}\.partial")
_LEAST_FREE_BYTES = 64 << 20
_PARTIAL_AGE_S = 3600.0
_REPORT_BYTES = 64 << 20


@dataclass(frozen=True)
class BundleRoot:
    """The directory for bundles; `note` says why it is not the usual one, or has a remark on it."""

    path: Path
    note: str = ""


def default_bundle_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the default directory of bundles.

    Example:
        >>> str(default_bundle_root({"XDG_STATE_HOME": "/var/state"}))
        '/var/state/cachewatch/bundles'
    """
    return Path(state_directory("bundles", environ))


def choose_bundle_root(
    filesystems: Sequence[FilesystemFacts], wanted: Path | None = None, environ: Mapping[str, str] = os.environ
) -> BundleRoot:
    """Choose a directory that the cache's fault does not affect, by the mount table alone.

    That is the default, unless it lies on a cache's file system that hangs, is full or read-only: then it is a new one in
    the runtime or temporary directory.

    Args:
        filesystems: the evidence's facts about the cache directories.
        wanted: a directory chosen by the user, taken as it is.
        environ: for the default place.

    Returns:
        The directory and a note.
    """
    usual, mounts = wanted or default_bundle_root(environ), read_mounts()
    sick = {facts.mount_point for facts in filesystems if not _is_well(facts)}

    def is_sick(path: str) -> bool:
        mount = mount_of(path, mounts)
        return mount is None or mount.mount_point in sick

    if wanted is not None or not is_sick(str(usual)):
        return BundleRoot(usual)
    why = "the usual place for bundles lies on the cache's file system, which is in trouble"
    for base in (environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/dev/shm"):  # noqa: S108
        if base.startswith("/") and not is_sick(base):
            with contextlib.suppress(OSError):
                return BundleRoot(Path(tempfile.mkdtemp(prefix=f"cachewatch-{os.getuid()}-", dir=base)), why)
    return BundleRoot(usual, f"{why}; no other was found")


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
        report = json.loads(raw) if len(raw) <= _REPORT_BYTES else None
    except FileNotFoundError:
        raise InputError(
            f"{path.parent} is not a bundle: {path.name} is missing; `cachewatch report --list` shows those there are"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a report: it is no JSON; was it cut short?") from None
    if not isinstance(report, dict):
        raise InputError(
            f"{path} is not a bundle's report: it has no diagnosis in it, or is larger than {_REPORT_BYTES >> 20} MiB"
        )
    return report


def prune_bundles(root: Path, *, spare: Sequence[Path] = ()) -> None:
    """Remove old bundles: those beyond the newest fifty, and those of more than thirty days.

    Those of cancelled runs count apart, so that they drive out none that explains a stall: the newest ten are kept.
    Only directories of this user with a bundle's name are touched; no symlink is followed.

    Args:
        root: directory of bundles.
        spare: bundles that are kept in any case.
    """
    found = find_bundles(root)
    few = [path for path in found if _CANCELLED.search(path.name)]
    kept = {*few[:_CANCELLED_KEPT], *[path for path in found if path not in few][:_KEPT]}
    doomed = [path for path in found if path not in spare and (path not in kept or _age_s(path) > _MAX_AGE_S)]
    with contextlib.suppress(OSError):
        partial = [root / name for name in os.listdir(root) if _PARTIAL.fullmatch(name)]
        doomed += [path for path in partial if _age_s(path) > _PARTIAL_AGE_S]
    for path in doomed:
        with contextlib.suppress(OSError):
            entry = look_path(path)
            if entry.is_directory and entry.owner == os.getuid():
                remove_path(path, entry)


def _is_well(facts: FilesystemFacts) -> bool:
    return facts.responded and not facts.read_only and (facts.free_bytes or 0) >= _LEAST_FREE_BYTES


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0
