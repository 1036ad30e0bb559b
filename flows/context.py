"""What a command or a fleet's job sets for the flow that it runs in its own process; a worker sets none of it."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

from prefect_cachewatch.engine.view import View

T = TypeVar("T")


class ContextValue(Generic[T]):
    """A context variable that can be pickled, as all values that a flow names must be: `flow.serve` and workers pickle it.

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


# Where a command copies the generator's output to; a worker copies it nowhere.
output_streams: ContextValue[tuple[int, int] | None] = ContextValue("output_streams", None)
# What shows a run in a terminal; set by the command.
live_view: ContextValue[View] = ContextValue("live_view", View())
# The file for the fleet's table; set by a fleet's job.
status_file: ContextValue[str | None] = ContextValue("status_file", None)
