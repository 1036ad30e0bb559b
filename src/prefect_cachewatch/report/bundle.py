"""The bundle: everything known about one attempt that stalled, failed or was cancelled, in a private directory.

It is written after the tree is gone, so that it delays no stop. It is bounded in time and size, and says what was cut.
`bundlestore` chooses its directory and removes old ones.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from pathlib import Path

from prefect_cachewatch.common.directories import OPEN_DIRECTORY, make_own_directory
from prefect_cachewatch.common.files import create_file
from prefect_cachewatch.common.removal import remove_path
from prefect_cachewatch.common.secrets import redact, whole_lines
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.engine.events import Event, Gone, Progress, Started, to_line
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.evidence.model import Evidence
from prefect_cachewatch.measure.walk import find_borders
from prefect_cachewatch.report.bundlestore import CANCELLED
from prefect_cachewatch.report.html import write_page
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.report.sections import make_verdict, sections

BUNDLE_FILES = ("generator.log.gz", "growth.jsonl", "listing.jsonl.gz", "report.html", "report.json")
_SECRETS_NOTE = "command lines and the log are redacted; no environment is ever stored"
_LOG_BYTES = 4 << 20
_LOG_CHUNK = 64 << 10
_LISTING_BYTES = 64 << 20
_LISTING_LATE_S = 1.0
_MAX_DEPTH = 128
_BATCH = 1000


@dataclass(frozen=True)
class BundleContent:
    """What goes into a bundle.

    `log` reads at most so many bytes from the log's end as it is asked for. `walked` says whether the directories are walked
    for the complete listing; else the report's stands for it.
    """

    report: Report
    evidence: Evidence
    cause: Cause
    log: Callable[[int], bytes] = lambda size: b""
    secrets: Sequence[str] = ()
    walked: bool = True


@dataclass(frozen=True)
class WrittenBundle:
    """The path of a bundle, and the parts that were cut."""

    path: Path
    cut: tuple[str, ...] = ()


def write_bundle(
    root: Path,
    content: BundleContent,
    dirs: Sequence[str],
    *,
    shared: bool = False,
    listing_s: float = 4.0,
    log_s: float = 0.7,
) -> WrittenBundle:
    """Write a bundle below `root`, whole or not at all: it is renamed to its name when it is complete.

    Args:
        root: directory of bundles, made if missing (0700).
        content: what to write.
        dirs: the cache directories.
        shared: others may have made `root`, or write into it; else it must be this user's alone.
        listing_s: the most seconds for the complete listing.
        log_s: the most seconds for taking secrets out of the log.

    Returns:
        Its path and what was cut.

    Raises:
        OSError: it cannot be written.
    """
    if shared:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        os.close(make_own_directory(root))
    job = slugify(content.report.name, most=40) + (CANCELLED if content.report.outcome == "cancelled" else "")
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{job}-{os.urandom(3).hex()}"
    work, final = root / f".{name}.partial", root / name
    work.mkdir(mode=0o700)
    try:
        cut = _fill(work, final, content, dirs, listing_s, log_s)
        work.rename(final)
    except BaseException:
        remove_path(work)  # on a full disk it would use up the space that is left
        raise
    return WrittenBundle(final, tuple(cut))


def _fill(
    work: Path, final: Path, content: BundleContent, dirs: Sequence[str], listing_s: float, log_s: float
) -> list[str]:
    """Write each file of a bundle; returns what was cut."""
    cut: list[str] = []
    report = replace(content.report, diagnosis=content.cause, bundle=str(final))
    evidence = content.evidence
    log = _redacted_log(content, time.monotonic() + log_s, cut)  # first: a thread beside it takes of its time
    listing = _Listing(create_file(work / "listing.jsonl.gz"), content, dirs, listing_s)
    listing.begin()
    _put(work / "generator.log.gz", gzip.compress(log.encode("utf-8", "surrogateescape"), 6))
    _put(work / "growth.jsonl", _growth_events(report).encode())
    cut += listing.wait()
    facts = asdict(replace(evidence, log_tail="", log_kept=""))
    data = {**asdict(report), "cut": cut, "missing": facts.pop("missing"), "evidence": facts}
    _put(work / "report.json", (json.dumps(data, indent=1, ensure_ascii=True) + "\n").encode())
    footer = f"cachewatch {report.cachewatch_version} · collected {evidence.collected_at} in {evidence.took_s:.2f} s · "
    told = sections(report, evidence, log=log.splitlines(), cut=cut)
    page = write_page(make_verdict(report), told, footer + _SECRETS_NOTE)
    _put(work / "report.html", page.encode("utf-8", "backslashreplace"))
    return cut


def list_files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Walk a directory by descriptors: no symlink is followed, no other mount entered.

    Args:
        root: the directory.

    Yields:
        (path, stat) of everything but directories.

    Example:
        >>> list(list_files("/nowhere"))
        []
    """
    try:
        top = os.open(root, OPEN_DIRECTORY)
    except OSError:
        return
    device, borders = os.fstat(top).st_dev, find_borders([root])
    stack = [(top, root.rstrip("/") + "/", os.scandir(top))]
    try:
        while stack:
            here, prefix, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                entries.close()
                os.close(here)
                stack.pop()
                continue
            if entry.name in borders.get(prefix, ()):
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(facts.st_mode):
                    yield prefix + entry.name, facts
                elif facts.st_dev == device and len(stack) < _MAX_DEPTH:
                    below = os.open(entry.name, OPEN_DIRECTORY, dir_fd=here)
                    stack.append((below, prefix + entry.name + "/", os.scandir(below)))
            except OSError:  # removed or replaced meanwhile
                continue
    finally:
        for here, _, entries in stack:
            entries.close()
            os.close(here)


class _Listing(threading.Thread):
    """Writes the complete listing in a thread, which is left behind if a directory stops answering."""

    def __init__(self, fd: int, content: BundleContent, dirs: Sequence[str], most_s: float) -> None:
        super().__init__(name="cachewatch-listing", daemon=True)
        self._fd, self._content, self._dirs, self._most_s = fd, content, dirs, most_s
        self._end_s = time.monotonic() + most_s
        self._hung = [facts.path for facts in content.evidence.filesystems if not facts.responded]
        self._cut = ["listing.jsonl.gz ends early: its file system is full, or a directory failed"]
        self._packer, self._written = zlib.compressobj(1, zlib.DEFLATED, 31), 0

    def begin(self) -> None:
        """Start, if there may be a further thread; without one the bundle lacks the listing."""
        try:
            self.start()
        except RuntimeError:
            os.close(self._fd)
            self._cut = ["listing.jsonl.gz is empty: this user may have no further thread"]

    def wait(self) -> list[str]:
        """Wait until it is written, at most as long as it may take; returns what was cut."""
        if self.ident is None:
            return self._cut
        self.join(max(0.0, self._end_s + _LISTING_LATE_S - time.monotonic()))
        if self.is_alive():
            return [
                "listing.jsonl.gz ends early: the cache directory stopped answering, or the machine has no time for it"
            ]
        return self._cut

    def run(self) -> None:
        """List all files; of a cache that hangs none, and without a walk those of the report."""
        try:
            if not self._content.walked:
                self._cut = ["listing.jsonl.gz holds the files of the report: the cache was not walked again"]
                self._write(self._listed(), "to the files of the report")
            elif self._hung:
                self._cut = [f"listing.jsonl.gz is empty: {for_terminal(self._hung[0])} does not answer"]
                self._flush([], last=True)
            else:
                self._cut = self._write(self._walk(), None)
        except (OSError, ValueError):  # `_cut` says so
            pass
        finally:
            os.close(self._fd)

    def _write(self, files: Iterator[tuple[str, int, int, float]], cut: str | None) -> list[str]:
        count = total = 0
        lines: list[str] = []
        for path, size, allocated, modified_s in files:
            count, total = count + 1, total + size
            lines.append(
                f'{{"path":{encode_basestring_ascii(redact(path, self._content.secrets))},"size_bytes":{size},'
                f'"allocated_bytes":{allocated},"modified_at":{modified_s:.3f}}}\n'
            )
            if count % _BATCH == 0:
                self._flush(lines)
                late, large = time.monotonic() > self._end_s, self._written > _LISTING_BYTES
                if late or large:
                    cut = f"after {self._most_s:g} s" if late else f"after {_LISTING_BYTES} compressed bytes"
                    break
        end = {"end": True, "files": count, "bytes": total, "cut": cut}
        self._flush([*lines, json.dumps(end) + "\n"], last=True)
        return [f"listing.jsonl.gz holds the first {count} files: cut {cut}"] if cut else []

    def _flush(self, lines: list[str], last: bool = False) -> None:
        packed = self._packer.compress("".join(lines).encode())
        # A sync point now and then, so that a listing that is never finished can be read so far.
        packed += self._packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        lines.clear()
        self._written += os.write(self._fd, packed)

    def _walk(self) -> Iterator[tuple[str, int, int, float]]:
        for root in self._dirs:
            for path, facts in list_files(root):
                yield path, facts.st_size, facts.st_blocks * 512, facts.st_mtime

    def _listed(self) -> Iterator[tuple[str, int, int, float]]:
        listing = self._content.report.listing
        for one in listing.entries if listing is not None else ():
            yield one.path, one.size_bytes, one.allocated_bytes, datetime.fromisoformat(one.modified_at).timestamp()


def _put(path: Path, data: bytes) -> None:
    with open(create_file(path), "wb") as file:
        file.write(data)


def _growth_events(report: Report) -> str:
    """Write the growth curve as events that `cachewatch replay` reads."""
    samples = [(one.at_s, one.bytes_written, one.allocated_written) for one in report.growth.samples]
    last_s = report.growth.last_growth_s
    # The last growth is known by its file's own time, the others by their samples.
    grown = next((t for t, b, a in samples if (b, a) == samples[-1][1:]), None)
    events: list[Event] = [Started(report.attempt, None)]
    for t, b, a in samples[1:]:
        grew_at_s = last_s if t == grown else None
        events.append(Progress(t, b, a, bytes_kept=b, allocated_kept=a, bytes_present=b, grew_at_s=grew_at_s))
    events.append(Gone(samples[-1][0] if samples else 0.0, "stop"))
    return "".join(f"{to_line(event, 0.0)}\n" for event in events)


def _redacted_log(content: BundleContent, deadline_s: float, cut: list[str]) -> str:
    raw = content.log(_LOG_BYTES + 1)
    if len(raw) > _LOG_BYTES:
        raw = whole_lines(raw, _LOG_BYTES)
        cut.append(f"generator.log.gz holds the last {_LOG_BYTES >> 20} MiB of the log")
    lines = raw.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    pieces: list[str] = []
    # From the end backwards, in pieces of whole lines: lines that there is no time to redact are left out.
    while lines:
        size, start = 0, len(lines)
        while start and size < _LOG_CHUNK:
            start -= 1
            size += len(lines[start])
        pieces.append(redact("".join(lines[start:]), content.secrets))
        del lines[start:]
        if lines and time.monotonic() > deadline_s:
            cut.append("generator.log.gz: the beginning was left out, there was no time to redact it")
            break
    return "".join(reversed(pieces))
