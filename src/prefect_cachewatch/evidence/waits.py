"""What each thread and each process of the evidence waits for, in words; pure.

A process's wait is that of its main thread, unless that one only waits for its other threads.
It does not judge whether the wait is the fault: `rules` does.
"""

from __future__ import annotations

from collections.abc import Sequence
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
_BY_STATE = dict.fromkeys("ZX", WaitKind.ENDED) | dict.fromkeys("Tt", WaitKind.STOPPED) | {"R": WaitKind.RUNNING}
_BY_CALL = {
    WaitKind.FUTEX: ("futex", "futex_waitv", "futex_wait"),
    # In state D by vfork, as posix_spawn and Python's subprocess do it: until the child has replaced its program or ended.
    WaitKind.CHILD: ("wait4", "waitid", "vfork", "clone", "clone3"),
    WaitKind.SLEEP: ("nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait", "restart_syscall"),
}
# If system calls may not be read: the name of the kernel function that the thread sleeps in.
_CHANNELS = {
    WaitKind.FUTEX: ("futex",),
    WaitKind.CHILD: ("do_wait", "kernel_wait4"),
    WaitKind.SLEEP: ("hrtimer_nanosleep", "do_nanosleep"),
    WaitKind.PIPE_WRITE: ("pipe_write",),
    WaitKind.PIPE_READ: ("pipe_read",),
    WaitKind.LOCK: ("locks_lock_inode_wait", "flock_lock"),
    WaitKind.INPUT: ("n_tty_read",),
    WaitKind.DISK: ("request_wait_answer", "fuse_", "rpc_wait", "nfs_", "folio_wait", "io_schedule"),
    WaitKind.SOCKET: ("inet_csk_accept", "unix_stream", "wait_for_connect", "tcp_"),
}
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
    if thread.state in _BY_STATE:
        return wait(_BY_STATE[thread.state])
    if call in ("flock", "fcntl") and (locked or call == "flock"):
        return wait(WaitKind.LOCK, _file(process, thread.waits_on))
    for kind, calls in _BY_CALL.items():
        if call in calls:
            return wait(kind)
    if thread.path:
        return wait(_kind_of_open(thread), target=thread.path)
    file = _polled(process, thread.waits_on) if call in _POLLS else _file(process, thread.waits_on)
    if call in _POLLS and file is None:
        return wait(WaitKind.SLEEP)
    if call in ("connect", "accept", "accept4"):
        return wait(WaitKind.SOCKET, file)
    if file is not None and file.kind in _OF_FILE:
        writes = call in _WRITES or (call in _POLLS and file.access == "w")
        return wait(WaitKind.PIPE_WRITE if writes and file.kind in ("pipe", "tty") else _OF_FILE[file.kind], file)
    if thread.state == "D" or (call not in ("", "fault") and file):
        return wait(WaitKind.DISK, file)
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
    telling = [other for other in waits[1:] if other.kind in _TELLING]
    if telling:
        return min(telling, key=lambda other: _TELLING.index(other.kind))
    # One thread that sleeps beside many that wait is a heartbeat; if as many sleep, the others wait for them.
    sleeping = [other for other in waits if other.kind is WaitKind.SLEEP]
    waiting = sum(other.kind is WaitKind.FUTEX for other in waits)
    return sleeping[0] if sleeping and len(sleeping) >= waiting else main


_TELLING = (
    WaitKind.RUNNING, WaitKind.STOPPED, WaitKind.LOCK, WaitKind.DEVICE, WaitKind.DISK, WaitKind.PIPE_WRITE, WaitKind.INPUT,
    WaitKind.CHILD, WaitKind.SOCKET, WaitKind.PIPE_READ,
)  # fmt: skip


def waiting_leaves(evidence: Evidence) -> list[Wait]:
    """Find the processes that the others wait for: those that do not wait for one of the tree.

    A process in wait4, or reading a pipe or a connection whose other end another process of the tree has, waits for that
    one; where a whole tree waits for itself, nothing is left.

    Args:
        evidence: the evidence.

    Returns:
        One wait a process that is alive.
    """
    alive = [process for process in evidence.processes if process.state not in "ZX"]
    locked, parents = {lock.waiter_pid for lock in evidence.locks}, {process.parent_pid for process in alive}
    writers: dict[int | str | None, set[int]] = {}
    for process in alive:
        for socket in process.sockets:
            writers.setdefault(f"{socket.local} {socket.remote}", set()).add(process.pid)
        for file in process.files:
            if file.kind == "pipe" and "w" in file.access:
                writers.setdefault(file.inode, set()).add(process.pid)
    leaves = []
    for process in evidence.processes:
        wait = process_wait(process, process.pid in locked)
        if wait is None or wait.kind is WaitKind.ENDED or (wait.kind is WaitKind.CHILD and process.pid in parents):
            continue
        end: int | str | None = None
        if wait.kind is WaitKind.PIPE_READ and wait.file:
            end = wait.file.inode
        elif wait.kind is WaitKind.SOCKET and wait.socket and wait.socket.state == "ESTABLISHED":
            end = f"{wait.socket.remote} {wait.socket.local}"
        others = writers.get(end, set()) - {process.pid} if end is not None else set()
        if not others:
            leaves.append(wait)
    return leaves


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
    found = (kind for kind, parts in _CHANNELS.items() if any(part in thread.wait_channel for part in parts))
    return next(found, WaitKind.DISK if thread.state == "D" else WaitKind.UNKNOWN)
