"""Traces of several runs of one job: the windows that would be learned from them, and what these would have saved. Pure.

Each run is judged by the windows that are learned from the other ones (leave-one-out). It reads no file (see `files`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.config.quantities import WEEK_S
from prefect_cachewatch.run.trace.replay import Replay, replay_trace
from prefect_cachewatch.run.trace.rows import Trace
from prefect_cachewatch.watching.learned import LEAST_RUNS, LearnedWindows, PastPauses, learn, least_window_s
from prefect_cachewatch.watching.servers.warmup import Warmup
from prefect_cachewatch.watching.stall import effective_poll_s


@dataclass(frozen=True)
class LearnedReplay:
    """What learned windows do on the runs; times in seconds.

    `stopped` names the healthy runs that the windows learned from the other runs would have stopped. Each run is then
    frozen at the middle of its growth: the medians of the times from the last growth to the verdict, with the learned
    and with the configured windows, over the runs that none of them stops before.
    """

    runs: int
    learned: LearnedWindows
    silences: dict[str, PastPauses]
    stopped: tuple[str, ...]
    verdict_s: float | None
    configured_verdict_s: float | None

    @property
    def saved_s(self) -> float | None:
        """What the learned windows save, of each stall."""
        if self.verdict_s is None or self.configured_verdict_s is None:
            return None
        return self.configured_verdict_s - self.verdict_s


def silences_of(trace: Trace, policy: StallPolicy, warmup: Warmup | None = None) -> PastPauses:
    """Return the longest silence of each phase of a whole run, as a watch with this poll would have noted it."""
    free = {"stall_after_s": WEEK_S, "first_write_within_s": WEEK_S, "churn_after_s": 4 * WEEK_S}
    patient = policy.model_copy(update={**free, "poll_s": effective_poll_s(policy), "max_duration_s": None})
    return replay_trace(trace, patient, warmup=warmup).silences


def try_learning(
    traces: Sequence[Trace], policy: StallPolicy, *, least_runs: int = LEAST_RUNS, warmup_s: float | None = None
) -> LearnedReplay:
    """Learn from the traces of completed runs, and judge each run by what is learned from the other ones.

    Args:
        traces: in the order of time.
        policy: the configured windows, and the poll.
        least_runs: with fewer runs nothing is learned.
        warmup_s: for traces of a server: its configured warm-up.

    Returns:
        The windows, and what they would have done.

    Raises:
        InputError: a trace and the windows are too long for the poll.
    """

    def warmup(trace: Trace) -> Warmup | None:
        return None if warmup_s is None else Warmup(warmup_s, present_at_start=trace.rows[0].total_bytes)

    if warmup_s is not None:
        policy = policy.model_copy(update={"warmup_within_s": warmup_s})
    silences = [silences_of(trace, policy, warmup(trace)) for trace in traces]
    floor_s = least_window_s(effective_poll_s(policy))
    stopped, verdicts = [], list[tuple[float, float]]()
    for number, trace in enumerate(traces):
        others = [*silences[:number], *silences[number + 1 :]]
        learned = learn(others, policy, floor_s, least_runs=least_runs - 1)

        def replay(hang_at_s: float | None, windows: LearnedWindows, trace: Trace = trace) -> Replay:
            within = warmup(trace)
            if within is not None:
                within.within_s = windows.shorten("warm_up", within.within_s)
            return replay_trace(trace, policy, hang_at_s, within, windows)

        if learned.behind(replay(None, learned).kind) is not None:
            stopped.append(trace.name)
        hang_at_s = _middle_s(trace)
        both = [replay(hang_at_s, windows) for windows in (learned, LearnedWindows())]
        if all(found.at_s > hang_at_s for found in both):
            verdicts.append((both[0].after_last_growth_s, both[1].after_last_growth_s))
    medians = [statistics.median(times) for times in zip(*verdicts, strict=True)] if verdicts else [None, None]
    names = [trace.name for trace in traces]
    return LearnedReplay(
        len(traces),
        learn(silences, policy, floor_s, least_runs=least_runs),
        dict(zip(names, silences, strict=True)),
        tuple(stopped),
        *medians,
    )


def _middle_s(trace: Trace) -> float:
    """Just after the row with which half of what was there at the end was there, in seconds since the first row."""
    half = (trace.rows[0].total_bytes + max(row.total_bytes for row in trace.rows)) / 2
    return next(row.t_s for row in trace.rows if row.total_bytes >= half) - trace.start_s + 1e-3
