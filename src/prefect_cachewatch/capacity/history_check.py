"""Past runs against the plan: achieved rates and burst times, a verdict, a calibrated derate.

Pure; each run is compared with what the plan expects at the concurrency that it met.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from prefect_cachewatch.capacity.history import (
    MIN_RUNS,
    RunRecord,
    hours_of,
    little_law,
    overlap_s,
    suggest_stall_window,
)
from prefect_cachewatch.capacity.model.results import ClassPrediction, HistoryCheck, LimitPlan, LittleLaw, Verdict
from prefect_cachewatch.common.units import format_bytes, format_duration

SHORT_WINDOW = 10.0


def check_history(
    records: Sequence[RunRecord],
    limit_plan: LimitPlan,
    start_s: float,
    end_s: float,
    *,
    band: float = 0.25,
    replan: Callable[[float], LimitPlan] | None = None,
) -> HistoryCheck:
    """Hold past runs on a storage against its plan.

    Each run is compared with what the plan expects at the concurrency that this run met; the bytes
    per second are those of one job. The verdict is `ok` within the band, else `slower` or `faster`.

    Args:
        records: runs of the plan's storage.
        limit_plan: the plan; its table is for generations, the class planned first.
        start_s: begin of the window, seconds since 1970.
        end_s: its end.
        band: share by which measured and expected rate may differ.
        replan: makes the plan anew with another derate, for a calibration that is exact; without it
            the derate is scaled by the ratio of the burst times.

    Returns:
        The check; `insufficient data` with fewer than 5 whole runs that completed in one attempt.

    Raises:
        InputError: if the window is empty.
    """
    here = [record for record in records if overlap_s(record, start_s, end_s) > 0]
    law = little_law(here, start_s, end_s)
    whole = _whole(here, start_s, end_s)
    met = {record.run_id: _met_concurrency(record, here) for record in whole}
    expected = _Expectation.of(limit_plan)
    verdict: Verdict = "insufficient data"
    reason = _insufficient(len(here), len(whole), expected)
    rate = _plain_rate(whole)
    expected_rate = burst_s = expected_burst_s = derate = None
    if whole and expected is not None:
        moved = math.fsum(r.bytes_written or 0 for r in whole)
        rate = moved / max(1e-9, math.fsum(map(expected.moving_s, whole)))
        wanted_s = math.fsum((r.bytes_written or 0) / expected.rate(met[r.run_id]) for r in whole)
        expected_rate = moved / wanted_s
        burst_s = statistics.fmean(expected.burst_of(r) for r in whole)
        expected_burst_s = statistics.fmean(expected.burst_s(met[r.run_id]) for r in whole)
    if len(whole) >= MIN_RUNS and rate is not None and expected_rate is not None:
        ratio = rate / expected_rate
        verdict = "slower" if ratio < 1 - band else "faster" if ratio > 1 + band else "ok"
        reason = _compared(verdict, rate, expected_rate, list(met.values()), band)
        if burst_s is not None and burst_s > 0:
            derate = _calibrate(limit_plan, burst_s, expected_burst_s or burst_s, list(met.values()), replan)
    return HistoryCheck(
        storage=limit_plan.storage,
        verdict=verdict,
        reason=reason + _edge(law),
        **asdict(law),
        bytes_per_s=rate,
        expected_bytes_per_s=expected_rate,
        burst_s=burst_s,
        expected_burst_s=expected_burst_s,
        derate=derate,
        suggested_stall_window_s=suggest_stall_window(here),
        hours=hours_of(here, start_s, end_s),
    )


def unplanned_history(storage: str, records: Sequence[RunRecord], start_s: float, end_s: float) -> HistoryCheck:
    """Say what is known of a storage that has runs and no plan: Little's law, pauses and hours.

    Args:
        storage: its name.
        records: its runs.
        start_s: begin of the window, seconds since 1970.
        end_s: its end.

    Returns:
        A check with the verdict `insufficient data`.

    Raises:
        InputError: if the window is empty.
    """
    law = little_law(records, start_s, end_s)
    return HistoryCheck(
        storage=storage,
        verdict="insufficient data",
        reason="there is no plan for this storage to compare with: write one and give it as a plan file" + _edge(law),
        **asdict(law),
        bytes_per_s=_plain_rate(_whole(records, start_s, end_s)),
        suggested_stall_window_s=suggest_stall_window(records),
        hours=hours_of(records, start_s, end_s),
    )


def _whole(records: Sequence[RunRecord], start_s: float, end_s: float) -> list[RunRecord]:
    return [r for r in records if r.counts and r.entered_s >= start_s and (r.ended_s or math.inf) <= end_s]


def _plain_rate(whole: Sequence[RunRecord]) -> float | None:
    moved_s = math.fsum(r.service_s or 0 for r in whole)
    return math.fsum(r.bytes_written or 0 for r in whole) / moved_s if moved_s else None


@dataclass(frozen=True)
class _Expectation:
    """A plan's table as functions of concurrency, straight lines between its rows."""

    rows: tuple[ClassPrediction, ...]
    burst_bytes: float
    think_s: float

    @staticmethod
    def of(limit_plan: LimitPlan) -> _Expectation | None:
        # Classes that always run stand in the table beside the class that the answer is about.
        name = limit_plan.classes[0].name
        answered = [entry for row in limit_plan.table for entry in row if entry.name == name]
        rows = tuple(entry for entry in answered if entry.n > 0 and entry.throughput_per_s > 0)
        if not rows:
            return None
        first = rows[0]
        # N = X (Z + R), so the table itself says how long a job thinks.
        think_s = max(0.0, first.n / first.throughput_per_s - first.burst_s)
        return _Expectation(rows, first.bytes_per_s / first.throughput_per_s, think_s)

    def rate(self, n: float) -> float:
        """Bytes per second of one job where n run."""
        return self.burst_bytes / (self.think_s + self.burst_s(n))

    def burst_s(self, n: float) -> float:
        if n <= self.rows[0].n:
            return self.rows[0].burst_s
        for low, high in pairwise(self.rows):
            if n <= high.n:
                return low.burst_s + (high.burst_s - low.burst_s) * (n - low.n) / (high.n - low.n)
        # Beyond the table the storage is saturated: bursts grow with the number that share it.
        return self.rows[-1].burst_s * n / self.rows[-1].n

    def cycle_of(self, record: RunRecord) -> float:
        """The mean cycle of a run, thinking and one burst, without loading before the first byte."""
        bursts = max(1.0, (record.bytes_written or 0) / self.burst_bytes)
        service_s = record.service_s or 0.0
        if record.first_write_s is not None and bursts >= 2:
            # The first burst ends with the first byte, and what came before it is no whole cycle.
            return max(0.0, service_s - record.first_write_s) / (bursts - 1)
        return service_s / bursts

    def moving_s(self, record: RunRecord) -> float:
        """Seconds in which a run moved its bytes and thought between them."""
        return self.cycle_of(record) * max(1.0, (record.bytes_written or 0) / self.burst_bytes)

    def burst_of(self, record: RunRecord) -> float:
        """The mean burst of a run: its cycle less the time it thinks."""
        return max(0.0, self.cycle_of(record) - self.think_s)


def _calibrate(
    limit_plan: LimitPlan,
    burst_s: float,
    expected_burst_s: float,
    met: Sequence[float],
    replan: Callable[[float], LimitPlan] | None,
) -> float:
    if replan is None:
        return _clamp(1 - (1 - limit_plan.derate) * expected_burst_s / burst_s)

    def too_fast(derate: float) -> bool:
        expected = _Expectation.of(replan(derate))
        return expected is not None and statistics.fmean(map(expected.burst_s, met)) < burst_s

    low, high = 0.0, 0.95
    if not too_fast(low):
        return 0.0
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if too_fast(middle) else (low, middle)
    return round((low + high) / 2, 3)


def _clamp(derate: float) -> float:
    return round(min(0.95, max(0.0, derate)), 3)


def _met_concurrency(record: RunRecord, others: Sequence[RunRecord]) -> float:
    begin_s, until_s = record.entered_s, record.ended_s or record.entered_s
    if until_s <= begin_s:
        return 1.0
    return math.fsum(overlap_s(other, begin_s, until_s) for other in others) / (until_s - begin_s)


def _compared(verdict: Verdict, rate: float, expected_rate: float, met: Sequence[float], band: float) -> str:
    return (
        f"{len(met)} runs moved {format_bytes(rate)}/s each where the plan expects "
        f"{format_bytes(expected_rate)}/s at the {statistics.fmean(met):.1f} at once they met: "
        f"{rate / expected_rate:.2f} x, {'within' if verdict == 'ok' else 'outside'} {band:.0%}"
    )


def _insufficient(runs: int, whole: int, expected: _Expectation | None) -> str:
    if whole >= MIN_RUNS and expected is None:
        return "the plan has no table to compare with: make it anew with cachewatch plan"
    return (
        f"{runs} run{'' if runs == 1 else 's'} in the window, {whole} of them whole, completed in one "
        f"attempt and with bytes reported, and {MIN_RUNS} such are needed: widen the window or wait for more"
    )


def _edge(law: LittleLaw) -> str:
    if not law.runs or law.windows_per_run >= SHORT_WINDOW:
        return ""
    return (
        f"; the window of {format_duration(law.window_s)} is only {law.windows_per_run:.1f} mean runs long, "
        f"so runs cut by its edges shift Little's law by {law.edge_effect:+.0%}"
    )
