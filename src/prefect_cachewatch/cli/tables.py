"""Lays rows out as a table for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), width: int = 80) -> Iterator[str]:
    """Align the columns of a table; where a row is too long, its first cell gets a line of its own.

    Args:
        rows: cells, safe for a terminal; the head is the first row.
        right: columns that are aligned at their right end.
        width: columns of the terminal.

    Yields:
        For each row its line, or two lines with a line end between them.

    Example:
        >>> print(*aligned([["NAME", "SIZE"], ["a", "1 B"], ["long" * 3, "12 B"]], {1}, 14), sep=chr(10))
        NAME     SIZE
        a         1 B
        longlonglong
                 12 B
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = min(widths[0], max(len(rows[0][0]), width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    for row in rows:
        cells = [
            cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]
        first, rest = cells[0], "  ".join(cells[1:])
        apart = len(first) > widths[0]
        yield f"{first}\n{' ' * widths[0]}  {rest}".rstrip() if apart else f"{first}  {rest}".rstrip()


def with_last(
    rows: Sequence[Sequence[str]],
    last: Sequence[str],
    right: Collection[int] = (),
    width: int = 80,
    *,
    indent: int = 18,
    label: str = "",
) -> Iterator[str]:
    """Align the columns of a table, with a last one beside the others if it fits in each row, else below each.

    Args:
        rows: cells, safe for a terminal; the head is the first row.
        last: the cell of the last column for each row; its head first. Where it is empty, there is no line below.
        right: columns that are aligned at their right end.
        width: columns of the terminal.
        indent: of a line below, in spaces.
        label: begins a line below.

    Yields:
        Lines.

    Example:
        >>> print(*with_last([["NAME"], ["a"]], ["CAUSE", "disk_full"], width=12, indent=2), sep=chr(10))
        NAME
        a
          disk_full
    """
    lines = list(aligned(rows, right, width))
    column = max(map(len, lines)) + 2
    beside = column + max(map(len, last)) <= width
    for number, (line, cell) in enumerate(zip(lines, last, strict=True)):
        yield f"{line:<{column}}{cell}".rstrip() if beside and any(last[1:]) else line
        if number and cell and not beside:
            yield f"{'':{indent}}{label}{cell}"
