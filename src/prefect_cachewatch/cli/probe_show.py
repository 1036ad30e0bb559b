"""The display of `cachewatch probe`: its announcement, progress, table, and the signals that end it.

Measures nothing, and writes no files.
"""

from __future__ import annotations

import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from prefect_cachewatch.capacity.probe.report import ProbeReport, ProbeSettings, ProbeStep
from prefect_cachewatch.capacity.probe.run import levels_up_to
from prefect_cachewatch.common.files import is_special
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import InputError

WIDTH = 80


def announcement(path: Path, settings: ProbeSettings, size_bytes: int) -> str:
    levels = levels_up_to(settings.max_concurrency)
    in_all = size_bytes // 2 * (len(levels) * settings.repetitions + 1)
    text = (
        f"Probing {for_terminal(str(path))}: writes up to {format_bytes(size_bytes)} at once and "
        f"{format_bytes(in_all)} in all, for up to {format_duration(settings.time_s)}. "
        "Whoever shares this storage is slowed meanwhile; Ctrl-C ends it, keeps what was measured and removes the test files."
    )
    return textwrap.fill(text, WIDTH)


def table(report: ProbeReport) -> str:
    how = "O_DIRECT" if report.direct else "page cache"
    lines = [
        f"{for_terminal(str(report.target.path))} ({report.target.filesystem}), {report.engine}, {how}, "
        f"{format_duration(report.elapsed_s)}",
        "",
        f"{'':4} {'fresh writes':>17} {'reads':>17} {'random reads':>25} {'small files':>13}".rstrip(),
        f"{'n':>4} {'/s':>10} {'spread':>6} {'/s':>10} {'spread':>6} {'/s':>10} {'IOPS':>7} {'spread':>6} "
        f"{'/s':>6} {'ms':>6}",
    ]
    streams = sorted({level.concurrency for level in report.levels})
    by_place = {(level.phase, level.concurrency): level for level in report.levels}
    doubtful = False
    for n in streams:
        cells = [f"{n:>4}"]
        for phase in ("write", "read", "random_read"):
            level = by_place.get((phase, n))
            if level is None:
                cells.append(f"{'-':>10} {'-':>6}" if phase != "random_read" else f"{'-':>10} {'-':>7} {'-':>6}")
                continue
            mark = " " if level.obeys_little else "*"
            doubtful = doubtful or not level.obeys_little
            ops = f" {level.rate_per_s:>7.0f}" if phase == "random_read" else ""
            cells.append(f"{format_bytes(level.rate_bytes_per_s):>10}{ops} {level.spread:>5.0%}{mark}")
        small = by_place.get(("metadata", n))
        cells.append(f"{small.rate_per_s:>6.0f} {small.mean_latency_s * 1e3:>6.2f}" if small else f"{'-':>6} {'-':>6}")
        lines.append(" ".join(cells))
    if doubtful:
        lines.append("   * X x latency is not n within 10 %")
    return "\n".join(lines) + "\n"


@contextmanager
def stopping() -> Iterator[tuple[Event, list[int]]]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into an event; Python's own handler gets a second one."""
    stop, caught = Event(), list[int]()
    before: dict[int, Any] = {}

    def handle(number: int, _frame: object) -> None:
        caught.append(number)
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:  # nohup stays nohup
            before[each] = signal.signal(each, handle)
    try:
        yield stop, caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[ProbeStep], None]]:
    if quiet:
        yield lambda step: None
    elif sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - only where there is a terminal
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda step: bar.update(task, completed=step.done, total=step.total, description=step.text)
    else:
        last = [""]

        def show(step: ProbeStep) -> None:
            # One line per phase and concurrency, not per repetition.
            what = re.sub(r", \d+ of \d+$", "", step.text)
            if what != last[0]:
                last[0] = what
                print(f"[{step.done}/{step.total}] {what}", file=sys.stderr, flush=True)

        yield show


def check_output(output: Path) -> None:
    """Refuse an output before the probe that could not be written after it.

    Args:
        output: the file that the user named.

    Raises:
        InputError: it is a directory, its directory is missing, or it is some other file.
    """
    shown = for_terminal(str(output))
    if output.is_dir():
        raise InputError(f"{shown} is a directory: name a file with --output")
    if not output.parent.is_dir():
        raise InputError(
            f"{for_terminal(str(output.parent))} does not exist: make it first, or name another file with --output"
        )
    if output.exists() and not is_special(output):
        try:
            with output.open("rb") as file:
                head = file.read(4096)
        except OSError as error:
            raise InputError(f"{shown} cannot be read ({error.strerror}): name another file with --output") from None
        if head.strip() and not re.search(rb"^(# Storage profile|name:|codec:)", head, re.MULTILINE):
            raise InputError(f"{shown} exists and is no profile: name another file with --output")


def exit_status(caught: Sequence[int]) -> int:
    """The status that a shell expects of a command that a signal ended; 0 without a signal."""
    return 128 + caught[0] if caught else 0
