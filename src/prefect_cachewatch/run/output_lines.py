"""Which lines of a generator's output a log gets: a first burst, then the last lines of each look, and a count of the rest.

The lines are read from the end of the output that is kept in memory. Nothing is done for each line while the generator
writes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefect_cachewatch.common.secrets import LineRedactor
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.supervise.output import OutputPump

#: So many of the last lines each look shows at least, however many came.
LAST_LINES = 50
_BURST = 200
_WIDTH = 500


class OutputLines:
    """The finished lines of an output, in portions.

    A look shows at most the lines that are allowed by then: 200 at first, 50 more with each look, never more than 200.
    So the last 50 lines of the output are always shown, and no line twice.

    Args:
        output: reads the generator's output.
        secrets: values that must not be shown.
        burst: how many lines may be shown at once after a quiet time.
        each: how many more may be shown with each look.

    Example:
        >>> lines = OutputLines(OutputPump())
        >>> lines.look()
        []
    """

    def __init__(
        self, output: OutputPump, secrets: Iterable[str] = (), *, burst: int = _BURST, each: int = LAST_LINES
    ) -> None:
        self._output, self._redactor = output, LineRedactor(secrets)
        self._burst, self._each, self._allowed = burst, each, burst - each
        self._seen = 0

    def look(self, *, ended: bool = False, most: int | None = None) -> list[str]:
        """Return the next lines to show; the first says how many were left out before them, if any were.

        Args:
            ended: whether the output has ended, so that its last line is finished without a newline.
            most: the most lines to show; default what is allowed.

        Returns:
            Lines without secrets, safe for a terminal.
        """
        new = self._output.lines_since(self._seen, ended=ended)
        self._seen = new.position
        self._allowed = min(self._burst, self._allowed + self._each)
        shown = self._redactor.lines(new.lines)[-(self._allowed if most is None else most) :]
        self._allowed -= min(self._allowed, len(shown))
        left_out = _left_out(len(new.lines) - len(shown), new.lost_bytes)
        return [*left_out, *(for_terminal(line, _WIDTH) for line in shown)]


def _left_out(lines: int, lost_bytes: int) -> list[str]:
    if lost_bytes:  # They were never looked at.
        return [f"[... {format_bytes(lost_bytes)} and {lines:,} lines of the output left out ...]"]
    return [f"[... {lines:,} lines of the output left out ...]"] if lines else []
