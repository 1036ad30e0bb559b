"""Keeps a helper process of ours going: continues it where somebody has stopped it, ends it where that does not help.

A guard that is stopped (SIGSTOP, a frozen debugger) hears nothing and stops nobody. Whoever else watches over the run
looks at it in turns: the outer guard at the inner one, the flow process at both, the janitor when the flow is dead.
Standard library only.
"""

from __future__ import annotations

import math
import signal
import time

from prefect_cachewatch.supervise.proc import process_name, read_stat, send_signal

TYPE_CHECKING = False  # typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GUARD_NAME", "Tended", "wake"]

GUARD_NAME = "[cachewatch-guar]"  # as the kernel keeps it
_HELPERS = (GUARD_NAME, "[cachewatch-ward]", "[cachewatch-keep]")
_HELD = "Tt"  # stopped by a signal, or by a tracer


class Tended:
    """One helper process, pinned by its start time.

    Args:
        pid: of it.
        start_ticks: its start time; default that of the process that has the pid now.
    """

    def __init__(self, pid: int, start_ticks: int | None = None) -> None:
        found = read_stat(pid) if start_ticks is None else None
        self.pid = pid
        self.start_ticks = start_ticks if start_ticks is not None else found.start_ticks if found else -1
        self._held_since_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is stopped just now."""
        found = read_stat(self.pid)
        return found is not None and found.start_ticks == self.start_ticks and found.state in _HELD

    def look(self, patience_s: float) -> bool:
        """Continue it if it is stopped; end it if it was stopped at every look for so long.

        Args:
            patience_s: how long.

        Returns:
            Whether it was stopped.
        """
        if not self.is_held:
            self._held_since_s = None
            return False
        now_s = time.monotonic()
        if self._held_since_s is None:
            self._held_since_s = now_s
        # A tracer may hold what SIGCONT lets go; SIGKILL it cannot hold.
        late = now_s - self._held_since_s >= patience_s
        send_signal(self.pid, self.start_ticks, signal.SIGKILL if late else signal.SIGCONT)
        return True

    def kill(self) -> None:
        """End it at once."""
        send_signal(self.pid, self.start_ticks, signal.SIGKILL)


def wake(pids: Iterable[int]) -> bool:
    """Continue those of some processes that are stopped helpers of ours: guards, wardens, keepers.

    Args:
        pids: for example of those who hold a lock that is wanted.

    Returns:
        Whether any was.
    """
    held = [one for one in map(Tended, pids) if process_name(one.pid) in _HELPERS and one.look(math.inf)]
    return bool(held)
