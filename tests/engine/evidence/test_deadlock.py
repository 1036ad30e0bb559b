"""A tree that is certain never to go on by itself, and the live ones that are near it."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from prefect_cachewatch.evidence.collector import collect_evidence
from prefect_cachewatch.evidence.deadlock import cannot_go_on
from prefect_cachewatch.evidence.model import Evidence, ProcessFacts
from prefect_cachewatch.evidence.proctree import sample_processes
from prefect_cachewatch.evidence.readings import LockWait, ThreadFacts
from prefect_cachewatch.evidence.rules import find_cause

FUTEX = ThreadFacts(7, syscall="futex", timed=False, private=True)
DEAD = ProcessFacts(7, 1, "gen", threads=(FUTEX,), can_be_woken=False, turns_in_window=0, cpu_in_window_s=0.0)
PARENT = replace(DEAD, pid=6, threads=(ThreadFacts(6, syscall="wait4", timed=False),))
WAITS = replace(DEAD, threads=(ThreadFacts(7, syscall="flock", timed=False),))


def evidence(*processes: ProcessFacts, **more: Any) -> Evidence:
    return Evidence(**{"window_s": 10.0, "processes": processes, "process_count": len(processes), **more})


@pytest.mark.parametrize(
    "dead",
    [evidence(DEAD), evidence(PARENT, replace(DEAD, parent_pid=6)),
     evidence(replace(DEAD, threads=(FUTEX, replace(FUTEX, tid=8)), thread_count=2)),
     evidence(DEAD, replace(WAITS, pid=8), locks=(LockWait(8, 7, "FLOCK", holder_in_tree=True),))],
)  # fmt: skip
def test_what_waits_for_itself_alone_cannot_go_on(dead: Evidence) -> None:
    assert cannot_go_on(dead)
    assert find_cause(dead).is_final == (find_cause(dead).category == "deadlocked")


LIVE = {
    "nobody": evidence(),
    "a short look": evidence(DEAD, window_s=9.0),
    "a process that was not seen": evidence(DEAD, process_count=2),
    "a turn on a processor": evidence(replace(DEAD, turns_in_window=1)),
    "turns that are not known": evidence(replace(DEAD, turns_in_window=None)),
    "a handler or a timer": evidence(replace(DEAD, can_be_woken=True)),
    "handlers that are not known": evidence(replace(DEAD, can_be_woken=None)),
    "a debugger": evidence(replace(DEAD, tracer_pid=9)),
    "a stopped process": evidence(replace(DEAD, state="T", threads=(replace(FUTEX, state="T"),))),
    "a thread that was not seen": evidence(replace(DEAD, thread_count=2)),
    "no thread that was seen": evidence(replace(DEAD, threads=(), thread_count=0)),
    "a wait with a limit": evidence(replace(DEAD, threads=(replace(FUTEX, timed=True),))),
    "memory that others share": evidence(replace(DEAD, threads=(replace(FUTEX, private=False),))),
    "a futex of a kind that is not known": evidence(replace(DEAD, threads=(replace(FUTEX, private=None),))),
    "a thread that sleeps": evidence(replace(DEAD, threads=(FUTEX, ThreadFacts(8, syscall="clock_nanosleep")), thread_count=2)),
    "a socket": evidence(replace(DEAD, threads=(ThreadFacts(7, syscall="recvfrom"),))),
    "a pipe": evidence(replace(DEAD, threads=(ThreadFacts(7, syscall="read"),))),
    "a parent without a child": evidence(PARENT),
    "a lock of somebody else": evidence(WAITS, locks=(LockWait(7, 99, "FLOCK"),)),
    "a lock without a known holder": evidence(WAITS),
    "a lock of somebody else beside one of its own": evidence(
        WAITS, locks=(LockWait(7, 99, "FLOCK"), LockWait(7, 7, "POSIX", holder_in_tree=True))
    ),
    "a call that is not known": evidence(replace(DEAD, threads=(ThreadFacts(7),))),
}  # fmt: skip


@pytest.mark.parametrize("case", LIVE)
def test_a_live_tree_is_never_certain(case: str) -> None:
    assert not cannot_go_on(LIVE[case])


HEAD = "import signal, sys, threading, time\nlock = threading.Lock(); lock.acquire()\n"


@pytest.mark.parametrize(
    ("source", "is_woken"),
    [("", False), ("signal.signal(signal.SIGUSR1, lambda *_: lock.release())\n", True),
     ("signal.signal(signal.SIGRTMIN + 3, lambda *_: 0)\n", True), ("signal.signal(signal.SIGALRM, lambda *_: 0)\n", True)],
)  # fmt: skip
def test_a_real_process_that_waits_for_its_own_lock_is_read_as_it_is(
    tmp_path: Any, source: str, is_woken: bool
) -> None:
    code = HEAD + source + "print('up', flush=True); lock.acquire()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"up\n"
            end_s = time.monotonic() + 60
            while True:
                before = sample_processes(child.pid)
                found = collect_evidence([child.pid], [tmp_path], before=before, budget_s=30, python_stacks=False)
                (process,) = found.processes
                # On a busy machine it may not have had its turn yet.
                waits = process.turns_in_window == 0 and process.threads[0].syscall == "futex"
                if waits or time.monotonic() > end_s:
                    break
            (thread,) = process.threads
            assert (process.can_be_woken, thread.syscall, thread.timed, thread.private) == (
                is_woken,
                "futex",
                False,
                True,
            )
            assert cannot_go_on(replace(found, window_s=10.0)) is not is_woken
        finally:
            child.kill()
