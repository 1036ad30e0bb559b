"""The learned window as a value: what is learned, the chance that is stated with it, and what the stall rule makes of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.watching.learned import LearnedWindow, learn_window, refuse_learned
from prefect_cachewatch.watching.servers.warmup import Warmup
from prefect_cachewatch.watching.stall import Measurement, StallRule


def window_of(*pauses_s: float, poll_s: float = 5) -> float | None:
    found = learn_window(pauses_s, 300, poll_s)
    return None if found is None else found.window_s


def test_the_window_is_one_and_a_half_times_the_longest_pause():
    assert window_of(20, 31, 24, 40, 28) == 60.0


def test_with_fewer_than_five_runs_the_configured_window_holds():
    assert window_of(1, 2, 3, 4) is None


def test_no_window_is_shorter_than_the_floor_or_longer_than_the_configured_one():
    assert window_of(*[0.001] * 9) == 30
    assert window_of(*[0.001] * 9, poll_s=15) == 60
    assert window_of(1, 1, 1, 1, 200) is None
    assert window_of(1, 1, 1, 1, 1e9) is None


def test_the_chance_is_rounded_up():
    def told(runs: int) -> str:
        return str(LearnedWindow(62, 300, runs, 41))

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
    beyond = stopped = 0
    for _ in range(tries):
        learned = learn_window([max(0.0, draw(random)) for _ in range(runs)], float("inf"), 0.0)
        assert learned is not None
        silence_s = draw(random)
        beyond += silence_s > learned.longest_s  # the bound itself: as if the factor were 1
        stopped += silence_s >= learned.window_s
    chance = 1 / (runs + 1)
    error = 4 * (chance * (1 - chance) / tries) ** 0.5
    assert beyond / tries <= chance + error
    assert stopped <= beyond
    if name in ("uniform", "lognormal", "Pareto 1.6", "Cauchy-like, no mean"):  # the bound is sharp without ties
        assert beyond / tries >= chance - error


class Run:
    """A rule with a learned window and its clock."""

    def __init__(self, learned_s: float | None = None, warmup: Warmup | None = None) -> None:
        learned = None if learned_s is None else LearnedWindow(learned_s, 300, 9, 1.0)
        self.rule = StallRule(StallPolicy(poll_s=5), 0.0, warmup, learned)
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


def test_the_learned_window_holds_while_it_writes_and_the_others_stay_as_configured():
    assert Run(40).go(1300) == "never_started after 1200"
    run = Run(40)
    run.go(1000, 9000)
    assert run.go(2000) == "no_growth after 40"


def test_the_longest_silence_of_a_run_is_what_the_window_is_compared_with_the_end_included():
    run = Run()
    for t in (100, 120, 180, 190):
        run.go(t, 9000)
    assert run.rule.longest_silence_s == 60
    run.go(290)  # silent to its end
    assert run.rule.longest_silence_s == 100
    never = Run()
    never.go(50)
    assert never.rule.longest_silence_s is None


@given(st.lists(st.floats(0.05, 90), min_size=3, max_size=40), st.sampled_from([1.0, 7.0, 15.0, 40.0]))
def test_a_window_is_never_learned_below_the_longest_pause_that_truly_was(pauses_s: list[float], poll_s: float):
    rule = StallRule(StallPolicy(stall_after_s=300, first_write_within_s=300, poll_s=poll_s), 0.0)
    grew_s = list(accumulate(pauses_s))
    before_s, scan, last_s, written = 0.0, 0, 0.0, 0
    while last_s < grew_s[-1]:
        scan += 1
        seen = [t for t in grew_s if before_s < t <= scan * poll_s]
        before_s, last_s, written = scan * poll_s, max([last_s, *seen]), written + 4096 * len(seen)
        age_s = before_s - last_s if seen else None
        assert not rule.observe(before_s, before_s, Measurement(*[written] * 4, newest_age_s=age_s)).final
    first_s = rule.first_write_s or 0.0
    longest_s = max((b - a for a, b in pairwise([first_s, *(t for t in grew_s if t > first_s)])), default=0.0)
    assert longest_s <= (rule.longest_silence_s or 0.0) + 1e-6
    learned = learn_window([rule.longest_silence_s] * 5, 1e9, poll_s)
    assert learned is not None
    assert learned.window_s >= max(pauses_s[1:])


def test_silences_between_lines_of_progress_are_learned_too():
    run = Run()
    run.go(100, 9000)
    for t in range(105, 405, 5):
        told_age_s = 0.0 if t % 60 == 0 else None
        run.rule.observe(t, t, Measurement(9000, 9000, told_age_s=told_age_s))
    assert run.rule.longest_silence_s == 60


def test_a_servers_last_silence_is_its_warm_up():
    run = Run(warmup=Warmup(1800))
    run.go(100, 9000)
    run.go(160, 9000)
    run.go(360)
    assert run.rule.longest_silence_s == 60


def test_a_watch_without_a_history_refuses_a_learned_window():
    with pytest.raises(InputError, match=r"exec, generate or a fleet: .*; give a duration such as 5m"):
        refuse_learned(StallPolicy(stall_after_s="learned"))  # type: ignore[arg-type]
    refuse_learned(StallPolicy())
