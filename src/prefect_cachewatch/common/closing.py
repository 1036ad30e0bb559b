"""Base classes for objects that a `with` block closes. Standard library only."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing costs the helper processes a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Self


class Closing:
    """Closes itself at the end of a `with` block, however the block ends.

    Example:
        >>> class Door(Closing):
        ...     def close(self):
        ...         print("closed")
        >>> with Door():
        ...     print("open")
        open
        closed
    """

    def close(self) -> None:
        """Release what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Opened:
    """A descriptor that is closed at the end of a `with` block.

    Args:
        fd: the descriptor.

    Example:
        >>> with Opened(os.open("/dev/null", os.O_RDONLY)) as fd:
        ...     os.read(fd, 1)
        b''
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
