"""The display of a running generation: a live view in a terminal, plain lines elsewhere.

The watch has the numbers; `live` lays them out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from prefect_cachewatch.cli.plain import LiveState, render_plain
from prefect_cachewatch.common.console import standard_error
from prefect_cachewatch.watching.attempt import Watch

if TYPE_CHECKING:
    from prefect_cachewatch.cli.live import LiveBlock

__all__ = ["ProgressLine"]

_PLAIN_EVERY_S = 30.0
_RATE_OVER_S = 60.0
_RATES_MAX = 40


class ProgressLine:
    """Shows a watch on standard error; every method is cheap and may be called from any thread.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.live = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._quiet = quiet
        self._block: LiveBlock | None = None
        self._rates: deque[float] = deque(maxlen=_RATES_MAX)
        self._lock = threading.Lock()
        self._points: deque[tuple[float, int]] = deque()
        self._last_plain_s = time.monotonic()
        self._suspected = self._phases = 0
        self._watch: Watch | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if self.live:  # imported before the start: the modules may be on the file system that hangs
            import shutil  # noqa: F401, PLC0415

            import prefect_cachewatch.cli.live  # noqa: F401, PLC0415 - rich takes 50 ms

    def sampled(self, watch: Watch) -> None:
        """Take in that the monitor has measured."""
        now_s = time.monotonic()
        written = watch.state.growth.bytes_written
        if self._points and now_s > self._points[-1][0]:
            self._rates.append((written - self._points[-1][1]) / (now_s - self._points[-1][0]))
        self._points.append((now_s, written))
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
        suspicions, phases = watch.state.rule.suspicions, watch.state.rule.phases.changes
        news = len(suspicions) > self._suspected or (watch.serving is not None and len(phases) > self._phases)
        if now_s - self._last_plain_s >= _PLAIN_EVERY_S or news:
            self._last_plain_s, self._suspected, self._phases = now_s, len(suspicions), len(phases)
            self._write(f"cachewatch: {render_plain(self._state(watch))}\n".encode("utf-8", "replace"))

    def clear(self) -> None:
        """Take the view off the screen before other output is written there; a stopped screen is not waited for."""
        if self.live:
            with self._lock:
                if self._block is not None:
                    self._block.clear()
            standard_error().flush()

    def close(self) -> None:
        """Stop redrawing and take the view off the screen."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1)
        self.clear()

    def _redraw(self) -> None:
        import shutil  # noqa: PLC0415

        from prefect_cachewatch.cli.live import LiveBlock, render_live, wants_colour  # noqa: PLC0415 - rich takes 50 ms

        block = self._block = LiveBlock(self._write, wants_colour())
        while not self._stop.wait(0.5):
            watch = self._watch
            if watch is not None:
                width = shutil.get_terminal_size((80, 24)).columns - 1
                lines = render_live(self._state(watch), width)
                with self._lock:
                    if not self._stop.is_set():
                        block.draw(lines, width)

    def _state(self, watch: Watch) -> LiveState:
        state, rule = watch.state, watch.state.rule
        now_s = time.monotonic()
        last = rule.suspicions[-1] if rule.suspicions else None
        return LiveState(
            name=watch.job.name,
            elapsed_s=now_s - watch.started_s,
            bytes_present=state.growth.bytes_present,
            files_present=state.growth.files_present,
            rate_bytes_per_s=self._rate(),
            pause_s=min(rule.pause_s + now_s - state.began_s, rule.window_s),
            window_s=rule.window_s,
            started=rule.first_write_s is not None,
            last_file=state.last_path,
            suspicion=last.message if last and last.cleared_at_s is None else None,
            expected_bytes=watch.job.expected_bytes,
            rates=tuple(self._rates),
            warmup=watch.serving.waiting_for if watch.serving is not None and rule.phases.now == "warm_up" else None,
        )

    def _rate(self) -> float:
        if len(self._points) < 2:
            return 0.0
        (t0, b0), (t1, b1) = self._points[0], self._points[-1]
        return (b1 - b0) / (t1 - t0) if t1 > t0 else 0.0

    @staticmethod
    def _write(text: bytes) -> None:
        standard_error().put(text)
