"""Supervises a process that another program started: sees its end and, on demand, stops its whole process tree.

It starts nothing, freezes nothing and, unless told to stop, ends nothing: if the watcher dies, the process goes on. Its
limits are in docs/attach.md.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

from prefect_cachewatch.common.text import show_argv
from prefect_cachewatch.supervise.pinned_process import PinnedProcess
from prefect_cachewatch.supervise.proc import ProcessStat, descendants, is_alive, lineage, read_stat
from prefect_cachewatch.supervise.reading import argv_within
from prefect_cachewatch.supervise.stop_tree import KILL_DEADLINE_S, NAMED_MAX, TreeStop
from prefect_cachewatch.supervise.supervisor import Observer, RunningServer, Subject, TreeEnd, exit_of

_LOOK_EVERY_S = 0.5
# Looking at the process tree costs at most a hundredth of one core.
_LOOK_SHARE = 100
_NAME_S = 0.2


_DEAD = "ZXx"


class ProcessTree:
    """The processes of an adopted tree; never this process or its ancestors.

    Only a subreaper keeps a tree together, and it must exist from the start. An observer looks repeatedly instead. It
    knows the descendants that it has seen, the processes that they started since, and the members of sessions that were
    made within the tree. A process that left the tree and its sessions between two looks is not known.

    Args:
        pid: of the process at the top.
        start_ticks: its start time.

    Example:
        >>> import subprocess
        >>> with subprocess.Popen(["sleep", "30"]) as child:
        ...     tree = ProcessTree(child.pid, read_stat(child.pid).start_ticks)
        ...     seen = list(tree.look()) == [child.pid]
        ...     child.kill()
        ...     child.wait() and seen, tree.look()
        (True, {})
    """

    def __init__(self, pid: int, start_ticks: int) -> None:
        self.known: dict[int, int] = {pid: start_ticks}
        self._foreign_session = _session(pid)
        if self._foreign_session == pid:  # a session made by the top process: its members come from the tree
            self._foreign_session = None

    def look(self) -> dict[int, ProcessStat]:
        """List the tree's living processes; costs 0.1 ms for each process of the tree and 2 us for each of the machine.

        Returns:
            Living members by pid, newly seen ones first.
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
            return  # and so has everything below it
        found = read_stat(pid)
        if found is None or found.start_ticks != ticks or found.state in _DEAD:
            return
        below = descendants(pid)
        # The parent is still the same process after the look, so what we found below its pid belongs to it.
        if is_alive(pid, ticks) or not below:
            living[pid] = found
            living.update({child: stat for child, stat in below.items() if child not in living})

    def _add_sessions(self, living: dict[int, ProcessStat]) -> None:
        # A session's number is not reused as a pid while the session has members. The session in which another program
        # started the top process (a login shell's) does not count.
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


class AttachedProcess(Observer):
    """One adopted process with its tree; a thread waits for its end.

    Args:
        pinned: the process, pinned; closed by `close`.
        grace_s: seconds between SIGTERM and SIGKILL.
        wait_for: `leader`: done when the process itself has ended; `tree`: when its descendants have ended too.
    """

    # Declared again: a type checker infers a narrower type from the assignment than `Observer` declares.
    pid: int | None
    leader_exit: tuple[int | None, int | None] | None

    def __init__(self, pinned: PinnedProcess, grace_s: float, wait_for: str = "leader") -> None:
        super().__init__("process", grace_s)
        began_at = time.time() - pinned.running_for_s
        self.subject = Subject(f"process {pinned.pid}", tuple(pinned.argv), began_at, pinned.pid, pinned.start_ticks)
        self._pinned, self._wait_for = pinned, wait_for
        self._tree = ProcessTree(pinned.pid, pinned.start_ticks)

    def start(self) -> None:
        """Start waiting for its end."""
        self._tree.look()
        self.pid, self.root_pids = self._pinned.pid, [self._pinned.pid]
        self._begin()

    def running(self) -> RunningServer | None:
        """Return what keeps running; None if nothing is left."""
        # As the last look saw it: only the observer's thread may look.
        tree = tuple(self._tree.known.items())
        return RunningServer("process", self._pinned.pid, self._pinned.start_ticks, tree) if tree else None

    def close(self) -> None:
        """Release what was held; a process that still runs goes on."""
        if self._end(KILL_DEADLINE_S):
            self._pinned.close()

    def _observe(self) -> TreeEnd:
        poll, pause_s = select.poll(), _LOOK_EVERY_S
        poll.register(self._wake, select.POLLIN)
        poll.register(self._pinned.fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(pause_s * 1000)}
            began_s = time.monotonic()
            if self._pinned.fd in ready:
                poll.unregister(self._pinned.fd)
                self.leader_exit = exit_of(self._pinned.exit_status())
            living = self._tree.look()
            self.root_pids = list(living) or self.root_pids  # a process that moved to init belongs to the evidence too
            if self.leader_exit is not None:
                failed = self.leader_exit not in ((0, None), (None, None))
                if self._wait_for == "leader" or failed or not living:
                    self._note_left(living)
                    return TreeEnd("exited", *self.leader_exit, gone_after_s=0.0)
            if self._asked == "stop":
                return self._stop()
            if self._asked:
                return TreeEnd("released", *exit_of(None), gone_after_s=0.0)
            pause_s = max(_LOOK_EVERY_S, _LOOK_SHARE * (time.monotonic() - began_s))

    def _note_left(self, living: dict[int, ProcessStat]) -> None:
        left = [pid for pid in living if pid != self._pinned.pid]
        if left:
            shown = ", ".join(f"{pid} ({_shown(pid)})" for pid in left[:5])
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            self.notes.append(f"processes that it left behind go on: pid {shown}{more}")

    def _stop(self) -> TreeEnd:
        began_s = time.monotonic()
        tree = TreeStop(self._tree.look, longest_nap_s=0.05)
        if self._kill_by_s > began_s:
            tree.terminate(self._kill_by_s, self._nap)
        survivors = tree.sweep(time.monotonic() + KILL_DEADLINE_S)
        gone_after_s = time.monotonic() - began_s
        status = self._pinned.exit_status() if self._pinned.exited else None
        left = {(who["pid"], who["start_ticks"]) for who in survivors}
        killed = [who for who in tree.killed if (who["pid"], who["start_ticks"]) not in left]
        return TreeEnd("stop", *exit_of(status), gone_after_s, tree.terminated, killed, survivors[:NAMED_MAX])

    def _nap(self, seconds: float) -> float:
        self._asked_within(seconds)
        return self._kill_by_s  # it may have moved forward


def _shown(pid: int) -> str:
    return show_argv(argv_within(pid, _NAME_S))
