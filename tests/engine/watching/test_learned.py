"""Learned windows as values: what is learned, the chance that is stated with it, and what the stall rule makes of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.watching.learned import (
    LearnedWindow,
    LearnedWindows,
    PastPauses,
    learn,
    least_window_s,
    refuse_learned,
)
from prefect_cachewatch.watching.servers.warmup import Warmup
from prefect_cachewatch.watching.stall import Measurement, StallRule

POLICY = StallPolicy(stall_after_s=300, first_write_within_s=1200, warmup_within_s=1800)


def writing(*silences_s: float) -> list[PastPauses]:
    return [PastPauses(writing_s=each) for each in silences_s]


def windows(runs: list[PastPauses], floor_s: float = 30, **more: int) -> dict[str, tuple[float, int]]:
    return {each.phase: (each.window_s, each.runs) for each in learn(runs, POLICY, floor_s, **more).windows}


def test_a_window_is_one_and_a_half_times_the_longest_pause_of_its_own_phase():
    runs = [PastPauses(100 + n, 40 - n, 200 + n) for n in range(5)]
    assert windows(runs) == {"before_first_byte": (156.0, 5), "writing": (60.0, 5), "warm_up": (306.0, 5)}


def test_with_fewer_than_five_runs_the_configured_window_holds():
    assert windows(writing(1, 2, 3, 4)) == {}
    assert windows([*writing(1, 2, 3, 4), PastPauses(before_first_byte_s=9)]) == {}


def test_no_window_is_shorter_than_the_floor_or_longer_than_the_configured_one():
    assert windows(writing(*[0.001] * 9)) == {"writing": (30, 9)}
    assert windows(writing(*[0.001] * 9), floor_s=60) == {"writing": (60, 9)}
    assert windows(writing(1, 1, 1, 1, 200)) == {}
    assert windows(writing(1, 1, 1, 1, 1e9)) == {}
    assert [least_window_s(poll_s) for poll_s in (1, 7.5, 15)] == [30, 30, 60]


def test_the_last_fifty_runs_count():
    assert windows(writing(100, *[20] * 50)) == {"writing": (30, 50)}
    assert windows(writing(*[20] * 30, 100, *[20] * 29)) == {"writing": (150, 50)}


def test_the_chance_is_rounded_up():
    def told(runs: int) -> str:
        return str(LearnedWindow("writing", 62, 300, runs, 41, 1 / (runs + 1)))

    assert told(23).startswith("window 62 s, learned from 23 runs; a healthy run as those is stopped with probability")
    assert [told(runs).rpartition("below ")[2] for runs in (5, 19, 23)] == ["16.7 %", "5.0 %", "4.2 %"]


DISTRIBUTIONS: dict[str, Callable[[Random], float]] = {
    "uniform": lambda random: random.uniform(10, 20),
    "lognormal": lambda random: random.lognormvariate(3, 1.1),
    "Pareto 1.6": lambda random: 5 * random.paretovariate(1.6),
    "Cauchy-like, no mean": lambda random: random.paretovariate(0.5),
    "few values, ties": lambda random: random.choice([1.0, 2.0, 3.0]),
    "two kinds of run": lambda random: random.gauss(100, 5) if random.random() < 0.1 else random.gauss(10, 1),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("runs", [5, 23])
def test_a_healthy_next_run_is_silent_for_longer_than_all_before_no_more_often_than_stated(name: str, runs: int):
    random, tries = Random(f"{name} {runs}"), 4000
    draw = DISTRIBUTIONS[name]
    unbounded = POLICY.model_copy(update={"stall_after_s": float("inf")})
    beyond = stopped = 0
    for _ in range(tries):
        learned = learn(writing(*(max(0.0, draw(random)) for _ in range(runs))), unbounded, 0.0).windows[0]
        silence_s = draw(random)
        beyond += silence_s > learned.longest_s  # the bound itself: as if the factor were 1
        stopped += silence_s >= learned.window_s
    chance = learned.chance
    error = 4 * (chance * (1 - chance) / tries) ** 0.5
    assert beyond / tries <= chance + error
    assert stopped <= beyond
    if name in ("uniform", "lognormal", "Pareto 1.6", "Cauchy-like, no mean"):  # the bound is sharp without ties
        assert beyond / tries >= chance - error


def test_runs_that_depend_on_each_other_but_are_exchangeable_keep_the_bound():
    random, tries, runs, beyond = Random(7), 4000, 9, 0
    for _ in range(tries):
        scale = random.paretovariate(0.7)  # how busy the storage is, the same for all runs
        *past, following = [scale * random.expovariate(1) for _ in range(runs + 1)]
        beyond += following > max(past)
    assert beyond / tries <= 1 / (runs + 1) + 0.02


class Run:
    """A rule with learned windows and its clock."""

    def __init__(self, learned: LearnedWindows, warmup: Warmup | None = None) -> None:
        self.rule = StallRule(StallPolicy(poll_s=5, churn_after_s=1e5), 0.0, warmup, learned)
        self.bytes, self.t = 0, 0.0

    def go(self, until_s: float, written: int = 0) -> str:
        """Measure at every poll until a moment, at which so much has been written; return the last verdict's kind."""
        while self.t < until_s:
            self.t = min(until_s, self.t + 5)
            self.bytes += written if self.t == until_s else 0
            age_s = 0.0 if written and self.t == until_s else None
            verdict = self.rule.observe(self.t, self.t, Measurement(self.bytes, self.bytes, newest_age_s=age_s))
            if verdict.final:
                return f"{verdict.kind} after {verdict.pause_s:g}"
        return verdict.status


def learned(**windows_s: float) -> LearnedWindows:
    return LearnedWindows(
        tuple(LearnedWindow(name, each, 1e6, 9, 1.0, 0.1) for name, each in windows_s.items())  # type: ignore[arg-type]
    )


def test_each_phase_has_its_own_learned_window_and_the_others_stay_as_configured():
    assert Run(learned(before_first_byte=40)).go(1000) == "never_started after 40"
    assert Run(learned(writing=40)).go(1300) == "never_started after 1200"
    run = Run(learned(writing=40))
    run.go(1000, 9000)
    assert run.go(2000) == "no_growth after 40"
    run = Run(learned(before_first_byte=40))
    run.go(30, 9000)
    assert run.go(2000) == "no_growth after 300"


def test_a_learned_window_never_lengthens_the_configured_one():
    run = Run(learned(writing=900))
    run.go(30, 9000)
    assert run.go(2000) == "no_growth after 300"


def test_a_stall_is_put_down_to_the_window_of_its_own_phase():
    found = learned(writing=40)
    assert found.behind("no_growth") is found.windows[0]
    assert [found.behind(kind) for kind in ("never_started", "churning", "filesystem_unresponsive", None)] == [None] * 4


def test_the_silences_of_a_run_are_what_the_windows_are_compared_with_the_end_included():
    run = Run(LearnedWindows())
    for t in (100, 120, 180, 190):
        run.go(t, 9000)
    assert run.rule.silences() == PastPauses(100, 60)
    run.go(290)  # silent to its end
    assert run.rule.silences() == PastPauses(100, 100)
    never = Run(LearnedWindows())
    never.go(50)
    assert never.rule.silences() == PastPauses(50)


def test_a_servers_last_silence_is_its_warm_up():
    run = Run(LearnedWindows(), Warmup(1800))
    run.go(100, 9000)
    run.go(160, 9000)
    run.go(360)
    assert run.rule.silences() == PastPauses(100, 60, 200)


def test_a_watch_without_a_history_refuses_learned_windows():
    with pytest.raises(InputError, match=r"exec, generate or a fleet: .*; give a duration such as 5m"):
        refuse_learned(StallPolicy(stall_after_s="learned"))  # type: ignore[arg-type]
    refuse_learned(POLICY)
