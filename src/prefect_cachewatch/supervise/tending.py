"""Keeps a helper process of ours going: continues it if another process stopped it, kills it if that does not help.

A stopped guard (SIGSTOP, a frozen debugger) receives nothing and stops nothing. The other supervising processes look at
it regularly: the outer guard at the inner one, the flow process at both, the janitor when the flow is dead. Standard
library only.
"""

from __future__ import annotations

import math
import signal
import time

from prefect_cachewatch.supervise.proc import process_name, read_stat, send_signal

TYPE_CHECKING = False  # importing typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Iterable

GUARD_NAME = "[cachewatch-guar]"  # as the kernel truncates it
_HELPERS = (GUARD_NAME, "[cachewatch-ward]")
_HELD = "Tt"  # stopped by a signal, or by a tracer


class Tended:
    """One helper process, pinned by its start time.

    Args:
        pid: of the process.
        start_ticks: its start time; default that of the process that has the pid now.
    """

    def __init__(self, pid: int, start_ticks: int | None = None) -> None:
        found = read_stat(pid) if start_ticks is None else None
        self.pid = pid
        self.start_ticks = start_ticks if start_ticks is not None else found.start_ticks if found else -1
        self._held_since_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is stopped at the moment."""
        found = read_stat(self.pid)
        return found is not None and found.start_ticks == self.start_ticks and found.state in _HELD

    def look(self, patience_s: float) -> bool:
        """Continue it if it is stopped; kill it if every look in the last `patience_s` seconds found it stopped.

        Args:
            patience_s: seconds.

        Returns:
            Whether it was stopped.
        """
        if not self.is_held:
            self._held_since_s = None
            return False
        now_s = time.monotonic()
        if self._held_since_s is None:
            self._held_since_s = now_s
        # A tracer may hold it despite SIGCONT, but not despite SIGKILL.
        late = now_s - self._held_since_s >= patience_s
        send_signal(self.pid, self.start_ticks, signal.SIGKILL if late else signal.SIGCONT)
        return True

    def kill(self) -> None:
        """Kill it at once."""
        send_signal(self.pid, self.start_ticks, signal.SIGKILL)


def wake(pids: Iterable[int]) -> bool:
    """Continue those of the given processes that are stopped helpers of ours: guards and wardens.

    Args:
        pids: for example the holders of a lock that the caller wants.

    Returns:
        Whether any of them was.
    """
    held = [one for one in map(Tended, pids) if process_name(one.pid) in _HELPERS and one.look(math.inf)]
    return bool(held)
