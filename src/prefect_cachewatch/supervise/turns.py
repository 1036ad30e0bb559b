"""Runs readings that may never return, in threads that can be abandoned; standard library only, without `threading`.

A reading that waits in the kernel for its process (see `reading`) is abandoned with its thread, and that process is not
read again until the thread has returned. The wait is killable: an abandoned thread does not outlive this process.
"""

from __future__ import annotations

import _thread
import os
import time

TYPE_CHECKING = False  # importing typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    T = TypeVar("T")

_STUCK_MAX = 64  # threads abandoned at once; beyond this no reading that could block is started

_stuck: set[int] = set()  # processes that an abandoned thread waits for
_lock = _thread.RLock()  # a signal handler may come here while its own thread holds it

os.register_at_fork(after_in_child=_stuck.clear)  # the threads exist only in the parent


class _Turn:
    """One thread's pass through a list of processes."""

    def __init__(self, pids: list[int], read: Callable[[int], Any], found: dict[int, Any]) -> None:
        self.pids, self.index = pids, 0
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.tid = 0
        self._read, self._found = read, found
        self._blamed: int | None = None

    def run(self) -> None:
        try:
            self.tid = _thread.get_native_id()
            for index, pid in enumerate(self.pids):
                with _lock:
                    self.index = index
                    if self._blamed is not None:
                        return
                value = self._read(pid)
                with _lock:
                    if self._blamed is not None:
                        return
                    self._found[pid] = value
        finally:
            with _lock:
                if self._blamed is not None:
                    _stuck.discard(self._blamed)
                self.ended.release()

    def leave(self) -> int:
        """Continue without this thread; return the index of the process that it is stuck with."""
        with _lock:
            if self.ended.locked():
                self._blamed = self.pids[self.index]
                _stuck.add(self._blamed)
            return self.index

    def waits_in_the_kernel(self) -> bool:
        """Whether the thread is in a sleep that only SIGKILL ends, rather than waiting for a busy processor."""
        try:
            with open(f"/proc/self/task/{self.tid}/stat", "rb") as file:
                text = file.read()
        except OSError:
            return False
        return text[text.rindex(b")") + 2 :][:1] == b"D"


def is_stuck(pid: int) -> bool:
    """Say whether a reading of this process, which is still alive, is under way after its deadline."""
    return pid in _stuck


def read_each(
    pids: Iterable[int],
    read: Callable[[int], T],
    *,
    each_s: float = 0.1,
    total_s: float = 2.0,
    alone: bool = False,
) -> dict[int, T]:
    """Read something of each process; one that does not answer is left out and costs `each_s`.

    Args:
        pids: the processes.
        read: reads one of them, in another thread; an exception ends the whole pass.
        each_s: how long a reading may wait in the kernel, in seconds.
        total_s: the longest time for all of them.
        alone: if no thread can be started, whether to read in this one without a deadline; else nothing is read.

    Returns:
        Pid to result, for the processes that answered in time.

    Example:
        >>> read_each([1, 2], str)
        {1: '1', 2: '2'}
    """
    left = [pid for pid in pids if not is_stuck(pid)]
    found: dict[int, T] = {}
    end_s = time.monotonic() + total_s
    while left and len(_stuck) < _STUCK_MAX:
        turn = _Turn(left, read, found)
        try:
            _thread.start_new_thread(turn.run, ())
        except RuntimeError:  # no thread can be started
            return found | {pid: read(pid) for pid in left} if alone else found
        at = -1
        while not turn.ended.acquire(timeout=max(0.0, min(each_s, end_s - time.monotonic()))):
            late = time.monotonic() >= end_s
            if late or (turn.index == at and turn.waits_in_the_kernel()):
                left = [] if late else left
                break
            at = turn.index
        else:
            break
        left = left[turn.leave() + 1 :]
    with _lock:
        return dict(found)
