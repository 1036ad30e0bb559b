"""What a person sees while a generation runs: one line that is redrawn in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import deque

from prefect_cachewatch.text import for_terminal
from prefect_cachewatch.units import format_bytes, format_duration
from prefect_cachewatch.watch import Watch

__all__ = ["ProgressLine", "progress_text"]

_PLAIN_EVERY_S = 30.0
_RATE_OVER_S = 60.0


def progress_text(
    *,
    bytes_present: int,
    files_present: int,
    rate_bytes_per_s: float,
    pause_s: float,
    window_s: float,
    started: bool,
    suspicion: str | None,
    width: int,
) -> str:
    """Write the state of a generation in one line.

    Args:
        bytes_present: apparent bytes in the directories.
        files_present: files in them.
        rate_bytes_per_s: growth per second, over the last minute.
        pause_s: the pause so far.
        window_s: the window it is held against.
        started: whether anything was written yet.
        suspicion: what is suspected, in words, or None.
        width: the most characters.

    Returns:
        The line.

    Example:
        >>> progress_text(bytes_present=2**30, files_present=43, rate_bytes_per_s=2**20, pause_s=12.4,
        ...     window_s=300, started=True, suspicion=None, width=80)
        '1.00 GiB in 43 files, 1.00 MiB/s, pause 12 s of 5 minutes'
    """
    pause = f"{'pause' if started else 'no byte yet,'} {format_duration(float(round(pause_s)))} of {format_duration(window_s)}"
    text = f"{format_bytes(bytes_present)} in {files_present:,} files, {format_bytes(rate_bytes_per_s)}/s, {pause}"
    if suspicion:
        text += f"; suspected: {suspicion}"
    return for_terminal(text, width)


class ProgressLine:
    """Shows a watch on standard error; every method is cheap and may be called from any thread.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.live = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._quiet = quiet
        self._shown = False
        self._lock = threading.Lock()
        self._points: deque[tuple[float, int]] = deque()
        self._last_plain_s = time.monotonic()
        self._suspected = 0
        self._watch: Watch | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def sampled(self, watch: Watch) -> None:
        """Take in that the monitor has measured."""
        now_s = time.monotonic()
        self._points.append((now_s, watch.state.growth.bytes_written))
        while len(self._points) > 2 and self._points[1][0] < now_s - _RATE_OVER_S:
            self._points.popleft()
        if self._quiet:
            return
        self._watch = watch
        if self.live:
            if self._thread is None:
                self._thread = threading.Thread(target=self._redraw, name="cachewatch-progress", daemon=True)
                self._thread.start()
            return
        suspicions = watch.state.rule.suspicions
        if now_s - self._last_plain_s >= _PLAIN_EVERY_S or len(suspicions) > self._suspected:
            self._last_plain_s, self._suspected = now_s, len(suspicions)
            self._write(f"cachewatch: {self._text(watch, 400)}\n")

    def clear(self) -> None:
        """Take the line off the screen, before somebody else writes there."""
        if self.live:
            with self._lock:
                if self._shown:
                    self._shown = False
                    self._write("\r\x1b[K")

    def close(self) -> None:
        """Stop redrawing and take the line off the screen."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1)
        self.clear()

    def _redraw(self) -> None:
        while not self._stop.wait(0.5):
            watch = self._watch
            if watch is not None:
                width = shutil.get_terminal_size((80, 24)).columns - 1
                with self._lock:
                    if not self._stop.is_set():
                        self._write(f"\r{self._text(watch, width)}\x1b[K")
                        self._shown = True

    def _text(self, watch: Watch, width: int) -> str:
        state, rule = watch.state, watch.state.rule
        since_s = time.monotonic() - state.began_s
        open_suspicion = rule.suspicions[-1] if rule.suspicions and rule.suspicions[-1].cleared_at_s is None else None
        return progress_text(
            bytes_present=state.growth.bytes_present,
            files_present=state.growth.files_present,
            rate_bytes_per_s=self._rate(),
            pause_s=min(rule.pause_s + since_s, rule.window_s),
            window_s=rule.window_s,
            started=rule.first_write_s is not None,
            suspicion=open_suspicion.message if open_suspicion else None,
            width=width,
        )

    def _rate(self) -> float:
        if len(self._points) < 2:
            return 0.0
        (t0, b0), (t1, b1) = self._points[0], self._points[-1]
        return (b1 - b0) / (t1 - t0) if t1 > t0 else 0.0

    @staticmethod
    def _write(text: str) -> None:
        try:
            os.write(2, text.encode("utf-8", "replace"))
        except OSError:
            return
