"""Where the cursor of a terminal stands after a program's output, as far as it matters to a view drawn below it. Pure."""

from __future__ import annotations

import re

from rich.cells import cell_len

_KEPT = 16384
# Colours, "erase to the end of the line", "show or hide the cursor", titles: the cursor stays where it is.
_HARMLESS = re.compile(rb"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K|\x1b\[\?(?:25|2004|2026)[hl]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_PRINTED = re.compile(rb"[^\x00-\x08\x0b-\x1f\x7f]*")


class Cursor:
    """Follows what is written to a terminal.

    Example:
        >>> cursor = Cursor()
        >>> cursor.follow(b"shards: 10 %")
        >>> cursor.column(80)
        12
        >>> cursor.follow(b", done\\n")
        >>> cursor.column(80)
        0
    """

    def __init__(self) -> None:
        self._line = b""
        self._lost = False

    def follow(self, data: bytes | memoryview) -> None:
        """Take in further output."""
        new = bytes(data)
        text = self._line + new
        head, newline, line = text.rpartition(b"\n")
        # What moves the cursor may leave lines below it; a whole line without such moves is drawn at the bottom again.
        if newline:
            self._lost = not _is_plain(head.rpartition(b"\n")[2] if self._lost else head)
        self._line = line[-_KEPT:]
        self._lost = self._lost or len(line) > _KEPT

    @property
    def on_empty_line(self) -> bool:
        """Whether nothing stands on the cursor's line."""
        return not self._lost and not self._line

    def column(self, width: int) -> int | None:
        """Return the cursor's column, from 0, on a terminal so many columns wide.

        Returns:
            The column; None if it is not known.
        """
        if self._lost or not _is_plain(self._line):
            return None
        shown = _HARMLESS.sub(b"", self._line)
        column = cell_len(shown.rpartition(b"\r")[2].decode("utf-8", "replace").expandtabs(8))
        # At a line's very end, terminals differ in whether the cursor is on the next line.
        return None if column and column % width == 0 else column % width


def _is_plain(text: bytes) -> bool:
    rest = _HARMLESS.sub(b"", text)
    return all(_PRINTED.fullmatch(piece) for piece in rest.replace(b"\n", b"\r").split(b"\r"))
