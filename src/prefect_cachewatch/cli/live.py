"""The live view of a running generation: its layout, and rich's live display of it below a terminal's other output.

It measures nothing. The display writes through `common.console`, so that a terminal that is stopped holds up nobody.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prefect_cachewatch.cli.plain import Shown, remaining_text
from prefect_cachewatch.common.console import standard_error
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.engine.events import AttemptWanted, Progress

_BAR_WIDTH = 16


def wants_colour(environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether colour is wanted (no-color.org): not with NO_COLOR set, not on a dumb terminal.

    Example:
        >>> wants_colour({"TERM": "xterm", "NO_COLOR": "1"}), wants_colour({"TERM": "xterm"})
        (False, True)
    """
    return not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("", "dumb")


def render_live(shown: Shown, now: Progress) -> RenderableType:
    """Lay an attempt out in three to six lines, each cut to the width of the terminal.

    Args:
        shown: the attempt.
        now: its measurement as it stands now.

    Example:
        >>> from prefect_cachewatch.engine.events import Ready
        >>> console = Console(width=60, file=io.StringIO())
        >>> now = Progress(60, bytes_present=2**30, files_present=43, rate_bytes_per_s=2**20, pause_s=72, window_s=300)
        >>> console.print(render_live(Shown(Ready("llama")), now))
        >>> console.file.getvalue().splitlines()[0].rstrip()
        'llama  1.00 GiB in 43 files  1.00 MiB/s  1 minute'
    """
    share = min(1.0, now.pause_s / now.window_s) if now.window_s > 0 else 0.0
    # Silence is normal in a warm-up: no alarm before it has nearly used up its window.
    warn, alarm = (0.9, 0.97) if now.waiting_for is not None else (0.6, 0.8)
    mood = "red" if share >= alarm else "yellow" if shown.suspicion or share >= warn else "green"
    head = _line().append(for_terminal(shown.run.name, 24), style="bold")
    if shown.attempt.most is not None and shown.attempt.n > 1:
        head.append(f"  attempt {shown.attempt.n} of {shown.attempt.most}", style="yellow")
    head.append(f"  {format_bytes(now.bytes_present)}", style="bold cyan")
    head.append(f" in {format_count(now.files_present, 'file')}")
    head.append(f"  {format_bytes(max(0.0, now.rate_bytes_per_s))}/s  {format_duration(float(round(now.at_s)))}")
    if remaining := remaining_text(shown, now):
        head.append(f"  {remaining}", style="cyan")
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True)
    if now.last_file:
        rows.add_row("last", _line(for_terminal(now.last_file.rsplit("/", 1)[-1] or now.last_file, 400)))
    what = f"{format_duration(float(round(now.pause_s)))} of {format_duration(now.window_s)}"
    what += " (no byte yet)" if now.phase == "before_first_byte" else ""
    pause = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH, complete_style=mood, finished_style=mood)
    pause.add_row(bar, _line(what, mood if share >= warn else ""))
    rows.add_row("pause" if now.waiting_for is None else "warmup", pause)
    for label, text in (("until", now.waiting_for), ("log", now.told)):
        if text is not None:
            rows.add_row(label, _line(for_terminal(text, 400)))
    below = [_line(for_terminal(f"suspected: {shown.suspicion}", 400), "yellow")] if shown.suspicion else []
    return Group(head, rows, *below)


def render_wait(ended: AttemptWanted, left_s: float) -> Text:
    """Lay out the time between two attempts.

    Args:
        ended: the attempt that has ended.
        left_s: seconds until the next begins.

    Example:
        >>> print(render_wait(AttemptWanted(1, 3), 24.6).plain)
        attempt 2 of 3 begins in 25 s
    """
    return _line(f"attempt {ended.n + 1} of {ended.most} begins in {format_duration(float(round(left_s)))}", "yellow")


class LiveBlock:
    """Some lines below a terminal's other output, redrawn in place; not for several threads at once."""

    def __init__(self) -> None:
        colour = wants_colour()
        self._console = Console(
            file=_Terminal(), force_terminal=True, color_system="auto" if colour else None, no_color=not colour,
            highlight=False, markup=False, legacy_windows=False,
        )  # fmt: skip
        self._live: Live | None = None
        self._at_line_start = True

    def draw(self, view: RenderableType) -> None:
        """Show a view in place of the last one; nothing while other output stands in the middle of a line."""
        if self._live is not None:
            self._live.update(view, refresh=True)
        elif self._at_line_start:
            self._live = Live(
                view, console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )  # fmt: skip
            self._live.start(refresh=True)
            self._console.show_cursor(True)  # Ctrl-Z and SIGKILL must not leave a shell without one

    def clear(self) -> None:
        """Take the view off the screen, so that other output may go on where it stopped."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def follow(self, data: memoryview) -> None:
        """Take in other output that was written to the terminal."""
        if data:
            self._at_line_start = bytes(data[-1:]) == b"\n"


class _Terminal(io.StringIO):
    def write(self, text: str) -> int:
        standard_error().put(text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Wait for nobody."""

    def isatty(self) -> bool:
        return True


def _line(text: str = "", style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
