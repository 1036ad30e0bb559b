"""What each thread and each process of the evidence waits for, in words; pure.

A process's wait is that of its main thread, unless that one only waits for its other threads.
It does not judge whether the wait is the fault: `diagnosis` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prefect_cachewatch.evidence.model import Evidence, ProcessFacts
from prefect_cachewatch.evidence.readings import SocketFacts, ThreadFacts
from prefect_cachewatch.supervise.open_files import OpenFile


class WaitKind(StrEnum):
    """The kinds of waiting that the diagnosis tells apart."""

    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"
    FUTEX = "futex"
    LOCK = "lock"
    CHILD = "child"
    DISK = "disk"
    DEVICE = "device"
    INPUT = "input"
    PIPE_READ = "pipe_read"
    PIPE_WRITE = "pipe_write"
    SOCKET = "socket"
    SLEEP = "sleep"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Wait:
    """One wait: its kind, the thread, the file or socket waited for, and whether it ends by itself."""

    kind: WaitKind
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

    @property
    def told(self) -> str:
        """The thread and its call, as the beginning of a line."""
        return f"thread {self.thread.tid} is in {self.call}"


_WRITES = frozenset(["write", "pwrite64", "writev", "pwritev", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice"])
_POLLS = frozenset(["poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"])
_SLEEPS = frozenset(["nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait", "restart_syscall"])
# In state D by vfork, as posix_spawn and Python's subprocess do it: until the child has replaced its program or ended.
_CHILDREN = frozenset(("wait4", "waitid", "vfork", "clone", "clone3"))
_FUTEXES = frozenset(("futex", "futex_waitv", "futex_wait"))
# If system calls may not be read: the name of the kernel function that the thread sleeps in.
_CHANNELS: tuple[tuple[str, WaitKind], ...] = (
    ("futex", WaitKind.FUTEX),
    ("do_wait", WaitKind.CHILD),
    ("kernel_wait4", WaitKind.CHILD),
    ("hrtimer_nanosleep", WaitKind.SLEEP),
    ("do_nanosleep", WaitKind.SLEEP),
    ("pipe_write", WaitKind.PIPE_WRITE),
    ("pipe_read", WaitKind.PIPE_READ),
    ("locks_lock_inode_wait", WaitKind.LOCK),
    ("flock_lock", WaitKind.LOCK),
    ("n_tty_read", WaitKind.INPUT),
    ("request_wait_answer", WaitKind.DISK),
    ("fuse_", WaitKind.DISK),
    ("rpc_wait", WaitKind.DISK),
    ("nfs_", WaitKind.DISK),
    ("folio_wait", WaitKind.DISK),
    ("io_schedule", WaitKind.DISK),
    ("inet_csk_accept", WaitKind.SOCKET),
    ("unix_stream", WaitKind.SOCKET),
    ("wait_for_connect", WaitKind.SOCKET),
    ("tcp_", WaitKind.SOCKET),
)
_OF_FILE = {
    "tty": WaitKind.INPUT,
    "socket": WaitKind.SOCKET,
    "device": WaitKind.DEVICE,
    "pipe": WaitKind.PIPE_READ,
}
# In a poll of several descriptors the first of these that is among them names the wait.
_POLL_ORDER = ("device", "socket", "tty", "pipe")


def thread_wait(thread: ThreadFacts, process: ProcessFacts, locked: bool = False) -> Wait:
    """Say what one thread waits for.

    Args:
        thread: the thread.
        process: the process it belongs to, for its open files and sockets.
        locked: whether /proc/locks says that the process waits for a file lock.

    Returns:
        The wait; `UNKNOWN` where nothing tells.

    Example:
        >>> from prefect_cachewatch.evidence.model import ProcessFacts, ThreadFacts
        >>> thread = ThreadFacts(1, state="S", syscall="wait4")
        >>> thread_wait(thread, ProcessFacts(1, 0, "sh")).kind
        <WaitKind.CHILD: 'child'>
    """

    def wait(kind: WaitKind, file: OpenFile | None = None, target: str = "") -> Wait:
        socket = next((s for s in process.sockets if file and s.fd == file.fd), None)
        return Wait(kind, process, thread, target or (file.target if file else ""), file, socket, thread.timed)

    call = thread.syscall
    if thread.state in "ZX":
        return wait(WaitKind.ENDED)
    if thread.state in "Tt":
        return wait(WaitKind.STOPPED)
    if thread.state == "R":
        return wait(WaitKind.RUNNING)
    if call in ("flock", "fcntl") and (locked or call == "flock"):
        return wait(WaitKind.LOCK, _file(process, thread.waits_on))
    if call in _FUTEXES:
        return wait(WaitKind.FUTEX)
    if call in _CHILDREN:
        return wait(WaitKind.CHILD)
    if call in _SLEEPS:
        return wait(WaitKind.SLEEP)
    if thread.path:
        kind = _kind_of_open(thread)
        return wait(kind, target=thread.path)
    file = _polled(process, thread.waits_on) if call in _POLLS else _file(process, thread.waits_on)
    if call in _POLLS and file is None:
        return wait(WaitKind.SLEEP)
    if call in ("connect", "accept", "accept4"):
        return wait(WaitKind.SOCKET, file)
    if file is not None and file.kind in _OF_FILE:
        kind = _OF_FILE[file.kind]
        if file.kind in ("pipe", "tty") and (call in _WRITES or (call in _POLLS and file.access == "w")):
            kind = WaitKind.PIPE_WRITE
        return wait(kind, file)
    if thread.state == "D" or call not in ("", "fault"):
        return wait(WaitKind.DISK if thread.state == "D" or file else _by_channel(thread), file)
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
    if not waits:
        return None
    main = waits[0]
    if main.kind not in (WaitKind.FUTEX, WaitKind.ENDED):
        return main
    # A main thread on a futex waits for one of the others (a join, a queue): they know more.
    for kind in _TELLING:
        for other in waits[1:]:
            if other.kind is kind:
                return other
    # One thread that sleeps beside many that wait is a heartbeat; if as many sleep, the others wait for them.
    sleeping = [other for other in waits if other.kind is WaitKind.SLEEP]
    waiting = sum(other.kind is WaitKind.FUTEX for other in waits)
    return sleeping[0] if sleeping and len(sleeping) >= waiting else main


_TELLING = (
    WaitKind.RUNNING,
    WaitKind.STOPPED,
    WaitKind.LOCK,
    WaitKind.DEVICE,
    WaitKind.DISK,
    WaitKind.PIPE_WRITE,
    WaitKind.INPUT,
    WaitKind.CHILD,
    WaitKind.SOCKET,
    WaitKind.PIPE_READ,
)


def waiting_leaves(evidence: Evidence) -> list[Wait]:
    """Find the processes that the others wait for: those that do not wait for one of the tree.

    A process in wait4, or reading a pipe that another process of the tree can write to, waits
    for that one; where a whole tree waits for itself, nothing is left.

    Args:
        evidence: the evidence.

    Returns:
        One wait a process that is alive.
    """
    locked = {lock.waiter_pid for lock in evidence.locks}
    writers = _pipe_ends(evidence.processes, "w")
    parents = {process.parent_pid for process in evidence.processes if process.state not in "ZX"}
    leaves = []
    for process in evidence.processes:
        wait = process_wait(process, process.pid in locked)
        if wait is None or wait.kind is WaitKind.ENDED:
            continue
        if wait.kind is WaitKind.CHILD and process.pid in parents:
            continue
        inode = wait.file.inode if wait.file else None
        others = writers.get(inode, set()) - {process.pid} if inode is not None else set()
        if wait.kind is WaitKind.PIPE_READ and others:
            continue
        leaves.append(wait)
    return leaves


def _pipe_ends(processes: Sequence[ProcessFacts], access: str) -> Mapping[int | None, set[int]]:
    ends: dict[int | None, set[int]] = {}
    for process in processes:
        for file in process.files:
            if file.kind == "pipe" and access in file.access and process.state not in "ZX":
                ends.setdefault(file.inode, set()).add(process.pid)
    return ends


def _file(process: ProcessFacts, fds: Sequence[int]) -> OpenFile | None:
    return next((file for file in process.files if fds and file.fd == fds[0]), None)


def _polled(process: ProcessFacts, fds: Sequence[int]) -> OpenFile | None:
    # An event loop polls a socket of its own, too, by which its threads and signals wake it.
    unix = {socket.fd for socket in process.sockets if socket.family == "unix"}
    polled = sorted((file for file in process.files if file.fd in fds), key=lambda file: file.fd in unix)
    for kind in _POLL_ORDER:
        for file in polled:
            if file.kind == kind:
                return file
    return None


def _kind_of_open(thread: ThreadFacts) -> WaitKind:
    if thread.path.startswith("/dev/"):
        return WaitKind.DEVICE
    if "fifo" in thread.wait_channel or "wait_for_partner" in thread.wait_channel:
        return WaitKind.PIPE_READ
    return WaitKind.DISK


def _by_channel(thread: ThreadFacts) -> WaitKind:
    for part, kind in _CHANNELS:
        if part in thread.wait_channel:
            return kind
    return WaitKind.DISK if thread.state == "D" else WaitKind.UNKNOWN
