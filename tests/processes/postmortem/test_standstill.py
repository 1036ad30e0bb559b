"""Real trees that stand still for good are proven to, and real trees that look so and go on never are."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator

import pytest
from tests.standing_trees import DEAD, LIVE, PASSING, REASONS, look_twice, standing
from tests.support import PATIENCE_S, eventually, needs_root

from prefect_cachewatch.common.mounts import parse_mountinfo
from prefect_cachewatch.postmortem import standstill_around, standstill_look, standstill_tables
from prefect_cachewatch.postmortem.standstill_look import look_for_standstill


def _has_io_uring() -> bool:
    fd = ctypes.CDLL(None).syscall(425, 1, (ctypes.c_char * 120)())
    if fd >= 0:
        os.close(fd)
    return fd >= 0


LIVE_HERE = {name: code for name, code in LIVE.items() if "io_uring" not in name or _has_io_uring()}


# The others are as quick, but each takes a start of Python: `make test-campaigns` has them.
DEAD_FIRST = ("two locks", "a full pipe and wait()", "a lock that a dead worker had", "two file locks", "an eventfd of its own",
              "a record lock that the parent has", "two that wait for each other's message", "a main thread that has ended",
              "an asyncio future that is never set", "a pidfd of a child that waits")  # fmt: skip
LIVE_FIRST = ("a deadlock beside a ticker", "standard input", "a file lock held outside", "a FIFO that is open",
              "a socket with a time limit of its own", "a timer as a descriptor", "a POSIX timer", "a semaphore with a name",
              "a semaphore that is shared outside", "an eventfd that is held outside", "a traced process", "a stopped process",
              "a file lock whose descriptor is held outside", "a pipe beside a socket to a process outside",
              "a pipe that a thread outside has for itself", "a thread with descriptors of its own",
              "shared memory that is open outside and mapped by nobody there", "a tracer of a thread outside",
              "a deadlock beside an io_uring without a descriptor")  # fmt: skip


def _is_proven(pid: int) -> bool:
    return bool(eventually(lambda: look_twice(pid).waits))


@pytest.mark.parametrize(
    "names", [DEAD_FIRST, pytest.param(tuple(DEAD), marks=pytest.mark.campaign)], ids=["some", "all"]
)
def test_each_tree_that_can_never_run_again_is_proven(names: tuple[str, ...]) -> None:
    with standing({name: DEAD[name] for name in names}) as roots:
        assert [name for name, pid in roots.items() if not _is_proven(pid)] == []


@pytest.mark.parametrize(
    "names", [LIVE_FIRST, pytest.param(tuple(LIVE_HERE), marks=pytest.mark.campaign)], ids=["some", "all"]
)
def test_no_tree_that_may_go_on_is_proven_and_each_is_refused_for_what_may_end_its_wait(names: tuple[str, ...]) -> None:
    assert LIVE.keys() == REASONS.keys()
    with standing({name: LIVE[name] for name in names}) as roots:
        for name, pid in roots.items():
            end_s = time.monotonic() + PATIENCE_S
            while True:
                seen = look_twice(pid, 0.02)
                assert not seen.waits, name
                if REASONS[name] in seen.why or time.monotonic() > end_s:
                    break
            assert REASONS[name] in seen.why, name


@pytest.mark.parametrize("name", PASSING)
def test_a_pipe_whose_other_end_is_on_its_way_to_a_process_outside_is_not_proven(name: str) -> None:
    with standing({name: PASSING[name]}) as roots:

        def refused() -> bool:
            seen = look_twice(roots[name], 0.02)
            assert not seen.waits
            return "descriptors are on their way to pid" in seen.why

        assert eventually(refused)


def test_a_tree_whose_threads_pass_a_baton_is_never_proven_though_all_may_be_seen_asleep() -> None:
    code = """
        n = 6; locks = [threading.Lock() for _ in range(n)]; [l.acquire() for l in locks]
        def run(i):
            while True: locks[i].acquire(); sum(range(2000)); locks[(i + 1) % n].release()
        ts = [threading.Thread(target=run, args=(i,)) for i in range(n)]; [t.start() for t in ts]
        locks[0].release(); ready(); ts[0].join()"""
    with standing({"baton": code}) as roots:
        pid = roots["baton"]
        assert [seen for seen in (look_twice(pid, 0.01) for _ in range(150)) if seen.waits] == []


def test_a_proof_names_the_chain_of_waits() -> None:
    with standing({"pipe": DEAD["a full pipe and wait()"]}) as roots:
        pid = roots["pipe"]
        waits = {wait.pid: wait for wait in eventually(lambda: look_twice(pid).waits)}
        assert all(wait.why and wait.threads == 1 for wait in waits.values())
        (child,) = waits.keys() - {pid}
        assert (waits[pid].call, waits[pid].waits_for) == ("wait4", [child])
        assert (waits[child].call, waits[child].waits_for) == ("write", [pid])
        assert waits[child].waits_on.startswith("pipe:[")


def test_a_tree_that_has_gone_is_not_proven() -> None:
    with standing({"sleep": LIVE["a sleep"]}) as roots:
        pass
    assert look_for_standstill([roots["sleep"]], True, b"").why == "no process of the tree is visible"
    assert look_for_standstill([], False, b"").why == "no process of the tree is visible"


def test_a_list_of_sockets_that_is_cut_short_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut() -> Iterator[tuple[int, int | None, bool, bool]]:
        yield 1, 2, False, False
        raise TimeoutError

    with standing({"pipe": DEAD["a pipe to itself"]}) as roots:
        assert _is_proven(roots["pipe"])
        monkeypatch.setattr(standstill_around, "_dump_unix_sockets", cut)
        assert look_twice(roots["pipe"]).why.startswith("the kernel did not list all unix sockets")


def test_a_kernel_that_compares_no_tables_of_descriptors_has_them_compared_by_what_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, held = "a thread with descriptors of its own", "a pipe that a thread outside has for itself"
    monkeypatch.setattr(standstill_tables, "_KCMP", None)
    with standing({"dead": DEAD["two locks"], **{name: LIVE[name] for name in (own, held)}}) as roots:
        assert _is_proven(roots["dead"])
        assert eventually(lambda: REASONS[own] in look_twice(roots[own]).why)
        assert eventually(lambda: REASONS[held] in look_twice(roots[held]).why)


@pytest.mark.campaign
def test_in_a_container_what_processes_outside_it_may_have_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_root("a full view")
    names = ("two locks", "a pipe to itself", "a lock that a dead worker had")
    with standing({name: DEAD[name] for name in names}) as roots:
        assert [name for name, pid in roots.items() if not _is_proven(pid)] == []
        monkeypatch.setattr(standstill_around, "_in_first_pid_namespace", lambda: False)
        told = {name: look_twice(pid) for name, pid in roots.items()}
    assert told["two locks"].waits
    assert "may not be looked at" in told["a pipe to itself"].why
    assert "that had a name" in told["a lock that a dead worker had"].why


@pytest.mark.parametrize(
    ("options", "hides"),
    [
        ("rw", False),
        ("rw,hidepid=0", False),
        ("rw,hidepid=off", False),
        ("rw,hidepid=2", True),
        ("rw,gid=4,hidepid=invisible", True),
    ],
)
def test_a_proc_that_hides_processes_proves_nothing(monkeypatch: pytest.MonkeyPatch, options: str, hides: bool) -> None:
    mounts = parse_mountinfo(f"22 27 0:21 / /proc rw,relatime - proc proc {options}")
    monkeypatch.setattr(standstill_look, "read_mounts", lambda: mounts)
    assert ("hidepid" in look_for_standstill([os.getpid()], True, b"").why) is hides


def test_another_users_tree_is_not_proven() -> None:
    needs_root("a second user")
    with standing({"locks": DEAD["two locks"]}) as roots:
        assert _is_proven(roots["locks"])
        told, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(ours, look_twice(roots["locks"]).why.encode())
            os._exit(0)
        os.close(ours)
        assert os.waitpid(pid, 0)[1] == 0
        with open(told) as said:
            assert "cannot be read (by this user" in said.read()


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_twenty_times_under_load_no_live_tree_is_proven_and_no_dead_one_is_missed() -> None:
    load = {str(number): "ready()\nwhile True: pass" for number in range(2 * (os.cpu_count() or 1))}
    with standing(load):
        for _ in range(20):
            with standing(LIVE_HERE) as live:
                assert [name for name, pid in live.items() if look_twice(pid, 0.5).waits] == []
            with standing(DEAD) as dead:
                assert [name for name, pid in dead.items() if not _is_proven(pid)] == []
