"""Which stall rule stops what hangs, and leaves alone what only pauses: replayed over the corpus.

cachewatch's own rule by `replay_recording`, beside what people write themselves: a window that is counted in
polls, from the first write on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.measuring import row
from tests.corpus import FAMILIES, hang_point, recorded_runs, synthetic_run, write_times

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.engine.recording import Recording
from prefect_cachewatch.engine.replay import find_enough, replay_recording

WINDOW_S, POLL_S, LIMIT_S = 300.0, 15.0, 3600.0
SEEDS, QUICK_SEEDS = 150, 6
_PARTS = 5  # of the seeds, whose figures show the spread
_RECORDED = "recorded"


OURS, PEER = "cachewatch", "a window of 300 s, counted in polls"


@dataclass
class Tally:
    """What a rule did on some runs; `detections_s` has infinity for a hang that was not caught within an hour."""

    watched_s: float = 0.0
    false_stalls: int = 0
    warned_s: float = 0.0
    false_suspicions: int = 0
    detections_s: list[float] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in another's figures."""
        self.watched_s += other.watched_s
        self.false_stalls += other.false_stalls
        self.warned_s += other.warned_s
        self.false_suspicions += other.false_suspicions
        self.detections_s += other.detections_s

    def figures(self) -> dict[str, float | None]:
        """The five figures; None where each run had been stopped in vain before it hung.

        A hang that was not caught within the limit counts with the limit.
        """
        caught = sorted(min(each, LIMIT_S) for each in self.detections_s)
        return {
            "false stalls per 1,000 h": 1000 * self.false_stalls / (self.watched_s / 3600),
            "hangs caught": 100 * sum(each < LIMIT_S for each in caught) / len(caught) if caught else None,
            "detection, median": _quantile(caught, 0.5) if caught else None,
            "detection, p99": _quantile(caught, 0.99) if caught else None,
            "false suspicions per h": self.false_suspicions / (self.warned_s / 3600),
        }


UNITS = {"false stalls per 1,000 h": "", "hangs caught": "%", "detection, median": "s", "detection, p99": "s",
         "false suspicions per h": ""}  # fmt: skip


def run(quick: bool) -> list[dict[str, Any]]:
    """Replay the corpus with every rule.

    Args:
        quick: fewer seeds.

    Returns:
        Per figure a row over the whole corpus; per recorded run the window that is enough for it.
    """
    seeds = QUICK_SEEDS if quick else SEEDS
    parts = [measure(range(part, seeds, _PARTS)) for part in range(_PARTS)]
    return [*_compared(parts), *_enough()]


def measure(seeds: Iterable[int]) -> dict[str, dict[str, Tally]]:
    """Replay the corpus.

    Args:
        seeds: of the synthetic runs, a run a family each.

    Returns:
        Per family, and `all`, per rule a tally.
    """
    found: dict[str, dict[str, Tally]] = {"all": {OURS: Tally(), PEER: Tally()}}
    for family in (*FAMILIES, _RECORDED):
        found[family] = {OURS: Tally(), PEER: Tally()}
        for run in _runs(family, seeds):
            for rule, one in ((OURS, _ours(run)), (PEER, _peers(run))):
                found[family][rule].add(one)
                found["all"][rule].add(one)
    return found


def _runs(family: str, seeds: Iterable[int]) -> Iterator[Recording]:
    yield from recorded_runs() if family == _RECORDED else (synthetic_run(family, seed) for seed in seeds)


def _ours(run: Recording) -> Tally:
    policy = StallPolicy()
    healthy = replay_recording(run, policy)
    tally = Tally(healthy.at_s, int(healthy.grew_again_s is not None), healthy.at_s, len(healthy.false_suspicions))
    hang_s = hang_point(run)
    hung = replay_recording(run, policy, hang_s)
    if hung.at_s > hang_s:  # one that was stopped before counts with the false stalls of the healthy run already
        tally.detections_s.append(hung.at_s - _last(write_times(run), hang_s))
    return tally


def _peers(run: Recording) -> Tally:
    times = write_times(run)
    end_s = run.end_s
    alarms = list(_alarms(times, end_s))
    stops = [at_s for at_s, _ in alarms]
    refuted = sum(cleared for _, cleared in alarms)
    first_s = next((at_s for at_s, cleared in alarms if cleared), None)
    tally = Tally(first_s or (stops[0] if stops else end_s), int(first_s is not None), end_s, refuted)
    hang_s = hang_point(run)
    before = [at_s for at_s in times if at_s <= hang_s]
    alarm_s = next((at_s for at_s, _ in _alarms(before, before[-1] + LIMIT_S)), math.inf)
    if alarm_s > hang_s:
        tally.detections_s.append(alarm_s - before[-1])
    return tally


def _alarms(times: Sequence[float], end_s: float) -> Iterator[tuple[float, bool]]:
    """When a window that is counted in polls says stall, and whether growth refuted it; it goes on after an alarm, as a warning would."""
    number, last_s, alarm_s = 0, None, None
    poll = 1
    while (now_s := poll * POLL_S) <= end_s:
        poll += 1
        if number < len(times) and times[number] <= now_s:
            while number < len(times) and times[number] <= now_s:
                number += 1
            if alarm_s is not None:
                yield alarm_s, True
            last_s, alarm_s = now_s, None
        elif last_s is not None and alarm_s is None and now_s - last_s >= WINDOW_S:
            alarm_s = now_s
    if alarm_s is not None:
        yield alarm_s, False


def _last(times: Sequence[float], limit_s: float) -> float:
    return max(at_s for at_s in times if at_s <= limit_s)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _compared(parts: Sequence[dict[str, dict[str, Tally]]]) -> list[dict[str, Any]]:
    spreads = [part["all"][OURS].figures() for part in parts]
    found = {OURS: Tally(), PEER: Tally()}
    for part in parts:
        for rule, tally in part["all"].items():
            found[rule].add(tally)
    total = {rule: tally.figures() for rule, tally in found.items()}
    rows = []
    for name, unit in UNITS.items():
        ours = total[OURS][name]
        assert ours is not None, "cachewatch stops some, but never all of them in vain"
        values = [each[name] or 0.0 for each in spreads]
        note = (
            f"simulated: {found[OURS].watched_s / 3600:,.0f} h watched, {len(found[OURS].detections_s)} hangs; "
            f"{len(parts)} parts of the seeds, {min(values):.3g} to {max(values):.3g}"
        )
        target, ok = _target(name, ours, total[PEER])
        rows.append(row(name, ours, unit, PEER, total[PEER][name], target=target, ok=ok, note=note))
    return rows


def _target(name: str, ours: float, peers: dict[str, float | None]) -> tuple[str, bool]:
    fixed = peers[name] or 0.0
    return {
        "false stalls per 1,000 h": ("no more than a fixed window's + 10 %", ours <= 1.1 * fixed),
        "hangs caught": ("all", ours == 100),
        "detection, median": ("window + 1 s", ours <= WINDOW_S + 1),
        "detection, p99": ("window + 1 s", ours <= WINDOW_S + 1),
        "false suspicions per h": ("at most 2", ours <= 2),
    }[name]


def _enough() -> list[dict[str, Any]]:
    rows = []
    for run in recorded_runs():
        times = [*write_times(run), run.end_s]
        longest_s = max(after - before for before, after in itertools.pairwise(times))
        enough_s = find_enough(run, StallPolicy(poll_s=0.2)).stall_after_s
        assert enough_s is not None, "each of them writes"
        name = run.name.partition(".")[0]
        rows.append(row(f"window that is enough, {name}", enough_s, "s", "longest pause", longest_s, note="one run"))
    return rows
