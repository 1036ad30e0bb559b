"""A plan beside a simulation of the same network: do they agree, and how long are the silences really?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.profile import LinkProfile, StorageProfile
from prefect_cachewatch.capacity.model.results import LimitPlan, SimulationCheck
from prefect_cachewatch.capacity.model.simulation import simulate

AGREES_WITHIN = 0.03


def with_simulation(
    answer: LimitPlan,
    storage: StorageProfile,
    link: LinkProfile,
    workloads: Sequence[WorkloadClass],
    policy: Policy,
    *,
    events: int = 400_000,
    seed: int = 0,
    poll_s: float = 15.0,
) -> LimitPlan:
    """Simulate a plan's network at its limit and lay the result beside the exact answer.

    Args:
        answer: the plan, made from the other arguments.
        storage: as given to `plan`.
        link: as given to `plan`.
        workloads: as given to `plan`.
        policy: as given to `plan`.
        events: events to simulate.
        seed: the same seed gives the same result.
        poll_s: seconds between the monitor's scans.

    Returns:
        The plan with `simulation` set: the largest deviation of throughput and burst time, and
        the silences that a monitor would see.
    """
    first = next(w for w in workloads if w.running is None)
    classes = tuple(w for w in workloads if not policy.isolated or w.kind == first.kind)
    counts = [answer.limit if w is first else w.running or 0 for w in classes]
    demands = demands_of(Scenario(storage, link, classes, policy), sum(counts))
    exact = demands.network(counts).at(counts)
    present = [c for c, count in enumerate(counts) if count]
    run = simulate(
        counts,
        demands.demands_s,
        demands.think_s,
        list(demands.alpha),
        burst=["constant" if w.burst_cv == 0 else "exponential" if w.burst_cv == 1 else "lognormal" for w in classes],
        burst_cv=[w.burst_cv or 1.0 for w in classes],
        think="uniform",  # enough to keep jobs out of step, without a tail that real computing does not have
        growths_per_burst=[w.files_per_burst for w in classes],
        events=events,
        seed=seed,
        poll_s=poll_s,
    )
    mine = run.classes[classes.index(first)]
    if not mine.gap_quantiles_s:
        sentence = (
            f"the simulation's {events:,} events hold {mine.bursts} bursts of {first.name}, too few to compare: "
            "simulate more with --events"
        )
        check = SimulationCheck(seed, events, math.nan, math.nan, math.nan, math.nan, False, sentence)
        return dataclasses.replace(answer, simulation=check)
    present = [c for c in present if run.classes[c].gap_quantiles_s]
    rates = {c: run.classes[c].throughput_per_s.mean / float(exact.throughput_per_s[c]) - 1 for c in present}
    times = {c: run.classes[c].burst_s.mean / float(exact.response_s[c]) - 1 for c in present}
    rate, burst = (max(values.values(), key=abs) for values in (rates, times))
    agrees = max(abs(rate), abs(burst)) <= AGREES_WITHIN
    gap = mine.gap_quantiles_s[0.99]
    window = policy.stall_window_s
    sentence = (
        f"simulation {'agrees' if agrees else 'does NOT agree'}: throughput {rate:+.1%}, burst time {burst:+.1%} "
        f"({events:,} events, seed {seed}); at {answer.limit} silences last {gap:.0f} s at the 99th percentile, "
        f"{mine.gap_max_s:.0f} s at most, of a {window:.0f} s stall window"
    )
    check = SimulationCheck(seed, events, rate, burst, gap, mine.gap_max_s, agrees, sentence)
    return dataclasses.replace(answer, simulation=check)
