"""The one way to stop a tree: SIGTERM once, a grace period, then freeze, SIGKILL and look until no process is left.

As with timeout, systemd and dumb-init, SIGTERM goes to the processes that live at that moment: a cleanup that a handler
starts (stop a container, reset a device, sync) gets the grace period too. Guards, adopted processes, servers and the
janitor all use this; they decide which processes belong to the tree. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time

from prefect_cachewatch.supervise.proc import ProcessStat, send_signal
from prefect_cachewatch.supervise.reading import name_processes

TYPE_CHECKING = False  # importing typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KILL_DEADLINE_S = 10.0
NAMED_MAX = 256
_LONGEST_NAP_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ticks_now() -> int:
    """Return the start time that a process started now would have, in clock ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S)


class TreeStop:
    """One stop of one tree, and the processes it found.

    Args:
        look: lists the tree's living processes, and reaps those that have ended.
        longest_nap_s: the longest pause between two looks.

    Example:
        >>> import subprocess
        >>> from prefect_cachewatch.supervise.proc import read_stats
        >>> with subprocess.Popen(["sleep", "30"]) as child:
        ...     stop = TreeStop(lambda: {} if child.poll() is not None else read_stats([child.pid]))
        ...     stop.sweep(time.monotonic() + 10), [who["argv"] for who in stop.killed]
        ([], [['sleep', '30']])
    """

    def __init__(self, look: Callable[[], dict[int, ProcessStat]], longest_nap_s: float = _LONGEST_NAP_S) -> None:
        self.told: set[tuple[int, int]] = set()
        self._told_first: set[tuple[int, int]] = set()
        self.forced: set[tuple[int, int]] = set()
        self._look, self._longest_nap_s = look, longest_nap_s
        self._named: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def terminated(self) -> list[dict[str, Any]]:
        """The processes that ended within the grace period, after SIGTERM or the signal before it."""
        return [who for key, who in self._named.items() if key in (self.told | self._told_first) - self.forced]

    @property
    def killed(self) -> list[dict[str, Any]]:
        """The processes that got SIGKILL, whether they have gone or not."""
        return [who for key, who in self._named.items() if key in self.forced]

    def note_first(self, told: dict[int, ProcessStat]) -> None:
        """Record the processes that are about to get a signal other than SIGTERM: most end before `terminate` looks."""
        self._name(told)
        self._told_first |= {(pid, found.start_ticks) for pid, found in told.items()}

    def terminate(self, deadline_s: float, nap: Callable[[float], float]) -> None:
        """Send SIGTERM and SIGCONT to all living processes, then wait until these and any new ones have gone.

        Args:
            deadline_s: monotonic time at which the grace period ends.
            nap: waits for a number of seconds; returns the monotonic time of an earlier deadline, or infinity.
        """
        nap_s, began_ticks = 0.001, 0
        while living := self._look():
            # A process that the look missed (it lost its parent meanwhile) is signalled too: it existed before the
            # first signal.
            new = {p: f for p, f in living.items() if (p, f.start_ticks) not in self.told}
            if began_ticks:
                new = {p: f for p, f in new.items() if f.start_ticks < began_ticks}
            began_ticks = began_ticks or ticks_now()
            self._name(new)  # before the signal, since a process's argv is lost when it ends
            for pid, found in new.items():
                self.told.add((pid, found.start_ticks))
                send_signal(pid, found.start_ticks, signal.SIGTERM)
                # A stopped process acts on SIGTERM only when it is continued.
                send_signal(pid, found.start_ticks, signal.SIGCONT)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            deadline_s = min(deadline_s, nap(min(nap_s, left_s)))
            nap_s = min(nap_s * 1.5, self._longest_nap_s)

    def sweep(self, deadline_s: float) -> list[dict[str, Any]]:
        """Send SIGKILL to all processes until none is left.

        Args:
            deadline_s: monotonic time at which to give up.

        Returns:
            The processes that did not end, each with pid, start_ticks, state and argv.
        """
        nap_s = 0.0005
        while living := self._look():
            # Frozen first: a process that forks while it is being killed would leave a child behind.
            for pid, found in living.items():
                send_signal(pid, found.start_ticks, signal.SIGSTOP)
            living = {**self._look(), **living}
            self._name(living)
            for pid, found in living.items():
                self.forced.add((pid, found.start_ticks))
                send_signal(pid, found.start_ticks, signal.SIGKILL)
            if time.monotonic() > deadline_s:
                break
            time.sleep(nap_s)
            nap_s = min(nap_s * 1.5, self._longest_nap_s)
        return self._survivors(self._look() if living else {})

    def _survivors(self, living: dict[int, ProcessStat]) -> list[dict[str, Any]]:
        self._name(living)
        return [
            self._named.get((pid, found.start_ticks), {"pid": pid, "start_ticks": found.start_ticks, "argv": []})
            | {"state": found.state}
            for pid, found in living.items()
        ]

    def _name(self, tree: dict[int, ProcessStat]) -> None:
        """Record the command lines of new processes, with a deadline, since a hanging process may not give its own."""
        new = {pid: found for pid, found in tree.items() if (pid, found.start_ticks) not in self._named}
        for who in name_processes(new, max(0, NAMED_MAX - len(self._named))) if new else ():
            self._named[who["pid"], who["start_ticks"]] = who
