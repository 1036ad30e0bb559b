"""Simulated trees, looked at as a watch does, and judged by the real rule: is any that lives proven dead?

A tree is a few threads that hand one baton around: one of them runs, the others wait for it without a limit. A look
reads one thread after the other while the baton moves on, so that it may see all of them asleep. Some batons rest for
long with something that wakes up by itself or from outside (a timer, a sleep, a socket); the baton of a dead tree is lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from prefect_cachewatch.postmortem.standstill import Proof, prove
from prefect_cachewatch.postmortem.standstill_model import (
    Around,
    Descriptor,
    FutexMemory,
    TreeLook,
    TreeProcess,
    TreeThread,
)

__all__ = ["Hours", "run_hours"]

POLL_S, APART_S = 15.0, 2.0
_STACK = 0x7FFF00000000
_NEVER = (1 << 64) - 1


@dataclass
class Hours:
    """What came of simulated hours."""

    hours: float = 0.0
    looks: int = 0
    dead: int = 0
    asleep_at_a_look: int = 0
    false_proofs: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)


def run_hours(hours: float, seed: int) -> Hours:
    """Simulate trees for so many hours in all.

    Args:
        hours: simulated time of live trees.
        seed: of the first tree; each further one has the next.

    Returns:
        What came of it; false proofs and missed dead trees by their seeds.
    """
    told = Hours()
    while told.hours < hours:
        _run_tree(seed, told)
        seed += 1
    return told


def _run_tree(seed: int, told: Hours) -> None:
    tree = _Tree(random.Random(seed))
    now_s = 0.0
    for _ in range(60):  # a quarter of an hour
        now_s += POLL_S
        told.looks += 2
        first = tree.look(now_s)
        second = tree.look(now_s + APART_S)
        told.asleep_at_a_look += all(t.state == "S" for p in first.processes for t in p.threads)
        if isinstance(prove(first, second), Proof):
            told.false_proofs.append(seed)
    told.hours += now_s / 3600
    if tree.can_die:
        told.dead += 1
        tree.die(now_s)
        if not isinstance(prove(tree.look(now_s + 1), tree.look(now_s + 1 + APART_S)), Proof):
            told.missed.append(seed)


class _Tree:
    """Threads in processes, a baton, and what it rests with."""

    def __init__(self, r: random.Random) -> None:
        self.random = r
        self.count = r.randrange(1, 9)
        self.per_process = r.randrange(1, 5)
        # How long a thread has the baton, and how long one read of a look takes.
        self.turn_s = r.choice([1e-5, 1e-4, 1e-3, 0.05, 1.0, 20.0])
        self.read_s = r.choice([2e-5, 1e-4, 1e-3, 0.02])
        # What a thread with the baton does: it runs, or it waits for what comes by itself or from outside.
        self.rest = r.choice(
            ["runs", "sleep", "timed futex", "timed poll", "outside pipe", "device", "timer", "handler"]
        )
        self.waits = [r.choice(["futex", "pipe", "shared futex", "child"]) for _ in range(self.count)]
        self.at_s, self.holder, self.dead = 0.0, 0, False
        self.turns = [0] * self.count
        self.until_s = self._turn()

    @property
    def can_die(self) -> bool:
        """Whether nothing but the baton keeps it alive; a child to wait for is another process."""
        return self.rest not in ("timer", "handler", "device", "outside pipe")

    def die(self, now_s: float) -> None:
        """Lose the baton."""
        self._advance(now_s)
        self.turns[self.holder] += 1
        self.dead = True

    def look(self, now_s: float) -> TreeLook:
        """Read each thread, one after the other."""
        processes = []
        for begin in range(0, self.count, self.per_process):
            threads = []
            for index in range(begin, min(begin + self.per_process, self.count)):
                now_s += self.random.uniform(0.5, 1.5) * self.read_s
                self._advance(now_s)
                threads.append(self._thread(index))
            processes.append(self._process(begin, tuple(threads)))
        memory = {(p.pid, 0x9000): FutexMemory(True, True, "/dev/shm/sem (deleted)") for p in processes}
        outside = {"pipe:[2]": 999} if self.rest == "outside pipe" else {}
        return TreeLook(tuple(processes), Around(memory=memory, holders=outside))

    def _turn(self) -> float:
        return self.at_s + max(1e-6, self.random.expovariate(1 / self.turn_s))

    def _advance(self, now_s: float) -> None:
        if self.dead:
            return
        if now_s - self.until_s > 1000 * self.turn_s:  # most of a long time at once: everyone has had it
            rounds = int((now_s - self.until_s) / self.turn_s / self.count)
            self.turns = [turns + rounds for turns in self.turns]
            self.at_s, self.until_s = now_s, now_s
            self.until_s = self._turn()
        while self.until_s <= now_s:
            self.at_s = self.until_s
            self.turns[self.holder] += 1
            self.holder = self.random.randrange(self.count)
            self.until_s = self._turn()

    def _thread(self, index: int) -> TreeThread:
        tid, switches = 100 + index, (self.turns[index], 0)
        if index == self.holder and not self.dead:
            return self._resting(tid, (self.turns[index], 0))
        kind = self.waits[index]
        if kind == "pipe":
            return TreeThread(tid, "S", "read", (3, 0x10, 1, 0, 0, 0), _STACK, "pipe_read", switches)
        if kind == "child" and index >= self.per_process:
            kind = "futex"  # the first process alone has children
        if kind == "child" and self.count > self.per_process:
            return TreeThread(tid, "S", "wait4", (_NEVER, 0, 0, 0, 0, 0), _STACK, "do_wait", switches)
        flags, address = (0x80, 0x1000) if kind != "shared futex" else (0, 0x9000)
        return TreeThread(tid, "S", "futex", (address, flags, 2, 0, 0, 0), _STACK, "futex_do_wait", switches)

    def _resting(self, tid: int, switches: tuple[int, int]) -> TreeThread:
        if self.rest == "sleep":
            return TreeThread(tid, "S", "clock_nanosleep", (0,) * 6, _STACK, "hrtimer_nanosleep", switches)
        if self.rest == "timed futex":
            return TreeThread(tid, "S", "futex", (0x1000, 0x80, 2, 0x7F00, 0, 0), _STACK, "futex_do_wait", switches)
        if self.rest == "timed poll":
            return TreeThread(tid, "S", "poll", (0x10, 1, 500, 0, 0, 0), _STACK, "do_poll", switches, polled=(3,))
        if self.rest == "outside pipe":
            return TreeThread(tid, "S", "read", (5, 0x10, 1, 0, 0, 0), _STACK, "pipe_read", switches)
        if self.rest == "device":
            return TreeThread(tid, "S", "ioctl", (6, 0, 0, 0, 0, 0), _STACK, "driver_wait", switches)
        if self.rest in ("timer", "handler"):  # it looks like all others
            return TreeThread(tid, "S", "futex", (0x1000, 0x80, 2, 0, 0, 0), _STACK, "futex_do_wait", switches)
        return TreeThread(tid, "R")

    def _process(self, begin: int, threads: tuple[TreeThread, ...]) -> TreeProcess:
        files = {3: Descriptor("pipe:[1]", "r", 1), 4: Descriptor("pipe:[1]", "w", 1)}
        files[5] = Descriptor("pipe:[2]", "r", 2)
        return TreeProcess(
            100 + begin, 1, 1 if begin == 0 else 100, "gen",
            caught=1 << 13 if self.rest == "handler" else 0,
            timers=self.rest == "timer", threads=threads, files=files,
        )  # fmt: skip
