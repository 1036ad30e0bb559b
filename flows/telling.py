"""Whether a run works or only waits for the API: the time that `cachewatch generate --api-patience` bounds.

The flow notes what it does. A command that runs the flow in its own process reads that, and leaves when the API takes
too long. The command sets what it reads as a `ContextValue`: such values are not pickled with a flow, as `flow.serve`
and workers pickle it, and a run in another process begins with the default.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

from prefect_cachewatch.engine.front import Front
from prefect_cachewatch.report.report import Report

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


class Telling:
    """The progress of a run; it begins in the state of waiting for the API, which does not know the run yet."""

    def __init__(self) -> None:
        self.since_s: float | None = time.monotonic()
        """Monotonic time since when the run has only waited for the API; None while it works."""
        self.has_begun = False
        self.report: Report | None = None
        """The report of the last attempt that has ended."""
        self.front: Front | None = None
        """Of the engine, once there is one."""
        self.interrupted = False
        """Whether a signal ended work that no attempt's report covers: before, between or after the attempts."""

    def work(self, front: Front | None = None) -> None:
        """Note work in which the API has no part.

        Args:
            front: of the engine that does it, if there is one already.
        """
        self.has_begun, self.since_s = True, None
        self.front = front or self.front

    def tell(self) -> None:
        """Note that the run, or its last attempt, has ended, and now only waits for the API."""
        self.since_s = time.monotonic()


# Set by a command or block that reads it; a worker does not set it.
whom_to_tell: ContextValue[Telling | None] = ContextValue("whom_to_tell", None)


def note_work(front: Front | None = None) -> None:
    """Note work in which the API has no part, if somebody reads it.

    Args:
        front: of the engine that does it, if there is one already.
    """
    if (told := whom_to_tell.get()) is not None:
        told.work(front)


def note_report(report: Report, *, last: bool) -> None:
    """Note the report of an attempt that has ended, if somebody reads it.

    Args:
        report: the report.
        last: whether the run now only waits for the API; false if another attempt or the publication follows.
    """
    if (told := whom_to_tell.get()) is not None:
        told.report = report
        if last:
            told.tell()


def note_end() -> None:
    """Note that the run has ended, if somebody reads it."""
    if (told := whom_to_tell.get()) is not None:
        told.tell()
