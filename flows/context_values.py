"""Values that a command sets for the flow that it runs in this process: the view, and the progress object.

They are not pickled with a flow, as `flow.serve` and workers pickle it. A run in another process begins with the
default.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

__all__ = ["ContextValue"]

T = TypeVar("T")


class ContextValue(Generic[T]):
    """A context variable that can be pickled, as all values that a flow names must be.

    Args:
        name: name of the variable.
        default: its value until it is set, and in every pickled copy.

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
        """Return the value in this context."""
        return self._variable.get(self._default)

    def set(self, value: T) -> Token[T]:
        """Set the value in this context, until `reset`."""
        return self._variable.set(value)

    def reset(self, token: Token[T]) -> None:
        """Restore the value before the `set` that returned this token."""
        self._variable.reset(token)

    def __reduce__(self) -> tuple[Any, ...]:
        return ContextValue, (self._name, self._default)
