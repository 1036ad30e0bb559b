"""Who belongs to a process that somebody else started: looked at again and again, so that daemons are known too.

Only a subreaper keeps a tree together, and it has to be there from the start. An observer knows the descendants that
it has seen, what those started since, and whoever shares a session that was made within the tree. A process that left
the tree and its sessions between two looks is not known.
"""

from __future__ import annotations

import contextlib
import os

from prefect_cachewatch.supervise.proc import ProcessStat, descendants, is_alive, lineage, read_stat

__all__ = ["Family"]

_DEAD = "ZXx"


class Family:
    """The processes of an adopted tree; never this process, nor what stands above it.

    Args:
        pid: of the process at the top.
        start_ticks: its start time.

    Example:
        >>> import subprocess
        >>> with subprocess.Popen(["sleep", "30"]) as child:
        ...     family = Family(child.pid, read_stat(child.pid).start_ticks)
        ...     seen = list(family.look()) == [child.pid]
        ...     child.kill()
        ...     child.wait() and seen, family.look()
        (True, {})
    """

    def __init__(self, pid: int, start_ticks: int) -> None:
        self.known: dict[int, int] = {pid: start_ticks}
        self._foreign_session = _session(pid)
        if self._foreign_session == pid:  # its own: what joins it comes from the tree
            self._foreign_session = None

    def look(self) -> dict[int, ProcessStat]:
        """Look who is there now; about 0.1 ms a process of the tree and 2 us one of the machine.

        Returns:
            Living members by pid, those seen first at the front.
        """
        living: dict[int, ProcessStat] = {}
        for pid, ticks in self.known.items():
            self._add_tree(pid, ticks, living)
        self._add_sessions(living)
        for pid in lineage(os.getpid()):
            living.pop(pid, None)
        self.known = {pid: found.start_ticks for pid, found in living.items()}
        return living

    @staticmethod
    def _add_tree(pid: int, ticks: int, living: dict[int, ProcessStat]) -> None:
        if pid in living:
            return  # and with it what is below
        found = read_stat(pid)
        if found is None or found.start_ticks != ticks or found.state in _DEAD:
            return
        below = descendants(pid)
        # Still the same afterwards: what stood below this pid in between was below this very process.
        if is_alive(pid, ticks) or not below:
            living[pid] = found
            living.update({child: stat for child, stat in below.items() if child not in living})

    def _add_sessions(self, living: dict[int, ProcessStat]) -> None:
        # A session's number is no other process's pid while anybody is in it. The one that the process at the top was
        # started in by somebody else (a login shell's) does not count.
        sessions = {_session(pid) for pid in living} - {
            self._foreign_session,
            None,
            0,
        }  # 0: made outside this pid namespace
        if not sessions:
            return
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in living:
                continue
            pid = int(name)
            if _session(pid) not in sessions:
                continue
            found = read_stat(pid)
            if found is not None and found.state not in _DEAD and _session(pid) in sessions:
                self._add_tree(pid, found.start_ticks, living)


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None
