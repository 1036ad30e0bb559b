"""The state of a running generation as one plain line, for a log. Imports only modules that a watch has loaded."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration


@dataclass(frozen=True)
class LiveState:
    """The values of the live view."""

    name: str
    elapsed_s: float
    bytes_present: int
    files_present: int
    rate_bytes_per_s: float
    pause_s: float
    window_s: float
    started: bool = True
    last_file: str | None = None
    suspicion: str | None = None
    expected_bytes: int | None = None
    warmup: str | None = None
    """In a server's warm-up, what the watch waits for."""
    told: str | None = None
    """The progress that its output told of last."""
    attempt: tuple[int, int] | None = None
    """Its number, and how many there may be."""


def render_plain(state: LiveState, width: int = 400) -> str:
    """Write the state as one line without any control characters, for a log.

    Example:
        >>> render_plain(LiveState("llama", 60, 2**30, 43, 2**20, 12.4, 300))
        '1.00 GiB in 43 files, 1.00 MiB/s, pause 12 s of 5 minutes'
    """
    what = "warm-up" if state.warmup is not None else "pause" if state.started else "no byte yet,"
    pause = f"{what} {format_duration(float(round(state.pause_s)))}"
    text = (
        f"{format_bytes(state.bytes_present)} in {format_count(state.files_present, 'file')}, "
        f"{format_bytes(max(0.0, state.rate_bytes_per_s))}/s, {pause} of {format_duration(state.window_s)}"
    )
    if remaining := remaining_text(state):
        text += f", {remaining}"
    if state.warmup is not None:
        text += f"; waiting for {state.warmup}"
    if state.told is not None:
        text += f"; {state.told}"
    if state.suspicion:
        text += f"; suspected: {state.suspicion}"
    return for_terminal(text, width)


def remaining_text(state: LiveState) -> str:
    """Say how much is done and how long the rest will take, if the expected size is known; else return nothing."""
    if not state.expected_bytes:
        return ""
    percent = min(99.0, 100.0 * state.bytes_present / state.expected_bytes)
    text = f"{percent:.0f} %"
    left = state.expected_bytes - state.bytes_present
    if left > 0 and state.rate_bytes_per_s > 0 and state.pause_s < 0.2 * state.window_s:
        text += f", {format_duration(float(round(left / state.rate_bytes_per_s)))} left"
    return text
