"""What a plan expects against what was got: past runs, or a burst's time in a test. Pure; each is held against the
concurrency that it met.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from prefect_cachewatch.capacity.history import LittleLaw, RunRecord, little_law, overlap_s
from prefect_cachewatch.capacity.inputs import PlanInput, WorkloadClass
from prefect_cachewatch.capacity.planning import expected_burst_s
from prefect_cachewatch.capacity.units import say_number, say_time
from prefect_cachewatch.common.svg import svg_data_uri
from prefect_cachewatch.common.text import for_markdown

MIN_RUNS = 5
#: Share by which a burst may be longer or shorter than planned.
BAND = 0.25
Verdict = Literal["ok", "slower", "faster", "insufficient data"]


@dataclass(frozen=True)
class HistoryCheck:
    """Past runs on a storage against its plan."""

    storage: str
    verdict: Verdict
    reason: str
    law: LittleLaw
    runs: int  # whole ones, which say something of a burst
    planned_burst_s: float | None
    got_burst_s: float | None
    met: tuple[tuple[float, float], ...]  # jobs at once that each whole run met, and its mean burst


def got_sentence(inputs: PlanInput, n: int, burst_s: float) -> str:
    """Hold a burst's time in a test against the plan.

    Args:
        inputs: the plan's input.
        n: jobs at once in the test.
        burst_s: what a burst of the first class took there.

    Returns:
        One sentence.
    """
    return f"At {n} at once: {_verdict(burst_s, expected_burst_s(inputs, n), '')[1]}."


def check_history(records: Sequence[RunRecord], inputs: PlanInput, start_s: float, end_s: float) -> HistoryCheck:
    """Hold past runs on a storage against its plan.

    Args:
        records: runs; those on the plan's storage count, and are of its first class that asks.
        inputs: the plan's input.
        start_s: begin of the window, seconds since 1970.
        end_s: its end.

    Returns:
        The check; `insufficient data` with fewer than 5 whole runs that completed in one attempt.

    Raises:
        InputError: if the window is empty.
    """
    storage, main = inputs.storage.name, inputs.asking[0]
    here = [r for r in records if r.storage == storage and overlap_s(r, start_s, end_s) > 0]
    law = little_law(here, start_s, end_s)
    whole = [r for r in here if r.counts and r.entered_s >= start_s and (r.ended_s or math.inf) <= end_s]
    met = tuple((_met(record, here), _burst_s(record, main)) for record in whole)
    if len(whole) < MIN_RUNS:
        reason = (
            f"{len(here)} runs in the window, {len(whole)} of them whole, completed in one attempt and with bytes "
            f"written, and {MIN_RUNS} such are needed: widen the window or wait for more"
        )
        return HistoryCheck(storage, "insufficient data", reason, law, len(whole), None, None, met)
    expected_s = lru_cache(maxsize=None)(lambda n: expected_burst_s(inputs, n))
    planned_s = statistics.fmean(expected_s(round(n)) for n, _ in met)
    got_s = statistics.fmean(burst_s for _, burst_s in met)
    at = say_number(statistics.fmean(n for n, _ in met))
    verdict, reason = _verdict(got_s, planned_s, f" over {len(met)} runs at {at} at once")
    return HistoryCheck(storage, verdict, reason, law, len(whole), planned_s, got_s, met)


def check_markdown(check: HistoryCheck, picture: str) -> str:
    """Write a check for a Markdown artifact.

    Args:
        check: the check.
        picture: the plan's SVG, with the runs on it.

    Returns:
        Markdown; names from outside are escaped.
    """
    law = check.law
    lines = [
        f"## {for_markdown(check.storage)}: {check.verdict}",
        for_markdown(check.reason, 1000),
        f"In {say_time(law.window_s)}: {law.runs} runs, {check.runs} of them whole. L = {say_number(law.concurrency)} at once on "
        f"average, lambda = {say_number(law.arrivals_per_s * 3600)} arrivals an hour, W = {say_time(law.duration_s)} on the "
        f"storage, and {say_time(law.slot_wait_s)} of waiting for a slot before.",
        f"![The plan and past runs]({svg_data_uri(picture)})",
    ]
    return "\n\n".join(lines) + "\n"


def _verdict(got_s: float, planned_s: float, where: str) -> tuple[Verdict, str]:
    """The verdict, and the sentence with both times."""
    ratio, said = got_s / planned_s, f"planned {say_time(planned_s)} a burst, got {say_time(got_s)}{where}"
    if ratio > 1 + BAND:
        return "slower", f"{said}: slower than planned, by {say_number(ratio)} times"
    if ratio < 1 - BAND:
        return "faster", f"{said}: faster than planned, by {say_number(1 / ratio) if ratio else 'any number of'} times"
    return "ok", f"{said}: within {BAND:.0%}"


def _met(record: RunRecord, others: Sequence[RunRecord]) -> float:
    """How many ran at once, on average, while this one did."""
    begin_s, until_s = record.entered_s, record.ended_s or record.entered_s
    return math.fsum(overlap_s(other, begin_s, until_s) for other in others) / max(1e-9, until_s - begin_s)


def _burst_s(record: RunRecord, main: WorkloadClass) -> float:
    """The mean burst of a run: its cycle less the time it thinks, without loading before the first byte."""
    bursts, service_s = max(1.0, (record.bytes_written or 0) / main.wire_bytes), record.service_s or 0.0
    cycle_s = service_s / bursts
    if record.first_write_s is not None and bursts >= 2:
        # The first burst ends with the first byte, and what came before it is no whole cycle.
        cycle_s = max(0.0, service_s - record.first_write_s) / (bursts - 1)
    return max(0.0, cycle_s - main.think_s)
