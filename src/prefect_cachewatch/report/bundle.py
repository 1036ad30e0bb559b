"""The bundle: everything known about one attempt that stalled, failed or was cancelled, in a private directory.

It is written after the tree is gone, so that it delays no stop. It is bounded in size and says what was cut; the caller writes
it in a process of its own, which is left behind if a file system stops answering. Bundles are found again here, and old ones go.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY, make_own_directory, state_directory
from prefect_cachewatch.common.files import create_file, is_special, open_input, write_file
from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.common.removal import list_entries, look_path, remove_path, walk
from prefect_cachewatch.common.secrets import redact, redact_all, whole_lines
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.engine.events import Event, Gone, Progress, Started, to_line
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.evidence.model import Evidence, FilesystemFacts
from prefect_cachewatch.report.html import write_page
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.report.sections import make_verdict, sections

BUNDLE_FILES = ("generator.log.gz", "growth.jsonl", "listing.jsonl.gz", "report.html", "report.json")
#: In the bundle of a stall that stopped nothing: the report of how the run ended.
END = "end.json"
_SECRETS_NOTE = "command lines and the log are redacted; no environment is ever stored"
_LOG_BYTES, _LOG_LINES, _LOG_S = 4 << 20, 200, 0.7
_LISTING_BYTES, _LISTING_S = 64 << 20, 8.0
_REPORT_BYTES = 64 << 20
_LEAST_FREE_BYTES = 64 << 20
_NAME = re.compile(r"\d{8}T\d{6}Z-[a-z0-9-]+-[0-9a-f]{6}")
_PARTIAL = re.compile(rf"\.{_NAME.pattern}\.partial")
# Ends the name of a cancelled run's bundle before its digits; no job's name in lower case and single dashes ends so.
_CANCELLED = "--cancelled"
_KEPT, _CANCELLED_KEPT, _MAX_AGE_S, _PARTIAL_AGE_S = 50, 10, 30 * 86400.0, 3600.0

_File = tuple[str, int, int, float]


@dataclass(frozen=True)
class BundleContent:
    """What goes into a bundle, with secrets; of the log the file, the end of what was printed, and whether that is cut."""

    report: Report
    evidence: Evidence
    cause: Cause
    #: Watched by the attempt, by their names on disk.
    dirs: Sequence[str] = ()
    log_path: Path | None = None
    log_tail: bytes = b""
    log_cut: bool = False
    secrets: tuple[str, ...] = ()


def write_bundle(content: BundleContent, wanted: Path | None = None) -> tuple[str | None, list[str]]:
    """Write a bundle, whole or not at all, and remove old ones.

    Args:
        content: what to write.
        wanted: the directory of bundles that the user chose, made if missing; others may write into it.

    Returns:
        Its path, None if it could not be written, and remarks: why, where it lies, what was cut.
    """
    report, work = content.report, Path()
    root, note = (wanted, "") if wanted is not None else choose_bundle_root(content.evidence.filesystems)
    job = slugify(report.name, most=40) + (_CANCELLED if report.outcome == "cancelled" else "")
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{job}-{os.urandom(3).hex()}"
    try:
        if wanted is not None:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            os.close(make_own_directory(root))
        work, final = root / f".{name}.partial", root / name
        work.mkdir(mode=0o700)
        cut = _fill(work, final, content)
        work.rename(final)
        with contextlib.suppress(OSError):
            _prune(root, final)
    except Exception as error:  # noqa: BLE001 - a report is there even if its bundle cannot be written or its page drawn
        if work.name:
            remove_path(work)  # on a full disk it would use up the space that is left
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return None, [f"no bundle was written in {root}: {why}"]
    return str(final), [*filter(None, [note]), *cut]


def default_bundle_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the default directory of bundles.

    Example:
        >>> str(default_bundle_root({"XDG_STATE_HOME": "/var/state"}))
        '/var/state/cachewatch/bundles'
    """
    return Path(state_directory("bundles", environ))


def choose_bundle_root(
    filesystems: Sequence[FilesystemFacts], environ: Mapping[str, str] = os.environ
) -> tuple[Path, str]:
    """Choose a directory that the cache's fault does not affect, by the mount table alone.

    That is the default, unless it lies on a cache's file system that hangs, is full or read-only: then it is a new one in
    the runtime or temporary directory.

    Args:
        filesystems: the evidence's facts about the cache directories.
        environ: for the default place.

    Returns:
        The directory, and a note if it is not the usual one.
    """
    usual, mounts = default_bundle_root(environ), read_mounts()
    well = (one.responded and not one.read_only and (one.free_bytes or 0) >= _LEAST_FREE_BYTES for one in filesystems)
    sick = {facts.mount_point for facts, is_well in zip(filesystems, well, strict=True) if not is_well}
    why = "the usual place for bundles lies on the cache's file system, which is in trouble"
    for base in (str(usual), environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/dev/shm"):  # noqa: S108
        mount = mount_of(base, mounts) if base.startswith("/") else None
        if mount is not None and mount.mount_point not in sick:
            if base == str(usual):
                return usual, ""
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=f"cachewatch-{os.getuid()}-", dir=base)), why
    return usual, f"{why}; no other was found"


def _fill(work: Path, final: Path, content: BundleContent) -> list[str]:
    """Write each file of a bundle; returns what was cut."""
    cut: list[str] = []
    evidence, cause = redact_all(content.evidence, content.secrets), redact_all(content.cause, content.secrets)
    report = replace(content.report, diagnosis=cause, bundle=str(final))
    log = _redacted_log(content, cut)
    _put(work / "generator.log.gz", gzip.compress(log.encode("utf-8", "surrogateescape"), 6))
    _put(work / "growth.jsonl", _growth_events(report).encode())
    cut += _list_files(work / "listing.jsonl.gz", content)
    facts = asdict(replace(evidence, log_tail="", log_kept=""))
    data = {**asdict(report), "cut": cut, "missing": facts.pop("missing"), "evidence": facts}
    _put(work / "report.json", (json.dumps(data, indent=1, ensure_ascii=True) + "\n").encode())
    footer = f"cachewatch {report.cachewatch_version} · collected {evidence.collected_at} in {evidence.took_s:.2f} s · "
    told = sections(report, evidence, log=log.splitlines(), cut=cut)
    page = write_page(make_verdict(report), told, footer + _SECRETS_NOTE)
    _put(work / "report.html", page.encode("utf-8", "backslashreplace"))
    return cut


def _put(path: Path, data: bytes) -> None:
    with open(create_file(path), "wb") as file:
        file.write(data)


def _list_files(path: Path, content: BundleContent) -> list[str]:
    """Write the complete listing, then how many files there are; returns what was cut."""
    files, cut = _walked(content.dirs), ""
    if content.report.outcome == "cancelled":  # whoever cancelled it may kill us soon
        files, cut = _listed(content.report), "to the files of the report"
    if hung := [facts.path for facts in content.evidence.filesystems if not facts.responded]:
        files, cut = iter(()), f"since {for_terminal(hung[0])} does not answer"
    count, total, end_s = 0, 0, time.monotonic() + _LISTING_S
    with open(create_file(path), "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
        for name, size, allocated, modified_s in files:
            if time.monotonic() > end_s or raw.tell() > _LISTING_BYTES:
                cut = f"after {_LISTING_S:g} s or {_LISTING_BYTES >> 20} MiB"
                break
            count, total = count + 1, total + size
            shown, modified_at = redact(name, content.secrets), round(modified_s, 3)
            facts = {"path": shown, "size_bytes": size, "allocated_bytes": allocated, "modified_at": modified_at}
            file.write(json.dumps(facts).encode() + b"\n")
        end = {"end": True, "files": count, "bytes": total, "cut": cut or None}
        file.write(json.dumps(end).encode() + b"\n")
    return [f"listing.jsonl.gz holds {count:,} files: cut {cut}"] if cut else []


def _walked(dirs: Iterable[str]) -> Iterator[_File]:
    """Walk directories by descriptors: no link is followed, no other mount entered."""
    for root in dirs:
        with contextlib.suppress(OSError), Opened(os.open(root, OPEN_DIRECTORY)) as top:
            for fd, path, _ in walk(top):
                for name, entry in list_entries(fd):
                    if not entry.is_directory:
                        place = f"{root.rstrip('/')}/{path}{name}"
                        yield place, entry.size_bytes, entry.blocks * 512, entry.modified_ns / 1e9


def _listed(report: Report) -> Iterator[_File]:
    for one in report.listing.entries if report.listing is not None else ():
        yield one.path, one.size_bytes, one.allocated_bytes, datetime.fromisoformat(one.modified_at).timestamp()


def _growth_events(report: Report) -> str:
    """Write the growth curve as events that `cachewatch replay` reads."""
    samples = [(one.at_s, one.bytes_written, one.allocated_written) for one in report.growth.samples]
    # The last growth is known by its file's own time, the others by their samples.
    grown = next((t for t, b, a in samples if (b, a) == samples[-1][1:]), None)
    events: list[Event] = [Started(report.attempt, None)]
    for t, b, a in samples[1:]:
        grew_at_s = report.growth.last_growth_s if t == grown else None
        events.append(Progress(t, b, a, bytes_kept=b, allocated_kept=a, bytes_present=b, grew_at_s=grew_at_s))
    events.append(Gone(samples[-1][0] if samples else 0.0, "stop"))
    return "".join(f"{to_line(event, 0.0)}\n" for event in events)


def _redacted_log(content: BundleContent, cut: list[str]) -> str:
    raw, end_s = _log_end(content), time.monotonic() + _LOG_S
    if len(raw) > _LOG_BYTES:
        raw = whole_lines(raw, _LOG_BYTES)
        cut.append(f"generator.log.gz holds the last {_LOG_BYTES >> 20} MiB of the log")
    lines = raw.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    pieces: list[str] = []
    # From the end backwards: lines that there is no time to redact are left out.
    while lines:
        pieces.append(redact("".join(lines[-_LOG_LINES:]), content.secrets))
        del lines[-_LOG_LINES:]
        if lines and time.monotonic() > end_s:
            cut.append("generator.log.gz: the beginning was left out, there was no time to redact it")
            break
    return "".join(reversed(pieces))


def _log_end(content: BundleContent) -> bytes:
    """The end of the log, one byte more than is kept: from its file, else of what was printed."""
    most, path = _LOG_BYTES + 1, content.log_path
    if path is not None and not is_special(path):  # a pipe would hold us, and a device has no end
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - most))
            return file.read(most)
    return (whole_lines(content.log_tail, most) if content.log_cut else content.log_tail)[-most:]


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
        hint = f"{path.name} is missing; `cachewatch report --list` shows those there are"
        raise InputError(f"{path.parent} is not a bundle: {hint}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a report: it is no JSON; was it cut short?") from None
    if not isinstance(report, dict):
        most = f"is larger than {_REPORT_BYTES >> 20} MiB"
        raise InputError(f"{path} is not a bundle's report: it has no diagnosis in it, or {most}")
    return report


def _prune(root: Path, new: Path) -> None:
    """Remove old bundles: those beyond the newest fifty, and those of more than thirty days, but never the new one.

    Those of cancelled runs count apart, so that they drive out none that explains a stall: the newest ten are kept.
    Only directories of this user with a bundle's name are touched; no symlink is followed.
    """
    found = find_bundles(root)
    few = [path for path in found if path.name[: -len("-abcdef")].endswith(_CANCELLED)]
    kept = {*few[:_CANCELLED_KEPT], *[path for path in found if path not in few][:_KEPT]}
    partial = [path for path in root.iterdir() if _PARTIAL.fullmatch(path.name)]
    for path in (*found, *partial):
        with contextlib.suppress(OSError):
            entry = look_path(path)
            age_s = time.time() - entry.modified_ns / 1e9
            old = age_s > _PARTIAL_AGE_S if path in partial else path not in kept or age_s > _MAX_AGE_S
            if old and path != new and entry.is_directory and entry.owner == os.getuid():
                remove_path(path, entry)
