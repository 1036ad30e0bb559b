"""Stalls that stop nothing: what is reported, how often, and what it says in the end; with a fake scanner and clock."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tests.engine.watching.test_monitor import FakeScanner, World, answer

from prefect_cachewatch.errors import ScanTimeout
from prefect_cachewatch.watching.leaving import LeftAlone, describe_left_alone
from prefect_cachewatch.watching.sections import ReportedStall


class _PlanScanner(FakeScanner):
    def receive(self, timeout_s):
        self.pending = False
        step = self.world.plan(self.world.now)
        if step is None:
            self.world.now += timeout_s
            raise ScanTimeout("silence")
        return step


class Plan:
    """Written bytes at times; blind in some spans, without the directory in others; the end of the work."""

    def __init__(self, *growth, blind=(), missing=(), end=10_000, **policy):
        self.world = World(stall_after_s=60, first_write_within_s=60, **policy)
        self.world.scanner = _PlanScanner(self.world)
        self.world.plan = self._plan
        self.growth, self.blind, self.missing, self.end = growth, blind, missing, end
        self.told, self.gone, self._seen = [], threading.Event(), 0
        self.left_alone = LeftAlone(
            self.world.monitor, self.gone, sampled=lambda: None, tell=self._tell, clock=lambda: self.world.now
        )

    def _plan(self, now):
        if any(start <= now < stop for start, stop in self.blind):
            return None
        if any(start <= now < stop for start, stop in self.missing):
            return answer(self._seen, grown=False, missing=True, error="gone")
        before, self._seen = self._seen, 8192 * sum(at <= now for at in self.growth)
        ages = [now - at for at in self.growth if at <= now]
        return answer(self._seen, grown=self._seen > before, age_s=ages[-1] if ages else 0.0)

    def _tell(self, verdict):
        self.told.append((round(self.world.now), verdict.kind))
        return f"stall {len(self.told)}", None

    def wait(self, seconds):
        self.world.now += max(seconds, 0.01)
        if self.world.now >= self.end:
            self.gone.set()
        return self.gone.is_set()

    def run(self, outcome="completed"):
        self.left_alone.run(self.wait)
        self.left_alone.conclude(outcome)
        return self.left_alone.stalls


def test_a_silence_is_reported_once_and_the_next_one_again():
    plan = Plan(5, 400, 410, end=700)
    first, second = plan.run("failed")
    assert plan.told == [(65, "no_growth"), (470, "no_growth")]
    assert (first.kind, first.message, first.in_vain) == ("no_growth", "stall 1", True)
    assert 400 <= first.resumed_at_s <= 415
    assert (second.resumed_at_s, second.in_vain) == (None, False)
    assert describe_left_alone([first, second]) == "It would have been stopped 2 times, 1 of them in vain."


def test_growth_that_only_the_last_measurement_sees_was_a_stop_in_vain():
    (stall,) = Plan(5, 199.5, end=200).run("failed")
    assert (stall.in_vain, 199 <= stall.resumed_at_s <= 215) == (True, True)


def test_the_wait_for_the_first_byte_and_the_silence_after_it_are_two():
    assert [stall.kind for stall in Plan(100, end=400).run()] == ["never_started", "no_growth"]


def test_a_scan_that_fails_in_a_silence_does_not_end_it():
    plan = Plan(5, end=600, missing=[(200, 220), (300, 320)])
    (stall,) = plan.run("failed")
    assert (plan.told, stall.resumed_at_s) == ([(65, "no_growth")], None)


def test_another_fault_in_a_silence_is_reported_and_the_silence_is_not_told_again_after_it():
    plan = Plan(5, end=900, missing=[(200, 400)])
    silent, gone = plan.run("failed")
    assert [kind for _, kind in plan.told] == ["no_growth", "cache_directory_missing"]
    assert 400 <= gone.resumed_at_s <= 430
    assert (silent.resumed_at_s, silent.in_vain, gone.in_vain) == (None, False, True)


def test_growth_in_the_very_scan_that_shows_the_time_limit_ends_the_silence():
    plan = Plan(5, 150, end=500, max_duration_s=149)
    silent, limit, again = plan.run("completed")
    assert (silent.kind, limit.kind, again.kind) == ("no_growth", None, "no_growth")
    assert silent.resumed_at_s == limit.at_s
    assert (limit.resumed_at_s, limit.in_vain) == (None, True)


def test_the_time_limit_is_reported_once_while_it_writes():
    plan = Plan(*range(5, 500, 20), end=500, max_duration_s=100)
    (limit,) = plan.run("failed")
    assert (plan.told, limit.in_vain) == ([(100, None)], False)


def test_what_is_moot_is_not_reported():
    plan = Plan(5, end=500)
    plan.left_alone._moot = lambda: True
    assert plan.run() == []


STALL = ReportedStall(300, "no_growth", "", None)
VAIN, RIGHT = replace(STALL, resumed_at_s=400, in_vain=True), replace(STALL, in_vain=False)


@pytest.mark.parametrize(
    ("stalls", "said"),
    [
        ([], ""),
        ([VAIN], "It would have been stopped once, in vain: it went on."),
        ([replace(STALL, in_vain=True)], "It would have been stopped once, in vain: it completed."),
        ([RIGHT], "It would have been stopped once, and rightly: it never grew again."),
        ([STALL], "It would have been stopped once, and was ended before it showed whether rightly."),
        ([VAIN, VAIN, RIGHT], "It would have been stopped 3 times, 2 of them in vain."),
    ],
)
def test_the_end_says_how_often_and_whether_in_vain(stalls, said):
    assert describe_left_alone(stalls) == said
