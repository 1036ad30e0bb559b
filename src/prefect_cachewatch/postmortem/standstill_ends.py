"""Whether something outside the tree can end a wait: pipe, socket, child, lock or memory, one function for each. Pure.

Each yields what the wait depends on, or raises `Open` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from prefect_cachewatch.postmortem.standstill_calls import (
    CHILD_WAITS,
    EPOLLS,
    FUTEX_PRIVATE,
    LOCKS,
    POLLS,
    READS,
    WRITES,
    Open,
    threads_of,
)
from prefect_cachewatch.postmortem.standstill_model import Around, Descriptor, TreeLook, TreeProcess, TreeThread
from prefect_cachewatch.watching.sections import StuckWait

_SET_BY_KERNEL = ("/dev/", "/sys/", "/proc/", "anon_inode:")
# Where a thread sleeps that waits for it. Of a descriptor that was closed under a waiting thread and opened anew, the
# thread waits for the former.
_SLEEPS = {"pipe": ("pipe_",), "socket": ("unix_", "sock_", "skb_"), "eventfd": ("eventfd_", "do_wait_intr")}
_PLAIN_DEVICES = frozenset(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))


def closed_waits(look: TreeLook) -> tuple[StuckWait, ...]:
    """Judge each wait, threads of a process that wait for the same thing together; raises `Open` at the first open one."""
    if look.around is None:
        raise Open("what the waits depend on was not looked up")
    told: dict[tuple[int, str, str], tuple[StuckWait, list[int]]] = {}
    for process, thread in threads_of(look):
        for wait in _WAYS[thread.call](process, thread, look, look.around):
            told.setdefault((wait.pid, wait.call, wait.waits_on), (wait, []))[1].append(thread.tid)
    return tuple(
        StuckWait(wait.pid, wait.process, len(tids), wait.call, wait.waits_on, wait.waits_for, wait.why)
        for wait, tids in told.values()
    )


def _stuck(process: TreeProcess, thread: TreeThread, waits_on: str, waits_for: list[int], why: str) -> StuckWait:
    return StuckWait(process.pid, process.name, 1, thread.call, waits_on, sorted(set(waits_for)), why)


def _on_futex(process: TreeProcess, thread: TreeThread, look: TreeLook, around: Around) -> Iterator[StuckWait]:
    address, operation = thread.arguments[:2]
    if operation & FUTEX_PRIVATE:
        yield _stuck(process, thread, "a lock in its memory", [process.pid], "only its own threads can release it")
        return
    found = around.memory.get((process.pid, address))
    who = f"pid {process.pid} waits for a lock in memory"
    if found is None:
        raise Open(f"{who} of which the mapping is not known")
    if not found.shared:
        if not found.writable:
            raise Open(f"{who} that it may not write")
        yield _stuck(process, thread, "a lock in its memory", [process.pid], "only its own threads can release it")
        return
    if found.named:
        raise Open(f"{who} that others can open: {found.path or 'no name'}")
    if found.others:
        raise Open(f"{who} that pid {found.others[0]} outside the tree has too")
    if found.hidden:
        raise Open(f"{who} that had a name, and who has it cannot all be seen from here")
    _need_whole_view(look, around)
    others = [other.pid for other in look.processes if other.threads]
    yield _stuck(process, thread, "a lock in shared memory", others, "only processes of the tree have this memory")


def _on_child(process: TreeProcess, thread: TreeThread, look: TreeLook, around: Around) -> Iterator[StuckWait]:
    living = [other.pid for other in look.processes if other.parent == process.pid and other.threads]
    if not living:
        raise Open(f"pid {process.pid} waits for a child that is not in the tree")
    if around.tracees:
        raise Open(f"pid {around.tracees[0]} outside is traced by one of the tree, which its stops may wake")
    yield _stuck(process, thread, "a child", living, "its children are in the tree and none of them runs")


def _on_lock(process: TreeProcess, thread: TreeThread, look: TreeLook, around: Around) -> Iterator[StuckWait]:
    who = f"pid {process.pid} waits for a file lock"
    blockers = around.blockers.get(process.pid)
    if not blockers:
        raise Open(f"{who}, and the kernel does not list who has it")
    inside = {other.pid for other in look.processes if other.threads}
    for blocker in blockers:
        if blocker.pid not in inside:
            raise Open(f"{who} that pid {blocker.pid} outside the tree has")
        if blocker.outside is not None:
            raise Open(f"{who} of which pid {blocker.outside} outside has a descriptor")
        _need_whole_view(look, around)
        yield _stuck(process, thread, f"file lock on {blocker.file}", [blocker.pid], "its holder is in the tree")


def _on_file(process: TreeProcess, thread: TreeThread, look: TreeLook, around: Around) -> Iterator[StuckWait]:
    fd = thread.arguments[0] & 0xFFFFFFFF
    found = _opened(process, fd)
    if found.target.startswith("socket:") and around.limits.get((process.pid, fd)) is not False:
        raise Open(f"pid {process.pid} waits on {found.target}, which may have a time limit of its own")
    if found.target.startswith(("eventpoll", "pidfd:")):
        raise Open(f"pid {process.pid} reads {found.target}")
    if not any(part in thread.channel for part in _SLEEPS.get(found.target.partition(":")[0], (thread.channel,))):
        raise Open(f"pid {process.pid} has {found.target} where it waits, but sleeps in {thread.channel}")
    yield _end_of(process, thread, found, look, around, writes=thread.call in WRITES)


def _on_poll(process: TreeProcess, thread: TreeThread, look: TreeLook, around: Around) -> Iterator[StuckWait]:
    if thread.polled is None:
        raise Open(f"pid {process.pid}: what it polls could not be read")
    if not thread.polled:
        raise Open(f"pid {process.pid} polls nothing, so it waits for a signal")
    for fd in thread.polled:
        yield _end_of(process, thread, _opened(process, fd), look, around, writes=None)


def _on_epoll(process: TreeProcess, thread: TreeThread, look: TreeLook, around: Around) -> Iterator[StuckWait]:
    watched = _opened(process, thread.arguments[0] & 0xFFFFFFFF).watched
    if not watched:
        raise Open(f"pid {process.pid}: what its epoll watches is nothing, or could not be read")
    for fd, inode in watched:
        found = _opened(process, fd)
        if found.inode != inode:  # the number was closed and reused, and another descriptor keeps the file watched
            raise Open(f"pid {process.pid}: its epoll watches a file that descriptor {fd} is no longer")
        yield _end_of(process, thread, found, look, around, writes=None)


def _opened(process: TreeProcess, fd: int) -> Descriptor:
    found = process.files.get(fd)
    if found is None:
        raise Open(f"pid {process.pid} waits on descriptor {fd}, which is not open")
    return found


def _end_of(
    process: TreeProcess,
    thread: TreeThread,
    file: Descriptor,
    look: TreeLook,
    around: Around,
    *,
    writes: bool | None,
) -> StuckWait:
    """Judge a wait on one file; `writes` says for what it waits, None for anything (a poll)."""
    target, who = file.target, f"pid {process.pid} waits on {file.target}"
    kind = target.partition(":")[0]
    if kind not in ("pipe", "socket", "eventfd", "pidfd"):
        raise Open(f"{who}, which something outside may set")
    if kind == "pidfd":
        watched = int(target.partition(":")[2])
        if not any(other.pid == watched and other.threads for other in look.processes):
            raise Open(f"{who}, which is not in the tree")
        return _stuck(process, thread, f"the end of pid {watched}", [watched], "it is in the tree and does not run")
    if (outside := around.holders.get(target)) is not None:
        raise Open(f"{who}, which pid {outside} outside the tree has open")
    _need_whole_view(look, around)
    if kind == "eventfd":
        _need_no_device(look, who)
        ends = _having(look, target)
        return _stuck(process, thread, "an eventfd", ends, "only processes of the tree have it")
    if kind == "pipe":
        reads = writes is False or (writes is None and "r" in file.access)
        ends = _having(look, target, "w" if reads else "r")
        if not ends:
            raise Open(f"{who}, of which nobody seems to have the other end")
        return _stuck(process, thread, target, ends, "the other end is open in the tree alone")
    peer = around.peers.get(int(target[8:-1]))
    other_end = f"socket:[{peer}]"
    if peer is None or not (ends := _having(look, other_end)):
        raise Open(f"{who}, whose other end is not in the tree")
    if (outside := around.holders.get(other_end)) is not None:
        raise Open(f"{who}, whose other end pid {outside} outside has")
    return _stuck(process, thread, target, ends, "the other end is open in the tree alone")


def _having(look: TreeLook, target: str, access: str = "") -> list[int]:
    return [
        process.pid
        for process in look.processes
        if process.threads and any(f.target == target and access in f.access for f in process.files.values())
    ]


def _need_no_device(look: TreeLook, who: str) -> None:
    """A driver, a group's memory limit or asynchronous I/O can set an eventfd from within the kernel."""
    for process in look.processes:
        if process.asynchronous_io:
            raise Open(f"{who} beside asynchronous I/O of pid {process.pid}")
        for file in process.files.values():
            if file.target.startswith(_SET_BY_KERNEL) and file.target not in _PLAIN_DEVICES:
                raise Open(f"{who} beside {file.target}, which pid {process.pid} has open")


def _need_whole_view(look: TreeLook, around: Around) -> None:
    """Nothing of the tree may be open elsewhere unseen, nor on its way to another process."""
    if around.unknown:
        raise Open(around.unknown)
    sockets = (file.target for process in look.processes for file in process.files.values())
    own = {int(target[8:-1]) for target in sockets if target.startswith("socket:[")}
    for inode in own & (around.connected | around.peers.keys()):
        if around.peers.get(inode) not in own:
            raise Open(f"the tree has socket:[{inode}] to a process outside, which may pass on any descriptor")


_WAYS: dict[str, Callable[[TreeProcess, TreeThread, TreeLook, Around], Iterator[StuckWait]]] = {
    "futex": _on_futex,
    **dict.fromkeys(CHILD_WAITS, _on_child),
    **dict.fromkeys(LOCKS, _on_lock),
    **dict.fromkeys(POLLS, _on_poll),
    **dict.fromkeys(EPOLLS, _on_epoll),
    **dict.fromkeys(chain(READS, WRITES), _on_file),
}
