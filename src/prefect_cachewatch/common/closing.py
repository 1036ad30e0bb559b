"""What is closed at the end of a `with` block, said once. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Closing"]


class Closing:
    """Closed by the end of a `with` block, however it ends.

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
        """Let go of what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
