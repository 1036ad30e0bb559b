"""The evidence in the form that rules need: what each process waits for, totals over the tree, printable names; pure.

A process's wait is that of its main thread, unless that one only waits for its other threads. Whether a wait is the fault is
judged by the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.evidence import crash_table
from prefect_cachewatch.evidence.last_words import LastWords, find_last_words
from prefect_cachewatch.evidence.model import Evidence, ProcessFacts, SocketFacts, ThreadFacts
from prefect_cachewatch.supervise.open_files import OpenFile

Kind = Literal[
    "running", "stopped", "ended", "futex", "lock", "child", "disk", "device", "input", "pipe_read", "pipe_write", "socket", "sleep",
    "unknown",
]  # fmt: skip


@dataclass(frozen=True)
class Wait:
    """One wait: its kind, the thread, the file or socket waited for, and whether it ends by itself."""

    kind: Kind
    process: ProcessFacts
    thread: ThreadFacts
    target: str = ""
    file: OpenFile | None = None
    socket: SocketFacts | None = None
    timed: bool | None = None

    @property
    def call(self) -> str:
        """The system call, or the kernel function, that the thread is in."""
        return self.thread.syscall or self.thread.wait_channel


_WRITES = frozenset(["write", "pwrite64", "writev", "pwritev", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice"])
_POLLS = frozenset(["poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"])
_BY_STATE: dict[str, Kind] = {"Z": "ended", "X": "ended", "T": "stopped", "t": "stopped", "R": "running"}
_BY_CALL: dict[Kind, tuple[str, ...]] = {
    "futex": ("futex", "futex_waitv", "futex_wait"),
    # In state D by vfork, as posix_spawn and Python's subprocess do it: until the child has replaced its program or ended.
    "child": ("wait4", "waitid", "vfork", "clone", "clone3"),
    "sleep": ("nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait", "restart_syscall"),
}
# If system calls may not be read: the name of the kernel function that the thread sleeps in.
_CHANNELS: dict[Kind, tuple[str, ...]] = {
    "futex": ("futex",),
    "child": ("do_wait", "kernel_wait4"),
    "sleep": ("hrtimer_nanosleep", "do_nanosleep"),
    "pipe_write": ("pipe_write",),
    "pipe_read": ("pipe_read", "fifo", "wait_for_partner"),
    "lock": ("locks_lock_inode_wait", "flock_lock"),
    "input": ("n_tty_read",),
    "disk": ("request_wait_answer", "fuse_", "rpc_wait", "nfs_", "folio_wait", "io_schedule"),
    "socket": ("inet_csk_accept", "unix_stream", "wait_for_connect", "tcp_"),
}
_OF_FILE: dict[str, Kind] = {"tty": "input", "socket": "socket", "device": "device", "pipe": "pipe_read"}
# In a poll of several descriptors the first of these that is among them names the wait.
_POLL_ORDER = ("device", "socket", "tty", "pipe")


def thread_wait(thread: ThreadFacts, process: ProcessFacts, locked: bool = False) -> Wait:
    """Say what one thread waits for.

    Args:
        thread: the thread.
        process: the process it belongs to, for its open files and sockets.
        locked: whether /proc/locks says that the process waits for a file lock.

    Returns:
        The wait; `unknown` where nothing tells.

    Example:
        >>> from prefect_cachewatch.evidence.model import ProcessFacts, ThreadFacts
        >>> thread = ThreadFacts(1, state="S", syscall="wait4")
        >>> thread_wait(thread, ProcessFacts(1, 0, "sh")).kind
        'child'
    """

    def wait(kind: Kind, file: OpenFile | None = None, target: str = "") -> Wait:
        socket = next((s for s in process.sockets if file and s.fd == file.fd), None)
        return Wait(kind, process, thread, target or (file.target if file else ""), file, socket, thread.timed)

    call = thread.syscall
    if thread.state in _BY_STATE:
        return wait(_BY_STATE[thread.state])
    if call in ("flock", "fcntl") and (locked or call == "flock"):
        return wait("lock", _file(process, thread.waits_on))
    for kind, calls in _BY_CALL.items():
        if call in calls:
            return wait(kind)
    if thread.path:
        kind = "device" if thread.path.startswith("/dev/") else _by_channel(thread)
        return wait(kind if kind in ("device", "pipe_read") else "disk", target=thread.path)
    file = _polled(process, thread.waits_on) if call in _POLLS else _file(process, thread.waits_on)
    if call in _POLLS and file is None:
        return wait("sleep")
    if call in ("connect", "accept", "accept4"):
        return wait("socket", file)
    if file is not None and file.kind in _OF_FILE:
        writes = call in _WRITES or (call in _POLLS and file.access == "w")
        return wait("pipe_write" if writes and file.kind in ("pipe", "tty") else _OF_FILE[file.kind], file)
    if thread.state == "D" or (call not in ("", "fault") and file):
        return wait("disk", file)
    return wait(_by_channel(thread), file)


def process_wait(process: ProcessFacts, locked: bool = False) -> Wait | None:
    """Say what a process as a whole waits for.

    Args:
        process: the process.
        locked: whether /proc/locks says that it waits for a file lock.

    Returns:
        The telling wait of its threads; None if it has none that can be read.
    """
    waits = [thread_wait(thread, process, locked) for thread in process.threads]
    if not waits or waits[0].kind not in ("futex", "ended"):
        return waits[0] if waits else None
    # A main thread on a futex waits for one of the others (a join, a queue): they know more.
    telling = [other for other in waits[1:] if other.kind in _TELLING]
    if telling:
        return min(telling, key=lambda other: _TELLING.index(other.kind))
    # One thread that sleeps beside many that wait is a heartbeat; if as many sleep, the others wait for them.
    sleeping = [other for other in waits if other.kind == "sleep"]
    waiting = sum(other.kind == "futex" for other in waits)
    return sleeping[0] if sleeping and len(sleeping) >= waiting else waits[0]


_TELLING: tuple[Kind, ...] = (
    "running", "stopped", "lock", "device", "disk", "pipe_write", "input",
    "child", "socket", "pipe_read",
)  # fmt: skip


def _file(process: ProcessFacts, fds: Sequence[int]) -> OpenFile | None:
    return next((file for file in process.files if fds and file.fd == fds[0]), None)


def _polled(process: ProcessFacts, fds: Sequence[int]) -> OpenFile | None:
    # An event loop polls a socket of its own, too, by which its threads and signals wake it.
    unix = {socket.fd for socket in process.sockets if socket.family == "unix"}
    polled = (file for file in process.files if file.fd in fds and file.kind in _POLL_ORDER)
    return min(polled, key=lambda file: (_POLL_ORDER.index(file.kind), file.fd in unix), default=None)


def _by_channel(thread: ThreadFacts) -> Kind:
    for kind, parts in _CHANNELS.items():
        if any(part in thread.wait_channel for part in parts):
            return kind
    return "disk" if thread.state == "D" else "unknown"


_TURNS, _TURNS_PER_S = 3, 0.15
_ANY_EXCEPTION = 20

#: Of a process that another program started.
UNSEEN = "its output is not seen by an observer"
NO_SPACE, QUOTA, READ_ONLY, DENIED = map(
    re.compile, (crash_table.NO_SPACE, crash_table.QUOTA, crash_table.READ_ONLY, crash_table.DENIED)
)


def shown(name: str, limit: int = 100) -> str:
    """Write a name from outside into a sentence: no control characters, not too long.

    Example:
        >>> shown("a\\nb")
        'a\\\\nb'
    """
    return for_terminal(name, limit)


def quoted(*lines: str) -> tuple[str, ...]:
    """Write lines of an output, without those that are empty, as a cause's `said`."""
    return tuple(shown(line.strip(), 240) for line in lines if line.strip())


def who(process: ProcessFacts) -> str:
    """Name a process in a sentence.

    Example:
        >>> who(ProcessFacts(7, 1, "python"))
        'pid 7 (python)'
    """
    return f"pid {process.pid} ({shown(process.name, 40)})"


def hot_stack(process: ProcessFacts) -> tuple[str, ...]:
    """Pick the Python stack that explains a process best: of a running thread, else of the main one."""
    running = {thread.tid for thread in process.threads if thread.state == "R"}
    threads = [thread for thread in process.python_threads if thread.frames]
    threads.sort(key=lambda one: (one.tid not in running, one.tid != process.pid and one.name != "MainThread"))
    return threads[0].frames if threads else ()


def python_line(process: ProcessFacts) -> str:
    """Write the Python stack of a process as a line of evidence; empty without one."""
    frames = hot_stack(process)
    return f"python: {' < '.join(shown(frame, 60) for frame in frames[:4])}" if frames else ""


@dataclass(frozen=True)
class View:
    """Totals and leaves of one evidence; rates need an earlier sample and are None without one."""

    evidence: Evidence

    @property
    def window_s(self) -> float:
        """Seconds that the deltas cover."""
        return self.evidence.window_s

    @cached_property
    def alive(self) -> list[ProcessFacts]:
        """The processes that have not ended."""
        return [process for process in self.evidence.processes if process.state not in "ZX"]

    @cached_property
    def ended_itself(self) -> bool:
        """Whether the generator failed by itself, rather than being stopped."""
        return not self.alive and (self.evidence.exit_code is not None or bool(self.evidence.exit_signal))

    @cached_property
    def reports_error(self) -> bool:
        """Whether the generator ended by a signal or with an exit code other than 0."""
        return bool(self.evidence.exit_code or self.evidence.exit_signal)

    @cached_property
    def last_words(self) -> LastWords | None:
        """The last line of the output that explains an end: of the generator, or of a process that the others wait for."""
        last = find_last_words(self.evidence.log_tail)
        if last is not None and last.rule.weight >= _ANY_EXCEPTION:
            return last
        kept = find_last_words(self.evidence.log_kept)
        return kept if kept is not None and (last is None or kept.rule.weight > last.rule.weight) else last

    @cached_property
    def waits(self) -> list[Wait]:
        """The wait of every process."""
        locked = {lock.waiter_pid for lock in self.evidence.locks}
        found = (process_wait(process, process.pid in locked) for process in self.alive)
        return [wait for wait in found if wait is not None and wait.kind != "ended"]

    @cached_property
    def leaves(self) -> list[Wait]:
        """The waits of the processes that the others wait for; where a whole tree waits for itself, there are none.

        A process in wait4, or reading a pipe or a connection whose other end another process of the tree has, waits for
        that one.
        """
        parents = {process.parent_pid for process in self.alive}
        pipes = [
            (file.inode, one.pid)
            for one in self.alive
            for file in one.files
            if file.kind == "pipe" and "w" in file.access
        ]
        ends = [((each.local, each.remote), one.pid) for one in self.alive for each in one.sockets]

        def waits_inside(wait: Wait) -> bool:
            pid, socket = wait.process.pid, wait.socket
            if wait.kind == "pipe_read" and wait.file is not None:
                return any(inode == wait.file.inode is not None and writer != pid for inode, writer in pipes)
            if wait.kind == "socket" and socket is not None and socket.state == "ESTABLISHED":
                return any(end == (socket.remote, socket.local) and other != pid for end, other in ends)
            return wait.kind == "child" and pid in parents

        return [wait for wait in self.waits if not waits_inside(wait)]

    @cached_property
    def files(self) -> list[OpenFile]:
        """The regular files that are open."""
        return [file for process in self.alive for file in process.files if file.kind == "file"]

    @cached_property
    def cpu_cores(self) -> float | None:
        """CPU used in the window, in cores."""
        return self._rate(process.cpu_in_window_s for process in self.alive)

    @cached_property
    def wanted_cores(self) -> float | None:
        """CPU used and waited for in the window, in cores: the use on an idle machine."""
        wanted = self._rate(process.runnable_in_window_s for process in self.alive)
        return wanted if wanted is None or self.cpu_cores is None else max(wanted, self.cpu_cores)

    @cached_property
    def written_bytes(self) -> int | None:
        """Bytes written in the window."""
        io = [process.io_in_window.written for process in self.alive if process.io_in_window]
        return sum(io) if io else None

    @cached_property
    def read_bytes_per_s(self) -> float | None:
        """Bytes read a second in the window."""
        return self._rate(process.io_in_window.read for process in self.alive if process.io_in_window)

    @cached_property
    def major_faults_per_s(self) -> float | None:
        """Page faults that needed a disk, a second."""
        return self._rate(process.major_faults_in_window for process in self.alive)

    @cached_property
    def polls(self) -> bool:
        """Whether a process wakes up again and again."""
        least = max(_TURNS, _TURNS_PER_S * self.window_s)
        return any((process.turns_in_window or 0) >= least for process in self.alive)

    def leaf(self, kind: Kind) -> Wait | None:
        """Find the first leaf of a kind."""
        return next((wait for wait in self.leaves if wait.kind == kind), None)

    def log_line(self, pattern: re.Pattern[str]) -> str:
        """Find the last of the log's last 200 lines that matches; empty if none does."""
        lines = self.evidence.log_tail.splitlines()[-200:]
        return next((line.strip() for line in reversed(lines) if pattern.search(line)), "")

    def names_cache(self, text: str) -> bool:
        """Say whether a text names a path in one of the cache directories."""
        return any(facts.path in text for facts in self.evidence.filesystems)

    def _rate(self, values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / self.window_s if known and self.window_s > 1e-3 else None
