"""Proves that a process tree can never run again. Pure: two looks at it in, a proof or the reason against one out.

A tree stands still for good when each of its threads waits without a time limit and nothing outside the tree can end
any of these waits. A look is no snapshot, its readings are made one after another. The second look shows that no thread
was switched to since the first one, so that between the two looks all of them waited at once.

A false proof stops a tree that lives. So each wait must be of a kind that is known here, and all else is open.
SIGINT, SIGQUIT and SIGTERM count as requests to end, not to go on. Not visible in /proc, and so not ruled out: the
timer of `alarm` where SIGALRM has no handler.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_cachewatch.postmortem.standstill_calls import (
    CHILD_WAITS,
    FUTEX_PRIVATE,
    LOCKS,
    READS,
    WRITES,
    Open,
    awaited,
    check_process,
    check_thread,
    threads_of,
)
from prefect_cachewatch.postmortem.standstill_ends import closed_waits
from prefect_cachewatch.postmortem.standstill_model import TreeLook
from prefect_cachewatch.watching.sections import StuckWait


@dataclass(frozen=True)
class Proof:
    """The waits of a tree that can never run again."""

    waits: tuple[StuckWait, ...]


@dataclass(frozen=True)
class Wanted:
    """What must be known of the machine before the waits can be judged.

    Attributes:
        objects: pipes, sockets and eventfds, as `Descriptor.target`.
        sockets: (pid, descriptor) of sockets that a thread reads or writes directly.
        futexes: (pid, address) of futexes that other mappings may share.
        lockers: processes that wait for a file lock.
        children: whether a thread waits for children.
        eventfds: whether the kernel might set an eventfd that is waited for.
    """

    objects: frozenset[str]
    sockets: tuple[tuple[int, int], ...]
    futexes: tuple[tuple[int, int], ...]
    lockers: tuple[int, ...]
    children: bool
    eventfds: bool


def prove(first: TreeLook, second: TreeLook) -> Proof | str:
    """Judge two looks at the same tree.

    Args:
        first: the earlier one.
        second: the later one.

    Returns:
        The proof; or why there is none, as a clause.
    """
    for look in (first, second):
        if why := objection_to(look) or _objection_around(look):
            return why
    if _fingerprint(first) != _fingerprint(second):
        return "a thread has run between the two looks"
    return Proof(closed_waits(second))


def objection_to(look: TreeLook) -> str:
    """Say why a tree may run again, as far as its processes alone show it.

    Args:
        look: may lack `around`, and the descriptors of its processes.

    Returns:
        A clause; empty if nothing is known against a proof.

    Example:
        >>> objection_to(TreeLook())
        'no process of the tree is visible'
    """
    if look.refused:
        return look.refused
    if not any(process.threads for process in look.processes):
        return "no process of the tree is visible"
    try:
        for process in look.processes:
            check_process(process)
            for thread in process.threads:
                check_thread(process, thread)
    except Open as why:
        return str(why)
    return ""


def wanted_around(look: TreeLook) -> Wanted:
    """List what must be known of the machine to judge a look without an objection.

    Args:
        look: with its processes' descriptors.
    """
    objects, sockets, futexes, lockers, children = set[str](), [], [], [], False
    for process, thread in threads_of(look):
        for fd in awaited(process, thread):
            if (found := process.files.get(fd)) is not None:
                objects.add(found.target)
                if found.target.startswith("socket:") and thread.call in (*READS, *WRITES):
                    sockets.append((process.pid, fd))
        if thread.call == "futex" and not thread.arguments[1] & FUTEX_PRIVATE:
            futexes.append((process.pid, thread.arguments[0]))
        if thread.call in LOCKS:
            lockers.append(process.pid)
        children |= thread.call in CHILD_WAITS
    eventfds = any(target.startswith("eventfd:") for target in objects)
    return Wanted(
        frozenset(objects), tuple(sockets), tuple(dict.fromkeys(futexes)), tuple(dict.fromkeys(lockers)), children, eventfds
    )  # fmt: skip


def _objection_around(look: TreeLook) -> str:
    try:
        closed_waits(look)
    except Open as why:
        return str(why)
    return ""


def _fingerprint(look: TreeLook) -> dict[tuple[int, int, int], tuple[object, ...]]:
    return {
        (process.pid, process.start_ticks, thread.tid): (thread.call, thread.arguments, thread.switches)
        for process, thread in threads_of(look)
    }
