"""The bundle: everything known about one attempt that stalled or failed, in a private directory.

It is written after the tree is gone, so that it delays no stop. It is bounded in time and size, and
says what was cut. `bundlestore` chooses its directory and removes old ones.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.directories import make_own_directory
from prefect_cachewatch.common.files import create_file
from prefect_cachewatch.common.removal import remove_path
from prefect_cachewatch.common.secrets import redact, whole_lines
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.engine.events import Event, Gone, Progress, Started, to_line
from prefect_cachewatch.postmortem.bundlestore import CANCELLED
from prefect_cachewatch.postmortem.chart import draw_growth
from prefect_cachewatch.postmortem.filelister import main
from prefect_cachewatch.postmortem.html import render_page
from prefect_cachewatch.postmortem.model import Evidence
from prefect_cachewatch.supervise.helper_client import IMPORT_FROM
from prefect_cachewatch.watching.sections import Diagnosis

BUNDLE_FILES = (
    "generator.log.gz",
    "growth.jsonl",
    "growth.svg",
    "listing.jsonl.gz",
    "processes.json",
    "report.html",
    "report.json",
    "stacks.txt",
)
_LOG_BYTES = 4 << 20
_LOG_CHUNK = 64 << 10
_LISTING_BYTES = 64 << 20
_LISTER_ENDS_S = 2.0  # a process is started and ended besides


@dataclass(frozen=True)
class BundleContent:
    """What goes into a bundle.

    `report` is the JSON object of `--report`; `log` reads at most so many bytes from the log's end as it is asked for.
    `walked` says whether the directories are walked for the complete listing; else the report's stands for it.
    """

    name: str
    report: Mapping[str, Any]
    evidence: Evidence
    diagnosis: Diagnosis
    cache_dirs: Sequence[str]
    log: Callable[[int], bytes] = lambda size: b""
    secrets: Sequence[str] = ()
    walked: bool = True


@dataclass(frozen=True)
class WrittenBundle:
    """The path of a bundle, and the parts that were cut."""

    path: Path
    took_s: float
    cut: tuple[str, ...] = ()


def write_bundle(
    root: Path,
    content: BundleContent,
    *,
    shared: bool = False,
    listing_s: float = 4.0,
    log_s: float = 0.7,
    clock: Callable[[], float] = time.monotonic,
) -> WrittenBundle:
    """Write a bundle below `root`, whole or not at all: it is renamed to its name when it is complete.

    Args:
        root: directory of bundles, made if missing (0700).
        content: what to write.
        shared: others may have made `root`, or write into it; else it must be this user's alone.
        listing_s: the most seconds for the complete listing, which a child makes.
        log_s: the most seconds for taking secrets out of the log.
        clock: monotonic seconds.

    Returns:
        Its path and what was cut.

    Raises:
        OSError: it cannot be written.
    """
    started = clock()
    if shared:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        os.close(make_own_directory(root))
    job = slugify(content.name, most=40) + (CANCELLED if content.report.get("outcome") == "cancelled" else "")
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{job}-{os.urandom(3).hex()}"
    work, final = root / f".{name}.partial", root / name
    work.mkdir(mode=0o700)
    try:
        cut = _fill(work, final, content, listing_s, log_s, clock)
        work.rename(final)
    except BaseException:
        remove_path(work)  # on a full disk it would use up the space that is left
        raise
    return WrittenBundle(final, clock() - started, tuple(cut))


def _fill(
    work: Path, final: Path, content: BundleContent, listing_s: float, log_s: float, clock: Callable[[], float]
) -> list[str]:
    """Write each file of a bundle; returns what was cut."""
    cut: list[str] = []
    hung = [facts.path for facts in content.evidence.filesystems if not facts.responded]
    lister = None if hung or not content.walked else _start_lister(work / "listing.jsonl.gz", content, listing_s)
    if hung:
        cut.append(f"listing.jsonl.gz is empty: {for_terminal(hung[0])} does not answer")
    try:
        log = _redacted_log(content, clock() + log_s, clock, cut)
        _put(work / "generator.log.gz", gzip.compress(log.encode("utf-8", "surrogateescape"), 6))
        _put(work / "growth.jsonl", _growth_events(content.report, content.evidence).encode())
        svg = draw_report(content.report, content.evidence)
        _put(work / "growth.svg", svg.encode())
        facts = asdict(content.evidence)
        facts.pop("log_tail")
        facts.pop("log_kept")
        _put(work / "processes.json", json.dumps(facts, indent=1).encode())
        _put(work / "stacks.txt", stack_text(content.evidence).encode("utf-8", "backslashreplace"))
    finally:
        told = [] if lister is None else _finish_lister(lister, clock() + listing_s + _LISTER_ENDS_S, clock)
    cut.extend(told)
    if not content.walked:
        cut.append("listing.jsonl.gz holds the files of the report: the cache was not walked again")
    if not (work / "listing.jsonl.gz").exists():
        lines = "" if content.walked else _listed_already(content.report)
        _put(work / "listing.jsonl.gz", gzip.compress(lines.encode()))
    report = {
        **content.report,
        "diagnosis": asdict(content.diagnosis),
        "bundle": str(final),
        "cut": cut,
        "missing": [asdict(missing) for missing in content.evidence.missing],
    }
    _put(work / "report.json", (json.dumps(report, indent=1, ensure_ascii=True) + "\n").encode())
    page = render_page(report, content.evidence, content.diagnosis, svg, log)
    _put(work / "report.html", page.encode("utf-8", "backslashreplace"))
    return cut


def draw_report(report: Mapping[str, Any], evidence: Evidence) -> str:
    """Draw the growth chart of a report, its stall window shaded.

    Args:
        report: the JSON object of `--report`.
        evidence: its growth samples are used, or the report's.

    Returns:
        The SVG.
    """
    growth = report.get("growth") or {}
    samples = evidence.growth.samples or tuple(
        (s["at_s"], s["bytes_written"], s["allocated_written"]) for s in growth.get("samples", ())
    )
    stall = report.get("stall") or {}
    # The curve ends with the decision: stop, listing and bundle take time that is not a pause.
    last = growth.get("last_growth_s") or 0.0
    pause = stall.get("pause_s")
    pauses = [(s["at_s"] - s["pause_s"], s["cleared_at_s"]) for s in growth.get("suspected", ()) if s["cleared_at_s"]]
    if not stall.get("kind") or pause is None:
        return draw_growth(samples, end_s=float(report.get("duration_s") or 0.0), pauses=pauses)
    return draw_growth(samples, end_s=last + pause, stall_from_s=last, window_s=stall.get("window_s"), pauses=pauses)


def stack_text(evidence: Evidence) -> str:
    """Write the Python and kernel stacks of all processes as text, names made harmless.

    Example:
        >>> stack_text(Evidence())
        'no process was left\\n'
    """
    out = io.StringIO()
    for process in evidence.processes:
        out.write(f"pid {process.pid} {for_terminal(process.name)}: {for_terminal(' '.join(process.argv), 1000)}\n")
        for python in process.python_threads:
            out.write(f"  python thread {python.tid} {for_terminal(python.name)}\n")
            out.writelines(f"    {for_terminal(frame, 400)}\n" for frame in python.frames)
        for thread in process.threads:
            call = f" in {thread.syscall}" if thread.syscall else ""
            out.write(
                f"  kernel thread {thread.tid} {for_terminal(thread.name)}: state {thread.state}{call} "
                f"({for_terminal(thread.wait_channel) or 'no wait channel'})\n"
            )
            out.writelines(f"    {for_terminal(frame, 400)}\n" for frame in thread.kernel_stack)
        out.write("\n")
    for missing in evidence.missing:
        out.write(f"missing: {for_terminal(missing.part)}: {for_terminal(missing.why)}\n")
    return out.getvalue() or "no process was left\n"


def _put(path: Path, data: bytes) -> None:
    with open(create_file(path), "wb") as file:
        file.write(data)


def _listed_already(report: Mapping[str, Any]) -> str:
    """Write the report's listing as the lister writes files."""
    lines = []
    for entry in (report.get("listing") or {}).get("entries") or ():
        kept = {name: entry[name] for name in ("path", "size_bytes", "allocated_bytes")}
        lines.append(kept | {"modified_at": datetime.fromisoformat(entry["modified_at"]).timestamp()})
    sizes = [line["size_bytes"] for line in lines]
    lines.append({"end": True, "files": len(sizes), "bytes": sum(sizes), "cut": "to the files of the report"})
    return "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines)


def _growth_events(report: Mapping[str, Any], evidence: Evidence) -> str:
    """Write the growth curve as events that `cachewatch replay` reads."""
    samples, last_s = evidence.growth.samples, (report.get("growth") or {}).get("last_growth_s")
    # The last growth is known by its file's own time, the others by their samples.
    grown = next((t for t, b, a in samples if (b, a) == samples[-1][1:]), None)
    events: list[Event] = [Started(int(report.get("attempt") or 1), None)]
    for t, b, a in samples[1:]:
        grew_at_s = last_s if t == grown else None
        events.append(Progress(t, b, a, bytes_kept=b, allocated_kept=a, bytes_present=b, grew_at_s=grew_at_s))
    events.append(Gone(samples[-1][0] if samples else 0.0, "stop"))
    return "".join(f"{to_line(event, 0.0)}\n" for event in events)


def _redacted_log(content: BundleContent, deadline: float, clock: Callable[[], float], cut: list[str]) -> str:
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
        if lines and clock() > deadline:
            cut.append("generator.log.gz: the beginning was left out, there was no time to redact it")
            break
    return "".join(reversed(pieces))


def _start_lister(target: Path, content: BundleContent, seconds: float) -> subprocess.Popen[bytes] | None:
    code = f"import sys;sys.path.append({IMPORT_FROM!r});from {main.__module__} import main;main()"
    command = [sys.executable, "-I", "-S", "-c", code, str(target), str(seconds), str(_LISTING_BYTES)]
    try:
        told = os.memfd_create("secrets")  # not a pipe, which may be full before the child reads it
        with open(told, "wb") as file:
            file.write(json.dumps(list(content.secrets)).encode())
            file.seek(0)
            return subprocess.Popen(
                [*command, *content.cache_dirs], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
            )
    except OSError:
        return None


def _finish_lister(child: subprocess.Popen[bytes], deadline: float, clock: Callable[[], float]) -> list[str]:
    try:
        answer, _ = child.communicate(timeout=max(0.1, deadline - clock()))
        summary = json.loads(answer)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=0.2)
        return ["listing.jsonl.gz ends early: the cache directory stopped answering, or the machine has no time for it"]
    except ValueError:
        return ["listing.jsonl.gz ends early: the listing process failed (is the bundle's file system full?)"]
    if summary["cut"]:
        return [f"listing.jsonl.gz holds the first {summary['files']} files: cut {summary['cut']}"]
    return []
