"""The display of a running generation: a live view in a terminal, plain lines or events elsewhere.

The events have the numbers; `live` lays them out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from prefect_cachewatch.cli.plain import Shown, render_plain
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.console import standard_error
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.engine.events import (
    AttemptWanted,
    Cleared,
    Event,
    Note,
    Phase,
    Progress,
    Ready,
    Retry,
    Suspected,
    to_line,
)
from prefect_cachewatch.engine.view import View

if TYPE_CHECKING:
    from prefect_cachewatch.cli.live import LiveBlock

Mode = Literal["live", "plain", "json", "none"]

_PLAIN_EVERY_S = 60.0
_TENTH = 0.1
_REDRAW_S = 0.5
# Other output takes the view off the screen. It is back at once, or after this if it was just drawn.
_AT_ONCE_S, _SOON_S = 0.01, 0.05


class ProgressLine(View):
    """Shows the events of a run on standard error; every method is cheap and may be called from any thread.

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
        self._last_plain_s, self._last_share = time.monotonic(), 0.0
        self._has_news = False
        self._shown = Shown(Ready(""))
        self._lent = False
        self._drawn_s = self._free_s = 0.0
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        if self.mode == "live":  # imported before the start: the modules may be on the file system that hangs
            from prefect_cachewatch.cli.live import LiveBlock  # noqa: PLC0415 - rich takes 50 ms

            self._block = LiveBlock()

    def take(self, event: Event, at: float) -> None:
        """Take in an event."""
        if self.mode == "json":
            self._say(to_line(event, at))
        elif isinstance(event, Note):
            if event.fault or not self._quiet:
                self.clear()
                say(for_terminal(event.text, 1000), flush=True)
        elif self.mode != "none":
            self._keep(event)

    def _keep(self, event: Event) -> None:
        match event:
            case Ready():
                self._shown = Shown(event)
            case AttemptWanted():
                self._shown = Shown(self._shown.run, event)
            case Suspected(message=message):
                self._shown.suspicion, self._has_news = message, True
            case Cleared():
                self._shown.suspicion = None
            case Phase():
                self._has_news = True
            case Progress():
                self._shown.came_s, self._shown.progress = time.monotonic(), event
                self._sampled(event)
            case Retry(after_s=after_s):
                self._shown.next_s = time.monotonic() + after_s
                self._show()

    def _sampled(self, progress: Progress) -> None:
        if self.mode == "live":
            self._show()
        elif self._has_news or self._is_due(progress):
            self._last_plain_s, self._last_share = time.monotonic(), self._share(progress)
            self._has_news = False
            self._say(f"cachewatch: {render_plain(self._shown, self._shown.now())}")

    def _is_due(self, progress: Progress) -> bool:
        """Whether it is time for a line and, where the size is known, another tenth of the work is done."""
        tenth = not self._shown.run.expected_bytes or self._share(progress) - self._last_share >= _TENTH
        return self._each or (time.monotonic() - self._last_plain_s >= _PLAIN_EVERY_S and tenth)

    def _share(self, progress: Progress) -> float:
        return progress.bytes_present / (self._shown.run.expected_bytes or 1)

    def clear(self) -> None:
        """Take the view off the screen before a line is written there; a stopped screen is not waited for."""
        if self._block is not None:
            with self._lock:
                self._free_s = time.monotonic() + _SOON_S
                self._block.clear()
            standard_error().flush()

    def say_report(self, report: Mapping[str, Any], *, final: bool) -> None:
        """Print how an attempt has ended, or that it stalls and is left alone, also if it is to be quiet.

        Args:
            report: its data.
            final: whether it has ended: nothing more is shown of it.
        """
        if final:
            self.close()
            self.name_bundle(report["bundle"])
        if not (final and self._quiet and report["outcome"] == "completed" and not report["would_be_stops"]):
            self.clear()
            print(report["message"], file=sys.stderr, flush=True)
        if not final:
            self.name_bundle(report["bundle"])

    def name_bundle(self, bundle: str | None) -> None:
        """Print where the post-mortem lies, if there is one."""
        if bundle is not None and not self._quiet:
            say(f"post-mortem: cachewatch report {for_terminal(bundle, 4096)}")

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
        shown = self._shown
        if standard_error().busy or (shown.progress is None and shown.next_s is None):
            return  # a terminal that is stopped gets no heap of views when it goes on
        with self._lock:
            now_s = time.monotonic()
            if self._stop.is_set() or self._lent or now_s < self._free_s:
                return
            if shown.next_s is not None and shown.attempt.most is not None:
                self._block.draw(render_wait(shown.attempt, max(0.0, shown.next_s - now_s)))
            elif shown.progress is not None:
                self._block.draw(render_live(shown, shown.now()))
            self._drawn_s = now_s

    @staticmethod
    def _say(line: str) -> None:
        standard_error().put(f"{line}\n".encode("utf-8", "replace"))


def print_report(report: Mapping[str, Any]) -> None:
    """Print a report's data as one line of JSON on standard output, for programs that started the command."""
    print(f"\n{json.dumps(report)}", flush=True)  # the generator's last line may lack its end
