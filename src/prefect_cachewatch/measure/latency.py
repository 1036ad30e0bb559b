"""Stat calls one after the other, or from a few threads where each waits for a server; standard library only.

From Python threads make local scans slower (they hand the interpreter to and fro), so they are used
only where calls are seen to wait rather than to work.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence

TYPE_CHECKING = False  # typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any

__all__ = ["StatCalls"]

THREADS = 16
_WAITING_S = 0.0002  # of a call; a local one takes 2 us, one to a server in the same building 300 us and more
_SAMPLE = 64


class StatCalls:
    """The stat calls of one walk, made in the working directory; close it at the end.

    Example:
        >>> calls = StatCalls()
        >>> [type(status).__name__ for status in calls.each(["/", "/nowhere"])]
        ['stat_result', 'FileNotFoundError']
        >>> calls.close()
    """

    def __init__(self) -> None:
        self.settled = False
        """Whether calls were seen to be quick: one after the other is best."""
        self._pool: Any = None
        self._calls = 0
        self._waited_s = 0.0
        self._waits_before = _voluntary_waits()

    @property
    def threaded(self) -> bool:
        """Whether calls wait so long that threads make them."""
        return self._pool is not None

    def all(self, names: Sequence[str]) -> list[os.stat_result]:
        """Stat some names without following links.

        Args:
            names: file names.

        Returns:
            Their stat results.

        Raises:
            OSError: one of them cannot be read.
        """
        if self.settled:
            return list(map(os.lstat, names))
        found = self.each(names)
        for status in found:
            if isinstance(status, OSError):
                raise status
        return found  # type: ignore[return-value]

    def each(self, names: Sequence[str]) -> list[os.stat_result | OSError]:
        """Stat some names without following links; an error stands in the place of what cannot be read."""
        if self._pool is None or len(names) < 2:
            return self._one_by_one(names)
        slices = [names[start::THREADS] for start in range(min(THREADS, len(names)))]
        found: list[os.stat_result | OSError] = [*names]  # type: ignore[list-item]
        for start, part in enumerate(self._pool.map(_stat_each, slices)):
            found[start::THREADS] = part
        return found

    def _one_by_one(self, names: Sequence[str]) -> list[os.stat_result | OSError]:
        if self._calls >= _SAMPLE:
            return _stat_each(names)
        found: list[os.stat_result | OSError] = []
        for done, name in enumerate(names):
            if self._calls >= _SAMPLE:
                return found + self.each(names[done:])
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            found += _stat_each([name])
            self._waited_s += time.perf_counter() - wall_s - (time.thread_time() - cpu_s)
            self._calls += 1
            if self._calls == _SAMPLE and self._do_wait():
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a megabyte that most scans never need

                self._pool = ThreadPoolExecutor(THREADS, "stat")
            self.settled = self._calls >= _SAMPLE and self._pool is None
        return found

    def _do_wait(self) -> bool:
        # On a busy host time passes outside of calls that are quick: then the thread was put aside, it did not wait.
        waits = _voluntary_waits() - self._waits_before
        return self._waited_s > _SAMPLE * _WAITING_S and waits >= _SAMPLE // 2

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown()


def _voluntary_waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _stat_each(names: Sequence[str]) -> list[os.stat_result | OSError]:
    found: list[os.stat_result | OSError] = []
    for name in names:
        try:
            found.append(os.lstat(name))
        except OSError as error:
            found.append(error)
    return found
