"""Supervises a process that another program started: sees its end and, on demand, stops its whole process tree.

It starts nothing, freezes nothing and, unless told to stop, ends nothing: if the watcher dies, the process goes on. Its
limits are in docs/servers.md.
"""

from __future__ import annotations

import os
import select
import threading
import time

from prefect_cachewatch.common.text import show_argv
from prefect_cachewatch.supervise.pinned_process import PinnedProcess
from prefect_cachewatch.supervise.proc import ProcessStat, descendants, is_alive, lineage, read_stat
from prefect_cachewatch.supervise.reading import argv_within
from prefect_cachewatch.supervise.stop_tree import KILL_DEADLINE_S, NAMED_MAX, TreeStop
from prefect_cachewatch.supervise.supervisor import RunningServer, Supervised, TreeEnd, exit_of

_LOOK_EVERY_S = 0.5
# Looking at the process tree costs at most a hundredth of one core.
_LOOK_SHARE = 100
_NAME_S = 0.2
_DEAD = "ZXx"


class ProcessTree:
    """The processes of an adopted tree; never this process or its ancestors.

    Only a subreaper keeps a tree together, and it must exist from the start. An observer looks repeatedly instead. It
    knows the descendants that it has seen, and the processes that they started since. A process that left the tree
    between two looks is not known.

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
        self._known: dict[int, int] = {pid: start_ticks}

    def look(self) -> dict[int, ProcessStat]:
        """List the tree's living processes by pid."""
        living: dict[int, ProcessStat] = {}
        for pid, ticks in self._known.items():
            found = read_stat(pid)
            if pid in living or found is None or found.start_ticks != ticks or found.state in _DEAD:
                continue  # what is in it already has everything below it there too
            below = descendants(pid)
            # The parent is still the same process after the look, so what we found below its pid belongs to it.
            if is_alive(pid, ticks) or not below:
                living |= {pid: found} | {child: stat for child, stat in below.items() if child not in living}
        for pid in lineage(os.getpid()):
            living.pop(pid, None)
        self._known = {pid: found.start_ticks for pid, found in living.items()}
        return living


class AttachedProcess(Supervised):
    """One adopted process with its tree; a thread waits for its end.

    Args:
        pinned: the process, pinned; closed by `close`.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, pinned: PinnedProcess, grace_s: float) -> None:
        super().__init__()
        self.process, self._grace_s = pinned, grace_s
        self._tree = ProcessTree(pinned.pid, pinned.start_ticks)
        self._lock = threading.RLock()  # a signal handler may call in while its own thread holds it
        self._asked, self._kill_by_s = "", float("inf")
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="cachewatch-adopted", daemon=True)

    def start(self) -> None:
        """Start waiting for its end."""
        self._tree.look()
        self.pid, self.root_pids = self.process.pid, [self.process.pid]
        self._thread.start()

    def stop(self, grace_s: float | None = None) -> None:
        """Request a stop of all of it and return at once; a further call can only shorten the grace period.

        Args:
            grace_s: overrides the grace period.
        """
        self._ask("stop", time.monotonic() + (self._grace_s if grace_s is None else grace_s))

    def let_go(self) -> None:
        """End the observation without stopping the process; no effect once a stop has begun."""
        self._ask("released")

    def freeze(self, timeout_s: float) -> list[int]:
        """Freeze nothing: a process that is not ours would stay frozen if this process were killed meanwhile."""
        return []

    def running(self) -> RunningServer | None:
        """Return nothing: it is not handed over, since it was never held."""
        return None

    def release(self, timeout_s: float) -> str | None:
        """Say that there is nothing to release."""
        return "it was never held"

    def close(self) -> None:
        """Release what was held; a process that still runs goes on."""
        self.let_go()
        if self._thread.ident is not None:
            self._thread.join(KILL_DEADLINE_S)
        if not self._thread.is_alive() and self._wake >= 0:
            with self._lock:
                os.close(self._wake)
                self._wake = -1
            self.process.close()

    def _ask(self, what: str, kill_by_s: float = float("inf")) -> None:
        with self._lock:
            self._asked = self._asked or what
            self._kill_by_s = min(self._kill_by_s, kill_by_s)
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        try:
            self.report = self._observe()
        except Exception as error:  # noqa: BLE001 - a waiting thread must not wait indefinitely
            self.notes.append(f"the process is no longer observed: {type(error).__name__}: {error}")
        finally:
            self.gone.set()

    def _observe(self) -> TreeEnd:
        poll, pause_s = select.poll(), _LOOK_EVERY_S
        poll.register(self._wake, select.POLLIN)
        poll.register(self.process.fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(pause_s * 1000)}
            began_s = time.monotonic()
            living = self._tree.look()
            self.root_pids = list(living) or self.root_pids  # a process that moved to init belongs to the evidence too
            if self.process.fd in ready:
                self._note_left(living)
                self.leader_exit = exit_of(self.process.exit_status())
                return TreeEnd("exited", *self.leader_exit, gone_after_s=0.0)
            if self._asked == "stop":
                return self._stop()
            if self._asked:
                return TreeEnd("released", None, None, gone_after_s=0.0)
            pause_s = max(_LOOK_EVERY_S, _LOOK_SHARE * (time.monotonic() - began_s))

    def _note_left(self, living: dict[int, ProcessStat]) -> None:
        left = [pid for pid in living if pid != self.process.pid]
        if left:
            shown = ", ".join(f"{pid} ({show_argv(argv_within(pid, _NAME_S))})" for pid in left[:5])
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            self.notes.append(f"processes that it left behind go on: pid {shown}{more}")

    def _stop(self) -> TreeEnd:
        began_s = time.monotonic()
        tree = TreeStop(self._tree.look, longest_nap_s=0.05)
        if self._kill_by_s > began_s:
            tree.terminate(self._kill_by_s, self._nap)
        survivors = tree.sweep(time.monotonic() + KILL_DEADLINE_S)
        gone_after_s = time.monotonic() - began_s
        status = self.process.exit_status() if self.process.exited else None
        left = {(who["pid"], who["start_ticks"]) for who in survivors}
        killed = [who for who in tree.killed if (who["pid"], who["start_ticks"]) not in left]
        return TreeEnd("stop", *exit_of(status), gone_after_s, tree.terminated, killed, survivors[:NAMED_MAX])

    def _nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return self._kill_by_s  # it may have moved forward
