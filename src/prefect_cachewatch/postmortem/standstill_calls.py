"""What a thread's system call says: whether it is one that waits for ever, and on which descriptors. Pure.

Any other call, state or process is open, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from prefect_cachewatch.postmortem.standstill_model import TreeLook, TreeProcess, TreeThread

FUTEX_PRIVATE, _FUTEX_COMMAND = 128, 127
_FUTEX_WAITS = (0, 6, 9, 13)  # WAIT, LOCK_PI, WAIT_BITSET, LOCK_PI2
_F_SETLKW = 7
_32_BIT = 1 << 32
# Handlers of these may be there: faults, the end of a child, a closed pipe, a request to end, and glibc's own two.
_ALLOWED = sum(1 << number - 1 for number in (2, 3, 4, 5, 6, 7, 8, 11, 13, 15, 17, 25, 31, 32, 33))
_NEVER_OPEN = {
    "anon_inode:[io_uring]": "an io_uring",
    "anon_inode:[userfaultfd]": "a userfaultfd",
    "anon_inode:[fanotify]": "a fanotify",
}
READS, WRITES = ("read", "readv", "recvfrom", "recvmsg"), ("write", "writev", "sendto", "sendmsg")
CHILD_WAITS = ("wait4", "waitid")
LOCKS = ("flock", "fcntl")
POLLS = ("poll", "ppoll", "select", "pselect6")
EPOLLS = ("epoll_wait", "epoll_pwait", "epoll_pwait2")
# The kernel function that a thread sleeps in must fit its call: one that is frozen, or stopped for a signal or a filter
# of system calls, shows the call that it is about to leave.
_CHANNELS = {
    "futex": ("futex", "rt_mutex"),
    **dict.fromkeys(CHILD_WAITS, ("do_wait", "kernel_wait")),
    **dict.fromkeys(LOCKS, ("lock", "setlk")),
    **dict.fromkeys(POLLS, ("poll", "select")),
    **dict.fromkeys(EPOLLS, ("ep_poll", "epoll")),
    **dict.fromkeys((*READS, *WRITES), ("pipe_", "unix_", "sock_", "skb_", "eventfd_", "do_wait_intr")),
}


class Open(Exception):
    """A reason for which the tree may run again."""


def threads_of(look: TreeLook) -> Iterator[tuple[TreeProcess, TreeThread]]:
    """List all threads of a tree, each with its process."""
    return ((process, thread) for process in look.processes for thread in process.threads)


def check_process(process: TreeProcess) -> None:
    """Raise `Open` if a process has what may wake one of its threads, whatever they wait on."""
    who = f"pid {process.pid}"
    if process.caught & ~_ALLOWED:
        number = next(n for n in range(1, 65) if process.caught & ~_ALLOWED & 1 << n - 1)
        raise Open(f"{who} has a handler for signal {number}, which may let it go on")
    if process.timers is None:
        raise Open(f"the timers of {who} cannot be read (by this user, or on this kernel)")
    if process.timers:
        raise Open(f"{who} has a timer")
    for file in process.files.values():
        if file.target in _NEVER_OPEN:
            raise Open(f"{who} has {_NEVER_OPEN[file.target]}")
        if file.armed:
            raise Open(f"{who} has a timer as a file descriptor that is set")


def check_thread(process: TreeProcess, thread: TreeThread) -> None:
    """Raise `Open` unless a thread sleeps in a call without a time limit that is known here."""
    who = f"thread {thread.tid} of pid {process.pid}"
    if thread.tracer_pid:
        raise Open(f"{who} is traced by pid {thread.tracer_pid}")
    if thread.state != "S":
        raise Open(f"{who} is in state {thread.state}")
    if thread.call not in _CHANNELS or len(thread.arguments) != 6:
        raise Open(
            f"{who} is not in a call that is known to wait for ever ({thread.call or 'unknown, or this user may not read it'})"
        )
    if thread.stack_pointer < _32_BIT:
        raise Open(f"{who} runs 32-bit code, whose system calls are not known here")
    if not any(part in thread.channel for part in _CHANNELS[thread.call]):
        raise Open(f"{who} is in {thread.call}, but sleeps in {thread.channel or 'an unknown place'}")
    if _has_limit(thread):
        raise Open(f"{who} waits in {thread.call} with a time limit")


def _has_limit(thread: TreeThread) -> bool:
    call, given = thread.call, thread.arguments
    if call == "futex":
        return given[1] & _FUTEX_COMMAND not in _FUTEX_WAITS or given[3] != 0
    if call in ("poll", "epoll_wait", "epoll_pwait"):
        return given[2 if call == "poll" else 3] & 0xFFFFFFFF != 0xFFFFFFFF
    if call == "fcntl":
        return given[1] != _F_SETLKW  # locks of an open file description: the kernel does not say who waits
    place = {"ppoll": 2, "select": 4, "pselect6": 4, "epoll_pwait2": 3}.get(call)
    return place is not None and given[place] != 0


def awaited(process: TreeProcess, thread: TreeThread) -> tuple[int, ...]:
    """What a thread waits on; of an epoll what that watches."""
    fd = thread.arguments[0] & 0xFFFFFFFF
    if thread.call in (*READS, *WRITES):
        return (fd,)
    if thread.call in POLLS:
        return thread.polled or ()
    if thread.call in EPOLLS and (found := process.files.get(fd)) is not None:
        return tuple(number for number, _ in found.watched or ())
    return ()
