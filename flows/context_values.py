"""What a command lays down for the flow that it runs in this process: where to show, whom to tell.

Nothing of it goes along when a flow is pickled, as `flow.serve` and workers do it: a run elsewhere begins with the
default.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

__all__ = ["ContextValue"]

T = TypeVar("T")


class ContextValue(Generic[T]):
    """A context variable that can be pickled, as what flows name has to be.

    Args:
        name: of the variable.
        default: what it is until it is set, and in every copy.

    Example:
        >>> import pickle
        >>> depth = ContextValue("depth", 0)
        >>> token = depth.set(3)
        >>> depth.get(), pickle.loads(pickle.dumps(depth)).get()
        (3, 0)
    """

    def __init__(self, name: str, default: T) -> None:
        self._name, self._default = name, default
        self._variable: ContextVar[T] = ContextVar(name)

    def get(self) -> T:
        """Say what holds in this context."""
        return self._variable.get(self._default)

    def set(self, value: T) -> Token[T]:
        """Let a value hold in this context, until `reset`."""
        return self._variable.set(value)

    def reset(self, token: Token[T]) -> None:
        """Let hold again what held before the `set` that gave this token."""
        self._variable.reset(token)

    def __reduce__(self) -> tuple[Any, ...]:
        return ContextValue, (self._name, self._default)
