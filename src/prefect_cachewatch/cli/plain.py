"""The state of a running generation as one plain line, for a log. Imports only modules that a watch has loaded."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.engine.events import AttemptWanted, Progress, Ready


@dataclass
class Shown:
    """The attempt that is shown, by what was told of it last."""

    run: Ready
    attempt: AttemptWanted = field(default_factory=lambda: AttemptWanted(1))
    progress: Progress | None = None
    came_s: float = 0.0
    """When the last measurement came, by the monotonic clock."""
    suspicion: str | None = None
    next_s: float | None = None
    """When the next attempt begins, by the monotonic clock; None while one runs."""

    def now(self) -> Progress:
        """Return the last measurement with the time that has passed since."""
        last = self.progress or Progress(0.0)
        since_s = time.monotonic() - self.came_s
        pause_s = min(last.pause_s + last.scan_s + since_s, last.window_s)
        return replace(last, at_s=last.at_s + since_s, pause_s=pause_s)


def render_plain(shown: Shown, now: Progress, width: int = 400) -> str:
    """Write an attempt as one line without any control characters, for a log.

    Example:
        >>> render_plain(Shown(Ready("llama")), Progress(60, bytes_present=2**30, files_present=43, pause_s=12.4, window_s=300, phase="writing"))
        '1.00 GiB in 43 files, 0 B/s, pause 12 s of 5 minutes'
    """
    what = "no byte yet," if now.phase == "before_first_byte" else "pause"
    pause = f"{'warm-up' if now.waiting_for is not None else what} {format_duration(float(round(now.pause_s)))}"
    parts = [
        f"{format_bytes(now.bytes_present)} in {format_count(now.files_present, 'file')}, "
        f"{format_bytes(max(0.0, now.rate_bytes_per_s))}/s, {pause} of {format_duration(now.window_s)}"
    ]
    if remaining := remaining_text(shown, now):
        parts[0] += f", {remaining}"
    parts += [f"waiting for {now.waiting_for}"] if now.waiting_for is not None else []
    parts += [now.told] if now.told is not None else []
    parts += [f"suspected: {shown.suspicion}"] if shown.suspicion else []
    return for_terminal("; ".join(parts), width)


def remaining_text(shown: Shown, now: Progress) -> str:
    """Say how much is done and how long the rest will take, if the expected size is known; else return nothing."""
    expected = shown.run.expected_bytes
    if not expected:
        return ""
    text, left = f"{min(99.0, 100.0 * now.bytes_present / expected):.0f} %", expected - now.bytes_present
    if left > 0 and now.rate_bytes_per_s > 0 and now.pause_s < 0.2 * now.window_s:
        text += f", {format_duration(float(round(left / now.rate_bytes_per_s)))} left"
    return text
