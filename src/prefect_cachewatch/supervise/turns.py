"""Readings that may never return, in threads that are left behind; standard library only, no import of threading.

A reading that waits in the kernel for its process (see `reading`) is left behind with its thread, and its process is not
asked again until the thread has come back. The wait is killable: a thread left behind does not outlive this process.
"""

from __future__ import annotations

import _thread
import os
import time

TYPE_CHECKING = False  # typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    T = TypeVar("T")

__all__ = ["is_stuck", "read_each"]

_STUCK_MAX = 64  # threads left behind at once; beyond it nothing is asked that could block

_stuck: set[int] = set()  # processes that hold a thread of ours
_lock = _thread.RLock()  # a signal handler may come here while its own thread holds it

os.register_at_fork(after_in_child=_stuck.clear)  # the threads stay behind in the parent


class _Turn:
    """One thread's way through a list of processes."""

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
        """Go on without this thread; returns the index of the process that it is left behind with."""
        with _lock:
            if self.ended.locked():
                self._blamed = self.pids[self.index]
                _stuck.add(self._blamed)
            return self.index

    def waits_in_the_kernel(self) -> bool:
        """Whether the thread sleeps in a way that no signal but SIGKILL ends, rather than for its turn on a busy machine."""
        try:
            with open(f"/proc/self/task/{self.tid}/stat", "rb") as file:
                text = file.read()
        except OSError:
            return False
        return text[text.rindex(b")") + 2 :][:1] == b"D"


def is_stuck(pid: int) -> bool:
    """Say whether a reading of this process is still under way after its deadline; it has not ended meanwhile."""
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
        read: reads one of them, in another thread; what it raises ends the whole turn.
        each_s: how long a reading may wait in the kernel, in seconds.
        total_s: the longest time for all of them.
        alone: whether to read in this thread, without a deadline, where no other can be had; else nothing is read.

    Returns:
        Pid to what was read, of those that answered in time.

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
        except RuntimeError:  # no thread can be had
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
