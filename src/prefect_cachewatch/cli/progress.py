"""The display of a running generation: a live view in a terminal, plain lines or JSON elsewhere.

The watch has the numbers; `live` lays them out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from prefect_cachewatch.cli.plain import LiveState, render_plain, told_text
from prefect_cachewatch.cli.saying import say, without_secrets
from prefect_cachewatch.common.console import standard_error
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.run.runner import View
from prefect_cachewatch.watching.attempt import Watch

if TYPE_CHECKING:
    from prefect_cachewatch.cli.live import LiveBlock
    from prefect_cachewatch.report.report import Report

Mode = Literal["live", "plain", "json", "none"]

_PLAIN_EVERY_S = 60.0
_TENTH = 0.1
_RATE_OVER_S = 60.0
_REDRAW_S = 0.5
# Other output takes the view off the screen. It is back at once, or after this if it was just drawn.
_AT_ONCE_S, _SOON_S = 0.01, 0.05


class ProgressLine(View):
    """Shows a watch on standard error; every method is cheap and may be called from any thread.

    Args:
        mode: how; default live in a terminal, else plain, and not at all if it is to be quiet.
        quiet: say nothing of a bundle.
        verbose: the default is plain then, since other lines come between.
        each: show each measurement where it is plain; else one a minute.
    """

    def __init__(
        self,
        mode: Mode | None = None,
        quiet: bool = False,
        verbose: bool = False,
        each: bool = False,
    ) -> None:
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not verbose
        self.mode: Mode = mode or ("none" if quiet else "live" if terminal else "plain")
        self._quiet, self._each = quiet, each
        self._block: LiveBlock | None = None
        self._lock = threading.Lock()
        self._points: deque[tuple[float, int]] = deque()
        self._last_plain_s, self._last_share = time.monotonic(), 0.0
        self._suspected = self._phases = self._warned = 0
        self._watch: Watch | None = None
        self._attempt: tuple[int, int] | None = None
        self._next_s: float | None = None
        self._lent = False
        self._drawn_s = self._free_s = 0.0
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        if self.mode == "live":  # imported before the start: the modules may be on the file system that hangs
            from prefect_cachewatch.cli.live import LiveBlock  # noqa: PLC0415 - rich takes 50 ms

            self._block = LiveBlock()

    def attempt_begins(self, number: int, attempts: int) -> None:
        """Take in which attempt is next, of how many."""
        self._attempt, self._next_s, self._watch = (number, attempts), None, None
        self._points.clear()
        self._suspected = self._phases = self._warned = 0

    def attempt_waits(self, pause_s: float) -> None:
        """Count down to the next attempt."""
        self._next_s = time.monotonic() + pause_s
        self._show()

    def sampled(self, watch: Watch) -> None:
        """Take in that the monitor has measured."""
        now_s = time.monotonic()
        written = watch.state.growth.bytes_written
        self._points.append((now_s, written))
        while len(self._points) > 2 and self._points[1][0] < now_s - _RATE_OVER_S:
            self._points.popleft()
        self._watch = watch
        if self.mode in ("live", "plain"):
            self._warn(watch.state.warnings)
        if self.mode == "live":
            self._show()
        elif self.mode == "json":
            state = {"cachewatch": "sample", "at": time.time()} | asdict(self._state(watch))
            self._say(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in state.items()}))
        elif self.mode == "plain":
            suspicions, phases = watch.state.rule.suspicions, watch.state.rule.phases.changes
            news = len(suspicions) > self._suspected or (watch.serving is not None and len(phases) > self._phases)
            if news or self._is_due(watch, now_s):
                self._last_plain_s, self._suspected, self._phases = now_s, len(suspicions), len(phases)
                self._last_share = self._share(watch)
                self._say(f"cachewatch: {render_plain(self._state(watch))}")

    def _is_due(self, watch: Watch, now_s: float) -> bool:
        """Whether it is time for a line and, where the size is known, another tenth of the work is done."""
        tenth = not watch.job.expected_bytes or self._share(watch) - self._last_share >= _TENTH
        return self._each or (now_s - self._last_plain_s >= _PLAIN_EVERY_S and tenth)

    @staticmethod
    def _share(watch: Watch) -> float:
        return watch.state.growth.bytes_present / (watch.job.expected_bytes or 1)

    def _warn(self, warnings: Sequence[str]) -> None:
        for text in warnings[self._warned :]:
            self._warned += 1
            self.clear()
            say(for_terminal(text, 1000), flush=True)

    def clear(self) -> None:
        """Take the view off the screen before a line is written there; a stopped screen is not waited for."""
        if self._block is not None:
            with self._lock:
                self._free_s = time.monotonic() + _SOON_S
                self._block.clear()
            standard_error().flush()

    def say_stall(self, report: Report) -> None:
        """Print a stall that stops nothing, also if it is to be quiet."""
        self.clear()
        print(report.message, file=sys.stderr, flush=True)
        self.name_bundle(report)

    def name_bundle(self, report: Report) -> None:
        """Print where the post-mortem lies, if there is one."""
        if report.bundle is not None and not self._quiet:
            say(f"post-mortem: cachewatch report {for_terminal(report.bundle, 4096)}")

    def lend(self, stream: int) -> None:
        """Take the view off the screen until `wrote` is called; other output is written there meanwhile."""
        if self._block is not None and os.isatty(stream):
            with self._lock:
                self._lent = True
                self._block.clear()
            # What follows is written to the same terminal by this thread: one that is stopped would hold it up as well.
            standard_error().drain()

    def wrote(self, stream: int, data: memoryview) -> None:
        """Take in what was written since `lend`; the view is back, below it."""
        if self._block is None or not self._lent:
            return
        with self._lock:
            self._block.follow(data)
            self._lent = False
        if time.monotonic() - self._drawn_s >= _AT_ONCE_S:
            self._draw()
        else:
            self._wake.set()

    def close(self) -> None:
        """Stop redrawing and take the view off the screen."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(1)
            self._thread = None
        self.clear()

    def _show(self) -> None:
        if self.mode == "live" and self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._redraw, name="cachewatch-progress", daemon=True)
            self._thread.start()

    def _redraw(self) -> None:
        while not self._stop.is_set():
            if self._wake.wait(_REDRAW_S):
                self._stop.wait(_SOON_S)
            self._wake.clear()
            self._draw()

    def _draw(self) -> None:
        from prefect_cachewatch.cli.live import render_live, render_wait  # noqa: PLC0415 - rich takes 50 ms

        assert self._block is not None
        watch, next_s, attempt = self._watch, self._next_s, self._attempt
        if standard_error().busy or (watch is None and next_s is None):
            return  # a terminal that is stopped gets no heap of views when it goes on
        with self._lock:
            now_s = time.monotonic()
            if self._stop.is_set() or self._lent or now_s < self._free_s:
                return
            if next_s is not None and attempt is not None:
                self._block.draw(render_wait(attempt, max(0.0, next_s - now_s)))
            elif watch is not None:
                self._block.draw(render_live(self._state(watch)))
            self._drawn_s = now_s

    def _state(self, watch: Watch) -> LiveState:
        state, rule = watch.state, watch.state.rule
        now_s = time.monotonic()
        last = rule.suspicions[-1] if rule.suspicions else None
        told = watch.told()
        return LiveState(
            name=without_secrets(watch.job.name),
            elapsed_s=now_s - watch.started_s,
            bytes_present=state.growth.bytes_present,
            files_present=state.growth.files_present,
            rate_bytes_per_s=self._rate(),
            pause_s=min(rule.pause_s + now_s - state.began_s, rule.window_s),
            window_s=rule.window_s,
            started=rule.first_write_s is not None,
            last_file=without_secrets(state.last_path) if state.last_path is not None else None,
            suspicion=without_secrets(last.message) if last and last.cleared_at_s is None else None,
            expected_bytes=watch.job.expected_bytes,
            attempt=self._attempt,
            warmup=watch.serving.waiting_for if watch.serving is not None and rule.phases.now == "warm_up" else None,
            told=told_text(told, now_s - watch.started_s) if told is not None else None,
        )

    def _rate(self) -> float:
        if len(self._points) < 2:
            return 0.0
        (t0, b0), (t1, b1) = self._points[0], self._points[-1]
        return (b1 - b0) / (t1 - t0) if t1 > t0 else 0.0

    def _say(self, line: str) -> None:
        self._write(f"{line}\n".encode("utf-8", "replace"))

    @staticmethod
    def _write(text: bytes) -> None:
        standard_error().put(text)


def print_report(report: Report) -> None:
    """Print a report as one line of JSON on standard output, for programs that started the command."""
    from prefect_cachewatch.report.report import report_json  # noqa: PLC0415 - only for --json, and loaded by then

    # The generator's last line may lack its end.
    print(f"\n{report_json(report, indent=None)}", flush=True)
