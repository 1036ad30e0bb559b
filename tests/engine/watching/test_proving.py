"""When a watch looks whether its tree can ever run again: with a fake clock, a fake tree, and the real monitor and rule."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.measure.ledger import Growth
from prefect_cachewatch.watching.monitor import GrowthMonitor
from prefect_cachewatch.watching.outcomes import describe_stall
from prefect_cachewatch.watching.proving import Proving, Seen
from prefect_cachewatch.watching.sections import StuckWait
from prefect_cachewatch.watching.stall import StallRule, Verdict

WAIT = StuckWait(7, "gen", 1, "futex", "a lock in its memory", [7], "only its own threads can release it")
ROOT = {"path": "/c", "inode": 5, "missing": False, "error": None}


class World:
    """Clock, cache and tree; the tree stands still from `dead_s` on, and the cache grows every second until `silent_s`."""

    on_network, pending, deadline_s, last_scan_s = False, False, 10.0, 0.0
    paths, ignore = ("/c",), ()

    def __init__(
        self, *, silent_s: float, dead_s: float = 1e9, look_s: float = 0.01, cpu_s: float | None = 0.0, **policy
    ) -> None:
        self.now, self.silent_s, self.dead_s, self.look_s, self.cpu_s = 0.0, silent_s, dead_s, look_s, cpu_s
        self.scanner, self.looks, self.full, self.missing = self, [], [], False
        self.policy = StallPolicy(prove_after_s=20, **policy)
        rule = StallRule(self.policy, 0.0)
        self.proving = Proving(self.ask, self.policy, lambda: self.now)
        self.monitor = GrowthMonitor(self, rule, lambda: self.now, self.answer(), proving=self.proving)

    def ask(self, earlier: bytes) -> Seen:
        self.looks.append((round(self.now, 1), bool(earlier)))
        self.now += self.look_s
        if self.now < self.dead_s:
            return Seen(why="a thread sleeps", cpu_s=self.cpu_s)
        return Seen(b"seen", (WAIT,) if earlier else (), cpu_s=self.cpu_s)

    def answer(self) -> dict:
        written = int(min(self.now, self.silent_s)) * 1_000_000
        growth = Growth(bytes_written=written, bytes_present=written)._asdict()
        return {"roots": [{**ROOT, "missing": self.missing}], "errors": [], "growth": growth, "scan": 1, "scan_s": 0.0}

    def send(self, operation: str, full: bool = True, **asked) -> None:
        self.full.append(full)

    def receive(self, timeout_s: float) -> dict:
        age_s = max(0.0, self.now - self.silent_s)
        return {**self.answer(), "newest_changed_age_s": age_s, "touched_age_s": None, "overwriting_age_s": None}

    def run(self, until_s: float = 2000.0) -> Verdict:
        def wait(seconds: float) -> bool:
            self.now += seconds
            return self.now >= until_s

        return self.monitor.run(wait, lambda: False)


def test_a_dead_tree_is_found_two_seconds_after_the_silence_is_long_enough() -> None:
    world = World(silent_s=100, dead_s=100)
    verdict = world.run()
    assert (verdict.status, verdict.kind, verdict.waits, verdict.window_s) == ("stalled", "deadlocked", (WAIT,), 300)
    assert verdict.pause_s == pytest.approx(22, abs=0.5)
    assert world.now == pytest.approx(122, abs=1)
    assert [first for _, first in world.looks] == [False, True]


def test_a_dead_tree_is_found_before_its_first_byte_too() -> None:
    verdict = World(silent_s=0, dead_s=0).run()
    assert (verdict.kind, verdict.window_s) == ("deadlocked", 1200)
    assert verdict.pause_s == pytest.approx(22, abs=0.5)


def test_a_silent_tree_that_lives_is_looked_at_once_a_poll_until_its_window_is_over() -> None:
    world = World(silent_s=100)
    verdict = world.run()
    assert (verdict.kind, verdict.waits) == ("no_growth", ())
    times = [at for at, _ in world.looks]
    assert times[0] == pytest.approx(120, abs=1)
    assert min(b - a for a, b in itertools.pairwise(times)) >= 14.9
    assert len(times) == pytest.approx(280 / 15, abs=2)
    assert world.monitor.notes == ["it was not proven that the tree can never run again: a thread sleeps"]


def test_a_growing_tree_is_never_looked_at() -> None:
    world = World(silent_s=1e9, dead_s=0)
    assert world.run(1000).status == "growing"
    assert world.looks == []


def test_growth_between_the_two_looks_discards_the_first() -> None:
    world = World(silent_s=100, dead_s=100)
    assert world.proving.look(20.0) == ()
    assert world.proving.pending is False  # it lived
    world.now = 130.0
    assert world.proving.look(30.0) == ()
    assert world.proving.pending
    assert world.proving.look(0.5) == ()  # it has grown
    assert world.proving.pending is False


def test_the_measurement_before_the_second_look_is_a_full_one() -> None:
    world = World(silent_s=100, dead_s=100)
    world.monitor.scan_s = 30.0  # a tree so large that few scans are full ones
    world.receive = lambda timeout_s: {**World.receive(world, timeout_s), "scan_s": 30.0, "full": world.full[-1]}
    assert world.run().kind == "deadlocked"
    assert world.full[-1] is True


def test_looks_take_at_most_a_hundredth_of_a_core_however_long_they_wait() -> None:
    costly = World(silent_s=100, look_s=1.0, cpu_s=1.0)
    costly.run()
    assert len(costly.looks) <= 4
    waiting = World(silent_s=100, look_s=1.0, cpu_s=0.01)
    waiting.run()
    assert len(waiting.looks) == pytest.approx(280 / 16, abs=2)


def test_both_looks_of_a_pair_are_paid_back() -> None:
    world = World(silent_s=0, dead_s=0, cpu_s=0.5)
    proving = Proving(lambda earlier: replace(world.ask(earlier), waits=()), world.policy, lambda: world.now)
    for world.now in range(20, 300):
        proving.look(float(world.now))
    assert [round(at) for at, second in world.looks if not second] == [20, 120, 220]


@pytest.mark.parametrize(("poll_s", "off_s"), [(1, 4), (15, 60), (40, 60), (90, 90)])
def test_a_look_that_did_not_come_to_an_end_is_tried_again_some_polls_later(poll_s: float, off_s: float) -> None:
    world = World(silent_s=0, cpu_s=None, poll_s=poll_s)
    for world.now in range(20, 200):
        world.proving.look(float(world.now))
    times = [at for at, _ in world.looks]
    assert times[1] - times[0] == pytest.approx(off_s, abs=1.5)


def test_a_directory_that_cannot_be_measured_is_no_silence_to_look_at() -> None:
    world = World(silent_s=100, dead_s=100)
    world.missing = True
    assert world.run().kind == "cache_directory_missing"
    assert world.looks == []


def test_the_message_says_what_was_proven_and_when() -> None:
    verdict = Verdict("stalled", "deadlocked", 22.01, 300.0, waits=(WAIT,))
    assert describe_stall(verdict, ["/c"], "1 GiB in 2 files") == (
        "Tensor cache generation stalled: every thread waits for another one of the same tree; nothing outside can wake them "
        "(proven after 22 s; the window is 5 minutes) in /c (1 GiB in 2 files)."
    )
