"""The proof that a tree stands still as a pure function: literals in, a proof or the reason against one out."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from tests.standing_simulation import run_hours

from prefect_cachewatch.postmortem.standstill import Proof, prove, wanted_around
from prefect_cachewatch.postmortem.standstill_model import (
    Around,
    Blocker,
    Descriptor,
    FutexMemory,
    TreeLook,
    TreeProcess,
    TreeThread,
)

PRIVATE, SHARED = 0x80, 0
STACK = 0x7FFF00000000
PLACES = {
    "futex": "futex_do_wait", "wait4": "do_wait", "waitid": "do_wait", "read": "pipe_read", "write": "pipe_write", "flock": "locks_lock_inode_wait",
    "fcntl": "fcntl_setlk", "poll": "do_poll.constprop.0", "ppoll": "poll_schedule_timeout.constprop.0", "select": "do_select",
    "pselect6": "do_select", "epoll_wait": "ep_poll", "epoll_pwait": "ep_poll", "epoll_pwait2": "ep_poll", "recvfrom": "unix_stream_read_generic",
}  # fmt: skip


def thread(call: str, *arguments: int, tid: int = 7, **more) -> TreeThread:
    given = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    return TreeThread(tid, "S", call, given, STACK, **{"channel": PLACES.get(call, "x"), "switches": (5, 1), **more})


def process(*threads: TreeThread, pid: int = 7, **more) -> TreeProcess:
    return TreeProcess(pid, 100, more.pop("parent", 1), "gen", threads=threads, **more)


def look(*processes: TreeProcess, **around) -> TreeLook:
    return TreeLook(processes, Around(**around))


def judged(*processes: TreeProcess, **around) -> str:
    """The reason; `proven` for a proof."""
    told = prove(look(*processes, **around), look(*processes, **around))
    return "proven" if isinstance(told, Proof) else told


LOCK = thread("futex", 0x1000, PRIVATE, 2)
NEVER = (1 << 64) - 1


def test_a_lock_in_its_own_memory_is_proven() -> None:
    told = prove(look(process(LOCK)), look(process(LOCK)))
    assert isinstance(told, Proof)
    (wait,) = told.waits
    assert (wait.pid, wait.threads, wait.call, wait.waits_on, wait.waits_for) == (
        7,
        1,
        "futex",
        "a lock in its memory",
        [7],
    )


def test_threads_that_wait_alike_are_told_together() -> None:
    told = prove(*[look(process(LOCK, replace(LOCK, tid=8), replace(LOCK, tid=9)))] * 2)
    assert isinstance(told, Proof)
    assert [wait.threads for wait in told.waits] == [3]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (thread("futex", 0x1000, PRIVATE, 2, 0x7FF0), "futex with a time limit"),
        (thread("futex", 0x1000, PRIVATE | 1, 2), "futex with a time limit"),
        (thread("futex", 0x1000, PRIVATE | 256 | 9, 2), "proven"),
        (thread("clock_nanosleep"), "not in a call that is known"),
        (thread("rt_sigsuspend"), "not in a call that is known"),
        (thread(""), "(unknown, or"),
        (replace(LOCK, arguments=()), "not in a call that is known"),
        (replace(LOCK, state="R"), "in state R"),
        (replace(LOCK, state="D"), "in state D"),
        (replace(LOCK, state="T"), "in state T"),
        (replace(LOCK, tracer_pid=3), "traced by pid 3"),
        (replace(LOCK, channel="do_freezer_trap"), "sleeps in do_freezer_trap"),
        (replace(LOCK, channel="do_signal_stop"), "sleeps in do_signal_stop"),
        (replace(LOCK, channel="0"), "sleeps in 0"),
        (replace(LOCK, channel=""), "sleeps in an unknown place"),
        (replace(LOCK, stack_pointer=0xFFFFD000), "32-bit code"),
    ],
)
def test_a_thread_is_open_unless_it_waits_without_a_limit_in_a_known_call(changed: TreeThread, why: str) -> None:
    assert why in judged(process(LOCK, replace(changed, tid=8)))


@pytest.mark.parametrize("signal", range(1, 65))
def test_a_handler_for_a_signal_that_may_let_it_go_on_keeps_it_open(signal: int) -> None:
    harmless = signal in (2, 3, 4, 5, 6, 7, 8, 11, 13, 15, 17, 25, 31, 32, 33)
    assert (judged(process(LOCK, caught=1 << signal - 1)) == "proven") is harmless


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"timers": True}, "has a timer"),
        ({"timers": None}, "cannot be read"),
        ({"files": {3: Descriptor("anon_inode:[io_uring]")}}, "io_uring"),
        ({"files": {3: Descriptor("anon_inode:[userfaultfd]")}}, "userfaultfd"),
        ({"files": {3: Descriptor("anon_inode:[fanotify]")}}, "fanotify"),
        ({"files": {3: Descriptor("timerfd", armed=True)}}, "that is set"),
        ({"files": {3: Descriptor("timerfd"), 4: Descriptor("/dev/nvidia0"), 5: Descriptor("socket:[9]")}}, "proven"),
    ],
)
def test_what_a_process_has_may_keep_it_open(more: dict, why: str) -> None:
    assert why in judged(process(LOCK, **more))


def test_two_looks_must_be_of_the_same_threads_none_of_which_has_run() -> None:
    first = look(process(LOCK))
    others = [
        look(process(replace(LOCK, switches=(6, 1)))),
        look(process(replace(LOCK, switches=(5, 2)))),
        look(process(LOCK, replace(LOCK, tid=8))),
        look(replace(process(LOCK), start_ticks=101)),
        look(process(replace(LOCK, arguments=(0x2000, PRIVATE, 2, 0, 0, 0)))),
    ]
    assert {prove(first, other) for other in others} == {"a thread has run between the two looks"}
    assert prove(first, replace(first, refused="too late")) == "too late"
    assert prove(replace(first, around=None), first) == "what the waits depend on was not looked up"
    assert prove(TreeLook(), TreeLook()) == "no process of the tree is visible"


def test_a_wait_for_children_needs_a_living_one_in_the_tree() -> None:
    parent, child = process(thread("wait4", NEVER), pid=7), process(LOCK, pid=8, parent=7)
    assert judged(parent, child) == "proven"
    assert "not in the tree" in judged(parent)
    assert "not in the tree" in judged(parent, replace(child, parent=1))
    assert "not in the tree" in judged(parent, replace(child, threads=()), process(LOCK, pid=9))
    assert "is traced by one of the tree" in judged(parent, child, tracees=(99,))


PIPE = {3: Descriptor("pipe:[5]", "r", 5), 4: Descriptor("pipe:[5]", "w", 5)}


def test_a_pipe_is_closed_if_its_other_end_is_open_in_the_tree_alone() -> None:
    reader, writer = process(thread("read", 3), files={3: PIPE[3]}), process(LOCK, pid=8, files={4: PIPE[4]})
    assert judged(reader, writer) == "proven"
    assert "which pid 99 outside" in judged(reader, writer, holders={"pipe:[5]": 99})
    assert "seems to have the other end" in judged(reader)
    assert "seems to have the other end" in judged(reader, replace(writer, threads=()))
    assert "not open" in judged(process(thread("read", 9), files=PIPE))
    assert judged(reader, writer, unknown="hidden") == "hidden"
    assert judged(process(thread("write", 4), files=PIPE)) == "proven"
    assert "other end" in judged(process(thread("write", 4), files={4: PIPE[4]}))
    beside = {**PIPE, 5: Descriptor("socket:[9]")}
    assert "to a process outside" in judged(process(thread("read", 3), files=beside), peers={9: 10})
    assert "to a process outside" in judged(process(thread("read", 3), files=beside), connected=frozenset([9]))
    assert (
        judged(process(thread("read", 3), files={**beside, 6: Descriptor("socket:[10]")}), peers={9: 10, 10: 9})
        == "proven"
    )


@pytest.mark.parametrize(
    "target",
    ["/tmp/fifo", "/dev/tty", "/dev/fuse", "anon_inode:inotify", "anon_inode:[signalfd]", "timerfd", "eventpoll", "anon_inode:[eventfd]",
     "anon_inode:sync_file", "anon_inode:[perf_event]", "/tmp/file"],
)  # fmt: skip
def test_a_wait_on_anything_else_is_open(target: str) -> None:
    files = {3: Descriptor(target, "rw")}
    assert judged(process(thread("poll", 0x10, 1, NEVER, polled=(3,)), files=files)) != "proven"
    assert judged(process(thread("read", 3), files=files)) != "proven"


def test_a_thread_that_waits_for_what_its_descriptor_was_before_is_open() -> None:
    files = {**PIPE, 5: Descriptor("eventfd:1", "rw", 1)}
    assert "but sleeps in sock_alloc_send_pskb" in judged(
        process(thread("write", 4, channel="sock_alloc_send_pskb"), files=files)
    )
    assert "but sleeps in pipe_read" in judged(process(thread("read", 5), files=files))


def test_a_unix_socket_is_closed_if_its_peer_is_open_in_the_tree_alone() -> None:
    ends = {3: Descriptor("socket:[9]"), 4: Descriptor("socket:[10]")}
    both, limits = {9: 10, 10: 9}, {(7, 3): False}
    one = process(thread("recvfrom", 3), files=ends)
    assert judged(one, peers=both, limits=limits) == "proven"
    assert "time limit of its own" in judged(one, peers=both, limits={(7, 3): True})
    assert "time limit of its own" in judged(one, peers=both, limits={(7, 3): None})
    assert "time limit of its own" in judged(one, peers=both)
    assert "outside" in judged(one, peers=both, limits=limits, holders={"socket:[10]": 99})
    assert "outside" in judged(one, peers=both, limits=limits, holders={"socket:[9]": 99})
    assert "not in the tree" in judged(one, limits=limits)
    assert "to a process outside" in judged(
        process(thread("recvfrom", 3), files={3: ends[3]}), peers=both, limits=limits
    )
    polled = process(thread("ppoll", 0x10, 1, polled=(3,)), files=ends)
    assert judged(polled, peers=both) == "proven"  # the limit is of no matter to a poll


@pytest.mark.parametrize(
    ("call", "arguments", "limited"),
    [
        ("poll", (0x10, 1, NEVER), (0x10, 1, 5000)),
        ("poll", (0x10, 1, 0xFFFFFFFF), (0x10, 1, 0)),
        ("ppoll", (0x10, 1, 0), (0x10, 1, 0x7FF0)),
        ("select", (4, 0x10, 0, 0, 0), (4, 0x10, 0, 0, 0x7FF0)),
        ("pselect6", (4, 0x10, 0, 0, 0), (4, 0x10, 0, 0, 0x7FF0)),
    ],
)
def test_a_poll_is_closed_if_all_that_it_polls_is(
    call: str, arguments: tuple[int, ...], limited: tuple[int, ...]
) -> None:
    assert judged(process(thread(call, *arguments, polled=(3, 4)), files=PIPE)) == "proven"
    assert "with a time limit" in judged(process(thread(call, *limited, polled=(3, 4)), files=PIPE))
    assert "polls nothing" in judged(process(thread(call, *arguments, polled=()), files=PIPE))
    assert "could not be read" in judged(process(thread(call, *arguments, polled=None), files=PIPE))
    both = {**PIPE, 5: Descriptor("socket:[9]")}
    assert "not in the tree" in judged(process(thread(call, *arguments, polled=(3, 5)), files=both))


@pytest.mark.parametrize(
    ("call", "arguments", "limited"),
    [
        ("epoll_wait", (6, 0x10, 8, NEVER), (6, 0x10, 8, 100)),
        ("epoll_pwait", (6, 0x10, 8, 0xFFFFFFFF), (6, 0x10, 8, 0)),
        ("epoll_pwait2", (6, 0x10, 8, 0), (6, 0x10, 8, 0x7FF0)),
    ],
)
def test_an_epoll_is_closed_if_all_that_it_watches_is(
    call: str, arguments: tuple[int, ...], limited: tuple[int, ...]
) -> None:
    def having(watched: tuple[tuple[int, int], ...] | None) -> dict[int, Descriptor]:
        return {**PIPE, 6: Descriptor("eventpoll", "rw", 1, watched=watched)}

    assert judged(process(thread(call, *arguments), files=having(((3, 5),)))) == "proven"
    assert "with a time limit" in judged(process(thread(call, *limited), files=having(((3, 5),))))
    assert "no longer" in judged(process(thread(call, *arguments), files=having(((3, 77),))))
    assert "is nothing, or could not" in judged(process(thread(call, *arguments), files=having(None)))
    assert "is nothing, or could not" in judged(process(thread(call, *arguments), files=having(())))


def test_an_eventfd_is_closed_if_neither_another_process_nor_the_kernel_can_set_it() -> None:
    own = {3: Descriptor("eventfd:1", "rw", 1), 0: Descriptor("/dev/null")}
    reader = thread("read", 3, channel="do_wait_intr_irq")
    assert judged(process(reader, files=own)) == "proven"
    assert "outside" in judged(process(reader, files=own), holders={"eventfd:1": 99})
    assert "asynchronous I/O" in judged(process(reader, files=own, asynchronous_io=True))
    beside = process(LOCK, pid=8, files={5: Descriptor("/dev/nvidia0")})
    assert "beside /dev/nvidia0" in judged(process(reader, files=own), beside)


def test_a_pidfd_is_closed_if_its_process_is_in_the_tree() -> None:
    polled = process(thread("poll", 0x10, 1, NEVER, polled=(3,)), files={3: Descriptor("pidfd:8")})
    assert judged(polled, process(LOCK, pid=8)) == "proven"
    assert "not in the tree" in judged(polled)


def test_a_lock_in_shared_memory_is_closed_if_the_tree_alone_can_have_that_memory() -> None:
    one = process(thread("futex", 0x1000, SHARED, 2))
    place, gone = (7, 0x1000), "/dev/shm/x (deleted)"
    assert judged(one, memory={place: FutexMemory(True, True, gone)}) == "proven"
    assert judged(one, memory={place: FutexMemory(False)}) == "proven"
    assert "may not write" in judged(one, memory={place: FutexMemory(False, writable=False)})
    assert "others can open" in judged(one, memory={place: FutexMemory(True, True, gone, named=True)})
    assert "pid 99 outside" in judged(one, memory={place: FutexMemory(True, True, gone, others=(99,))})
    assert "that had a name" in judged(one, memory={place: FutexMemory(True, True, gone, hidden=True)})
    assert "is not known" in judged(one)
    assert judged(one, memory={place: FutexMemory(True, True, gone)}, unknown="hidden") == "hidden"


def test_a_file_lock_is_closed_if_each_that_has_it_is_in_the_tree() -> None:
    for waits in (thread("flock", 3, 2), thread("fcntl", 3, 7)):
        one, two = process(waits), process(LOCK, pid=8)
        assert judged(one, two, blockers={7: (Blocker(8, "08:01:5"),)}) == "proven"
        assert "pid 9 outside" in judged(one, two, blockers={7: (Blocker(8), Blocker(9))})
        assert "pid 99 outside" in judged(one, two, blockers={7: (Blocker(8, outside=99),)})
        assert "does not list" in judged(one, two)
    assert "with a time limit" in judged(process(thread("fcntl", 3, 38)))  # of an open file description


def test_only_what_a_wait_depends_on_is_looked_up() -> None:
    files = {**PIPE, 5: Descriptor("socket:[9]"), 6: Descriptor("eventfd:1"), 7: Descriptor("/data/x")}
    one = process(
        thread("read", 5), thread("poll", 1, 2, NEVER, polled=(3, 6)), thread("futex", 0x20, SHARED), files=files
    )
    wanted = wanted_around(TreeLook((one, process(thread("wait4"), pid=8), process(thread("flock", 7), pid=9))))
    assert wanted.objects == {"socket:[9]", "pipe:[5]", "eventfd:1"}
    assert (wanted.sockets, wanted.futexes, wanted.lockers) == (((7, 5),), ((7, 0x20),), (9,))
    assert wanted.children
    assert wanted.eventfds
    assert not wanted_around(TreeLook((process(LOCK, files=files),))).objects


def test_simulated_hours_have_no_false_proof_and_miss_no_dead_tree() -> None:
    told = run_hours(float(os.environ.get("SIMULATED_HOURS", "20")), seed=1)
    assert told.false_proofs == []
    assert told.missed == []
    assert told.dead > 20
    assert told.asleep_at_a_look > 20  # live trees of which one look saw nobody awake
