"""The values of one run's metrics, updated by the run; no library, no files, no network.

Counters continue over the attempts of a run. The watch has the measurements; a scrape reads a copy.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from prefect_cachewatch import __version__
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.metrics.catalogue import (
    ATTEMPT_OUTCOMES,
    BLIND_REASONS,
    LASTING,
    RUN_OUTCOMES,
    SCAN_BUCKETS_S,
    SUCCESSES,
    bounded,
    name_label,
)
from prefect_cachewatch.watching.attempt import Outcome, Watch
from prefect_cachewatch.watching.outcomes import is_failure
from prefect_cachewatch.watching.sections import LoggedProgress, ReportedStall

# Name of the series and the values of its labels after `cache`.
Series = tuple[str, tuple[str, ...]]

_WRITTEN, _ALLOCATED, _SUSPICIONS, _WOULD_BE, _LINES = _COUNTED = (
    "cachewatch_written_bytes_total",
    "cachewatch_written_allocated_bytes_total",
    "cachewatch_suspicions_total",
    "cachewatch_would_be_stops_total",
    "cachewatch_progress_lines_total",
)
_SCANS = "cachewatch_scan_seconds"
_BOUNDS_S = {**{str(float(bound_s)): bound_s for bound_s in SCAN_BUCKETS_S}, "+Inf": math.inf}
_NONE: tuple[str, ...] = ()


class RunMetrics:
    """Metrics of one run of one cache; every method may be called from any thread.

    Args:
        name: name of the job.
        wall: seconds since the epoch.
        clock: monotonic seconds.

    Example:
        >>> run = RunMetrics("llama")
        >>> run.run_ended("completed")
        >>> run.snapshot()["cachewatch_runs_total", ("completed",)]
        1.0
    """

    def __init__(
        self, name: str, *, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cache = name_label(redact(name))
        self.began, self.ended = False, False
        self._lock = threading.Lock()
        self._wall, self._clock = wall, clock
        self._waiting: tuple[str, float] | None = None
        # To Prometheus, a counter whose first value is not 0 has never increased: series with known labels exist from
        # the start. Verdicts are not, since kinds times causes are too many.
        self._values: dict[Series, float] = {
            ("cachewatch_build_info", (__version__,)): 1.0,
            ("cachewatch_running", _NONE): 0.0,
            ("cachewatch_attempt", _NONE): 0.0,
            ("cachewatch_suspected", _NONE): 0.0,
            ("cachewatch_blind", _NONE): 0.0,
            **{(name, _NONE): 0.0 for name in _COUNTED},
            **{("cachewatch_attempts_total", (outcome,)): 0.0 for outcome in ATTEMPT_OUTCOMES},
            **{("cachewatch_runs_total", (outcome,)): 0.0 for outcome in RUN_OUTCOMES},
            **{("cachewatch_scan_failures_total", (reason,)): 0.0 for reason in BLIND_REASONS},
            **{(f"{_SCANS}_bucket", (label,)): 0.0 for label in _BOUNDS_S},
            (f"{_SCANS}_count", _NONE): 0.0,
            (f"{_SCANS}_sum", _NONE): 0.0,
        }
        self._begun: dict[str, float] = {}

    def count_on(self, earlier: Mapping[Series, float]) -> None:
        """Continue the counters of earlier runs of the same cache.

        Args:
            earlier: values at their end; call before the first attempt. Values that do not last are left out.
        """
        with self._lock:
            for series, value in earlier.items():
                if series[0] in LASTING:
                    self._values[series] = max(self._values.get(series, 0.0), value)

    def attempt_began(self, number: int, expected_bytes: int | None) -> None:
        """Take in that an attempt begins.

        Args:
            number: number of the attempt, from 1.
            expected_bytes: size of the finished cache, if known.
        """
        with self._lock:
            self.began = True
            self._begun = {name: self._values[name, _NONE] for name in _COUNTED}
            self._forget("cachewatch_last_verdict")
            self._forget("cachewatch_expected_bytes")
            if expected_bytes is not None:
                self._set("cachewatch_expected_bytes", expected_bytes)
            self._set("cachewatch_running", 1)
            self._set("cachewatch_attempt", number)
            self._set("cachewatch_pause_seconds", 0)
            self._set("cachewatch_longest_pause_seconds", 0)

    def sampled(self, watch: Watch) -> None:
        """Take in a measurement of the monitor, or its failure.

        Args:
            watch: the attempt.
        """
        state = watch.state
        growth, rule, reading = state.growth, state.rule, state.rule.reading
        with self._lock:
            self._set("cachewatch_last_scan_timestamp_seconds", self._wall())
            if reading is not None and reading.seen is None:
                self._add("cachewatch_scan_failures_total", ("missing" if reading.missing else "unreadable",), 1)
            elif reading is not None:
                scan_s = max(0.0, reading.ended_s - state.began_s)
                for label, bound_s in _BOUNDS_S.items():
                    self._add(f"{_SCANS}_bucket", (label,), scan_s <= bound_s)
                self._add(f"{_SCANS}_count", _NONE, 1)
                self._add(f"{_SCANS}_sum", _NONE, scan_s)
            self._set("cachewatch_blind", reading is not None and reading.seen is None)
            self._count(_WRITTEN, growth.bytes_written)
            self._count(_ALLOCATED, growth.allocated_written)
            self._count(_SUSPICIONS, len(rule.suspicions))
            self._count_told(watch.would_be_stops, watch.told())
            self._set("cachewatch_present_bytes", growth.bytes_present)
            self._set("cachewatch_present_allocated_bytes", growth.allocated_present)
            self._set("cachewatch_present_files", growth.files_present)
            self._set("cachewatch_pause_seconds", rule.pause_s)
            self._set("cachewatch_longest_pause_seconds", rule.longest_pause_s)
            self._set("cachewatch_window_seconds", rule.window_s)
            self._set("cachewatch_suspected", state.verdict.status == "suspected")

    def attempt_ended(self, outcome: Outcome, cause: str | None) -> None:
        """Take in how an attempt ended.

        Args:
            outcome: the attempt's outcome.
            cause: category of the diagnosis; any other text counts as `other`.
        """
        with self._lock:
            self._add("cachewatch_attempts_total", (bounded("outcome", outcome.name),), 1)
            self._count(_WRITTEN, outcome.growth.bytes_written)
            self._count(_ALLOCATED, outcome.growth.allocated_written)
            self._count_told(outcome.would_be_stops, outcome.logged)
            self._set("cachewatch_last_attempt_duration_seconds", outcome.duration_s)
            if is_failure(outcome.name):
                labels = (bounded("kind", outcome.kind or outcome.name), bounded("cause", cause or "unknown"))
                self._add("cachewatch_verdicts_total", labels, 1)
                self._forget("cachewatch_last_verdict")
                self._values["cachewatch_last_verdict", labels] = 1.0
            self._rest()

    def wait_began(self, storage: str) -> None:
        """Take in that the run waits for a storage's slots.

        Args:
            storage: name of the storage.
        """
        label = name_label(storage)
        with self._lock:
            self._waiting = label, self._clock()
            self._add("cachewatch_slot_wait_seconds_total", (label,), 0)

    def wait_ended(self) -> None:
        """Take in that the run has its slots, or has stopped waiting."""
        with self._lock:
            if self._waiting is not None:
                (label, since_s), self._waiting = self._waiting, None
                self._add("cachewatch_slot_wait_seconds_total", (label,), max(0.0, self._clock() - since_s))
                self._values["cachewatch_slot_waiting_seconds", (label,)] = 0.0

    def run_ended(self, outcome: str) -> None:
        """Take in how the run ended, after its last attempt; an attempt that is under way ends with it.

        Args:
            outcome: one of `RUN_OUTCOMES`.
        """
        with self._lock:
            self.ended = True
            if self._values["cachewatch_running", _NONE]:
                self._add("cachewatch_attempts_total", (outcome if outcome in ATTEMPT_OUTCOMES else "failed",), 1)
            self._add("cachewatch_runs_total", (bounded("outcome", outcome),), 1)
            if outcome in SUCCESSES:
                self._set("cachewatch_last_success_timestamp_seconds", self._wall())
            self._rest()

    def snapshot(self) -> dict[Series, float]:
        """Copy all values; a wait that is under way counts up to now."""
        with self._lock:
            values = dict(self._values)
            if self._waiting is not None:
                label, since_s = self._waiting
                waited_s = max(0.0, self._clock() - since_s)
                values["cachewatch_slot_waiting_seconds", (label,)] = waited_s
                values["cachewatch_slot_wait_seconds_total", (label,)] += waited_s
            return values

    def _rest(self) -> None:
        for gauge in ("running", "pause_seconds", "suspected", "blind"):
            self._set(f"cachewatch_{gauge}", 0)

    def _set(self, name: str, value: float) -> None:
        self._values[name, _NONE] = float(value)

    def _add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        self._values[name, labels] = self._values.get((name, labels), 0.0) + value

    def _count(self, name: str, in_attempt: int) -> None:
        # max: a counter never falls, in whatever order the calls arrive.
        self._values[name, _NONE] = max(self._values[name, _NONE], self._begun.get(name, 0.0) + in_attempt)

    def _count_told(self, would_be_stops: Sequence[ReportedStall], logged: LoggedProgress | None) -> None:
        self._count(_WOULD_BE, len(would_be_stops))
        self._count(_LINES, logged.count if logged is not None else 0)

    def _forget(self, name: str) -> None:
        for series in [series for series in self._values if series[0] == name]:
            del self._values[series]
