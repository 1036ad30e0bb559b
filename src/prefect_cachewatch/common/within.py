"""Work that may hang, in threads that are left behind at their deadline; for a process that may itself be left behind.

A call into a file system that has stopped answering never returns, and nothing can interrupt it. It holds up its own
thread alone: the interpreter's lock is released in it. Standard library only.
"""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from typing import Any

_NO_ANSWER = "its file system does not answer"
_HELD_BYTES = 1 << 20


def within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a thread of its own, and return its result.

    Args:
        seconds: the longest wait.
        function: runs to its end in its thread, if it ever returns.
        arguments: for the function.

    Raises:
        TimeoutError: it has not returned by then.
        Exception: whatever the function raises.

    Example:
        >>> within(30, max, 1, 2)
        2
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, function(*arguments)))
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            answers.put((False, error))

    threading.Thread(target=run, name="cachewatch-within", daemon=True).start()
    try:
        done, result = answers.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError(errno.ETIMEDOUT, _NO_ANSWER) from None
    if not done:
        raise result
    return result


class Threads:
    """Accesses files in threads; see `common.aside.Files`.

    Example:
        >>> Threads().run(max, 1, 2, timeout_s=30)
        2
    """

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Run a function; see `within`."""
        return within(timeout_s, function, *arguments)

    def consult(
        self, function: Callable[..., Any], *arguments: Any, answer: Callable[[], object], timeout_s: float
    ) -> Any:
        """Run a function that gets a keyword `ask`, which calls `answer`."""
        return within(timeout_s, lambda: function(*arguments, ask=answer))

    def open(self, opener: Callable[..., Any], *arguments: Any, timeout_s: float) -> ThreadFile:
        """Open an object with `write(bytes)` and `close()` whose calls a thread makes."""
        return ThreadFile(opener, arguments, timeout_s)

    def close(self) -> None:
        """Do nothing: a call that still runs ends with the process."""


class ThreadFile:
    """A file that a thread of its own writes, in order.

    Args:
        opener: opens it, in that thread.
        arguments: for the opener.
        timeout_s: the longest wait for that, in seconds.

    Raises:
        TimeoutError: it could not be opened by then.
        Exception: whatever the opener raises.
    """

    def __init__(self, opener: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float) -> None:
        self._changed = threading.Condition()
        self._waiting: list[bytes | None] = []
        self._held = 0
        self._error: Exception | None = None
        self._opened = self._closed = False
        thread = threading.Thread(target=self._run, args=(opener, arguments), name="cachewatch-file", daemon=True)
        thread.start()
        with self._changed:
            self._wait(lambda: self._opened, timeout_s)
            self._raise()

    def write(self, data: bytes | bytearray | memoryview, timeout_s: float = 5.0) -> None:
        """Pass bytes on. Only `close` confirms that they were written.

        Args:
            data: the bytes.
            timeout_s: the longest wait for room, in seconds.

        Raises:
            TimeoutError: there is no room, since nothing is being written.
            OSError: bytes passed on earlier could not be written.
        """
        with self._changed:
            self._wait(lambda: self._error is not None or self._held < _HELD_BYTES, timeout_s)
            self._raise()
            self._waiting.append(bytes(data))
            self._held += len(data)
            self._changed.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait until everything has been written and the file is closed; raises as `write`."""
        with self._changed:
            self._waiting.append(None)
            self._changed.notify_all()
            self._wait(lambda: self._closed, timeout_s)
            self._raise()

    def _wait(self, fact: Callable[[], bool], timeout_s: float) -> None:
        if not self._changed.wait_for(fact, timeout_s):
            raise TimeoutError(errno.ETIMEDOUT, _NO_ANSWER)

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, opener: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            file = opener(*arguments)
        except Exception as error:  # noqa: BLE001 - raised by the caller
            self._tell(error, opened=True)
            return
        self._tell(None, opened=True)
        failed = False
        while (data := self._next()) is not None:
            if not failed:  # reported once; the rest is dropped, so that no writer waits
                try:
                    file.write(data)
                except OSError as error:
                    failed = True
                    self._tell(error)
            with self._changed:
                self._held -= len(data)
                self._changed.notify_all()
        try:
            file.close()
        except OSError as error:
            self._tell(error)
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _tell(self, error: Exception | None, *, opened: bool = False) -> None:
        with self._changed:
            self._error, self._opened = error, self._opened or opened
            self._changed.notify_all()

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            return self._waiting.pop(0)
