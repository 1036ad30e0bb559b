"""The live view of a running generation: a pure renderer, and the block of lines that it redraws.

`render_live` makes lines of text from a `LiveState`; `LiveBlock` writes them to a terminal in one
write, so that the view does not flicker. It measures nothing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from prefect_cachewatch.cli.cursor import Cursor
from prefect_cachewatch.cli.plain import LiveState, remaining_text
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration

_BLOCKS = "▁▂▃▄▅▆▇█"
_MAX_WIDTH = 100
# Tells a terminal to show the following output at once, not line by line; other terminals ignore it.
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"


def wants_colour(environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether colour is wanted (no-color.org): not with NO_COLOR set, not on a dumb terminal.

    Example:
        >>> wants_colour({"TERM": "xterm", "NO_COLOR": "1"}), wants_colour({"TERM": "xterm"})
        (False, True)
    """
    return not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("", "dumb")


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last `width` values as a line of blocks; zero is the lowest, the largest the highest.

    Example:
        >>> sparkline([0, 1, 2, 4], 4)
        '▁▂▄█'
    """
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[min(7, int(max(0.0, value) / top * 7.999))] for value in shown)


def render_live(state: LiveState, width: int = 80) -> list[Text]:
    """Lay the state out in three to six lines.

    Args:
        state: what to show.
        width: columns of the terminal; lines are at most that long.

    Returns:
        The lines.

    Example:
        >>> state = LiveState("llama", 60, 2**30, 43, 2**20, 72, 300, last_file="layers.7.w2.tensorbin")
        >>> print(*[line.plain for line in render_live(state, 60)], sep=chr(10))
        llama  1.00 GiB in 43 files  1.00 MiB/s  1 minute
        last   layers.7.w2.tensorbin
        pause  ████░░░░░░░░░░░░  72 s of 5 minutes
    """
    width = max(20, min(width, _MAX_WIDTH))
    share = min(1.0, state.pause_s / state.window_s) if state.window_s > 0 else 0.0
    # Silence is normal in a warm-up: no alarm before it has nearly used up its window.
    warn, alarm = (0.9, 0.97) if state.warmup is not None else (0.6, 0.8)
    mood = "red" if share >= alarm else "yellow" if state.suspicion or share >= warn else "green"
    head = Text().append(for_terminal(state.name, 24), style="bold")
    if state.attempt is not None and state.attempt[0] > 1:
        head.append("  attempt {} of {}".format(*state.attempt), style="yellow")
    head.append(f"  {format_bytes(state.bytes_present)}", style="bold cyan")
    head.append(f" in {format_count(state.files_present, 'file')}")
    head.append(
        f"  {format_bytes(max(0.0, state.rate_bytes_per_s))}/s  {format_duration(float(round(state.elapsed_s)))}"
    )
    if remaining := remaining_text(state):
        head.append(f"  {remaining}", style="cyan")
    room = width - head.cell_len - 2
    if state.rates and room >= 8:
        head.append("  " + sparkline(state.rates, min(room, 24)), style="cyan")
    lines = [head]
    if state.last_file:
        lines.append(_labelled("last").append(for_terminal(_tail(state.last_file), width - 7)))
    what = f"{format_duration(float(round(state.pause_s)))} of {format_duration(state.window_s)}"
    if not state.started:
        what += " (no byte yet)"
    length = max(5, min(40, width - 9 - len(what)) if width > 70 else min(16, width - 9 - len(what)))
    filled = round(share * length)
    bar = _labelled("pause" if state.warmup is None else "warmup")
    bar.append("█" * filled, style=mood).append("░" * (length - filled), style="dim")
    lines.append(bar.append(f"  {what}", style=mood if share >= warn else ""))
    if state.warmup is not None:
        lines.append(_labelled("until").append(for_terminal(state.warmup, width - 7)))
    if state.told is not None:
        lines.append(_labelled("log").append(for_terminal(state.told, width - 7)))
    if state.suspicion:
        lines.append(Text(for_terminal(f"suspected: {state.suspicion}", width), style="yellow"))
    return fitted(lines, width)


def render_wait(attempt: tuple[int, int], left_s: float, width: int = 80) -> list[Text]:
    """Lay out the time between two attempts.

    Args:
        attempt: number of the one that has ended, and how many there may be.
        left_s: seconds until the next begins.
        width: columns of the terminal.

    Example:
        >>> print(render_wait((1, 3), 24.6)[0].plain)
        attempt 2 of 3 begins in 25 s
    """
    text = f"attempt {attempt[0] + 1} of {attempt[1]} begins in {format_duration(float(round(left_s)))}"
    return fitted([Text(text, style="yellow")], width)


def fitted(lines: list[Text], width: int) -> list[Text]:
    """Cut lines to a width."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


class LiveBlock:
    """A block of lines below a terminal's other output, redrawn in place.

    Args:
        write: puts bytes on the terminal.
        colour: whether colours are used.

    Example:
        >>> out: list[bytes] = []
        >>> block = LiveBlock(out.append, colour=False)
        >>> block.draw([Text("a"), Text("b")], 80); block.clear()
        >>> out[1]
        b'\\r\\x1b[1A\\x1b[J'
    """

    def __init__(self, write: Callable[[bytes], object], colour: bool) -> None:
        self.cursor = Cursor()
        """Follows the other output; an unfinished line of it stays above the block."""
        self._write = write
        self._colour = colour
        self._height = 0
        self._back = b""

    def draw(self, lines: Sequence[Text], width: int) -> None:
        """Replace the block by these lines, in one write; draw nothing where it would hide other output.

        Args:
            lines: at most as long as the terminal is wide; longer ones would wrap and displace the block.
            width: columns.
        """
        below = b""
        if not self._height:
            column = self.cursor.column(width + 1)
            if column is None:
                return
            self._back = b""
            if not self.cursor.on_empty_line:
                below, self._back = b"\n", b"\x1b[1A" + (b"\x1b[%dC" % column if column else b"")
        buffer = io.StringIO()
        console = Console(
            file=buffer,
            width=max(20, width),
            force_terminal=self._colour,
            color_system="standard" if self._colour else None,
            no_color=not self._colour,
            highlight=False,
            legacy_windows=False,
        )
        shown = []
        for line in lines:
            console.print(line, end="", soft_wrap=True)
            shown.append(buffer.getvalue())
            buffer.seek(0)
            buffer.truncate()
        text = "\n".join(f"{line}\x1b[K" for line in shown)
        self._write(_BEGIN + below + self._home() + text.encode("utf-8", "replace") + b"\x1b[J" + _END)
        self._height = len(shown)

    def clear(self) -> None:
        """Take the block off the screen, so that other output may go on where it stopped."""
        if self._height:
            self._write(self._home() + b"\x1b[J" + self._back)
            self._height = 0

    def _home(self) -> bytes:
        return b"\r" + (b"\x1b[%dA" % (self._height - 1) if self._height > 1 else b"")


def _labelled(word: str) -> Text:
    return Text().append(f"{word:<7}", style="dim")


def _tail(path: str) -> str:
    return path.rsplit("/", 1)[-1] or path
