"""The metrics of one run of one cache, and the collector that prometheus_client reads them by.

Counters continue over the attempts of a run. The watch has the measurements; a scrape reads a copy, all at one moment.
Counter and Gauge objects of the library would write into PROMETHEUS_MULTIPROC_DIR if a worker has it, and would add
series `_created`.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from prefect_cachewatch import __version__
from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.metrics.catalogue import (
    ATTEMPT_OUTCOMES,
    BLIND_REASONS,
    CATALOGUE,
    LASTING,
    PREFIX,
    RUN_OUTCOMES,
    SCAN_BUCKETS_S,
    SUCCESSES,
    bounded,
    name_label,
)
from prefect_cachewatch.watching.attempt import Outcome, Watch
from prefect_cachewatch.watching.outcomes import is_failure
from prefect_cachewatch.watching.sections import LoggedProgress, ReportedStall

P = ParamSpec("P")
# Name of the series, and the values of its labels after `cache`.
Series = tuple[str, tuple[str, ...]]

_COUNTED = (
    "written_bytes_total", "written_allocated_bytes_total", "suspicions_total", "would_be_stops_total", "progress_lines_total",
)  # fmt: skip
_BOUNDS_S = {**{str(float(bound_s)): bound_s for bound_s in SCAN_BUCKETS_S}, "+Inf": math.inf}


class Outlet:
    """Where metrics go; here nowhere."""

    where = "nowhere"
    problem: str | None = None

    def changed(self) -> None:
        """Take in that the values have changed; returns at once."""

    def close(self) -> None:
        """Tell the last values, and end."""


def _taken(method: Callable[Concatenate[RunMetrics, P], None]) -> Callable[Concatenate[RunMetrics, P], None]:
    """Change the values under their lock. A failure is kept for a log line: metrics must not harm the generation."""

    def take(self: RunMetrics, /, *args: P.args, **more: P.kwargs) -> None:
        try:
            with self._lock:
                method(self, *args, **more)
            self.outlet.changed()
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)

    return take


class RunMetrics(Collector, Closing):
    """Metrics of one run; every method may be called from any thread. Close it when the run has ended.

    Args:
        name: name of the job.
        wall: seconds since the epoch.
        clock: monotonic seconds.

    Example:
        >>> from prometheus_client import generate_latest
        >>> run = RunMetrics("llama")
        >>> run.run_ended("completed")
        >>> b'cachewatch_runs_total{cache="llama",outcome="completed"} 1.0' in generate_latest(run.registry)
        True
    """

    def __init__(
        self, name: str, *, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cache = name_label(redact(name))
        self.outlet = Outlet()
        self._problem: str | None = None
        self._began = self._ended = self._closed = False
        self._lock, self._wall, self._clock = threading.Lock(), wall, clock
        self._waiting: tuple[str, float] | None = None
        # To Prometheus, a counter whose first value is not 0 has never increased: series with known labels exist from
        # the start. Verdicts are not, since kinds times causes are too many.
        plain = ("running", "attempt", "suspected", "blind", *_COUNTED, "scan_seconds_count", "scan_seconds_sum")
        named: Mapping[str, Iterable[str]] = {
            "attempts_total": ATTEMPT_OUTCOMES,
            "runs_total": RUN_OUTCOMES,
            "scan_failures_total": BLIND_REASONS,
            "scan_seconds_bucket": _BOUNDS_S,
        }
        self._values: dict[Series, float] = {("build_info", (__version__,)): 1.0, **{(name, ()): 0.0 for name in plain}}
        self._values |= {(name, (label,)): 0.0 for name, labels in named.items() for label in labels}
        self._begun: dict[str, float] = {}
        # This run alone, without this process's or Prefect's own metrics.
        self.registry = CollectorRegistry()
        self.registry.register(self)

    @property
    def where(self) -> str:
        """The URL, or the file."""
        return self.outlet.where

    @property
    def problem(self) -> str | None:
        """What went wrong, in one sentence; None without a fault."""
        return self._problem or self.outlet.problem

    def count_on(self, earlier: Mapping[Series, float]) -> None:
        """Continue the counters of earlier runs of the same cache.

        Args:
            earlier: values at their end; call before the first attempt. Values that do not last are left out.
        """
        for series, value in earlier.items():
            if PREFIX + series[0] in LASTING:
                self._values[series] = max(self._values.get(series, 0.0), value)

    @_taken
    def attempt_began(self, number: int, expected_bytes: int | None) -> None:
        """Take in that an attempt begins.

        Args:
            number: number of the attempt, from 1.
            expected_bytes: size of the finished cache, if known.
        """
        self._began = True
        self._begun = {name: self._values[name, ()] for name in _COUNTED}
        self._forget("last_verdict", "expected_bytes")
        self._set(running=1, attempt=number, pause_seconds=0, longest_pause_seconds=0)
        if expected_bytes is not None:
            self._set(expected_bytes=expected_bytes)

    @_taken
    def sampled(self, watch: Watch) -> None:
        """Take in a measurement of the monitor, or its failure; the monitor calls this.

        Args:
            watch: the attempt.
        """
        state = watch.state
        growth, rule, reading = state.growth, state.rule, state.rule.reading
        blind = reading is not None and reading.seen is None
        if reading is not None and blind:
            self._add("scan_failures_total", "missing" if reading.missing else "unreadable")
        elif reading is not None:
            scan_s = max(0.0, reading.ended_s - state.began_s)
            for label, bound_s in _BOUNDS_S.items():
                self._add("scan_seconds_bucket", label, value=scan_s <= bound_s)
            self._add("scan_seconds_count")
            self._add("scan_seconds_sum", value=scan_s)
        self._count(
            growth.bytes_written, growth.allocated_written, watch.would_be_stops, watch.told(), len(rule.suspicions)
        )
        self._set(
            last_scan_timestamp_seconds=self._wall(),
            blind=blind,
            present_bytes=growth.bytes_present,
            present_allocated_bytes=growth.allocated_present,
            present_files=growth.files_present,
            pause_seconds=rule.pause_s,
            longest_pause_seconds=rule.longest_pause_s,
            window_seconds=rule.window_s,
            suspected=state.verdict.status == "suspected",
        )

    @_taken
    def attempt_ended(self, outcome: Outcome, cause: str | None) -> None:
        """Take in how an attempt ended.

        Args:
            outcome: the attempt's outcome.
            cause: category of the diagnosis; any other text counts as `other`.
        """
        self._add("attempts_total", bounded("outcome", outcome.name))
        growth = outcome.growth
        self._count(growth.bytes_written, growth.allocated_written, outcome.would_be_stops, outcome.logged)
        self._set(last_attempt_duration_seconds=outcome.duration_s)
        if is_failure(outcome.name):
            labels = bounded("kind", outcome.kind or outcome.name), bounded("cause", cause or "unknown")
            self._add("verdicts_total", *labels)
            self._forget("last_verdict")
            self._add("last_verdict", *labels)
        self._rest()

    @contextmanager
    def waiting(self, storage: str) -> Iterator[None]:
        """Count the time in which the run waits for a storage's slots.

        Args:
            storage: name of the storage.
        """
        self._wait(name_label(storage))
        try:
            yield
        finally:
            self._wait(None)

    @_taken
    def _wait(self, label: str | None) -> None:
        if self._waiting is not None:
            before, since_s = self._waiting
            self._add("slot_wait_seconds_total", before, value=max(0.0, self._clock() - since_s))
            self._values["slot_waiting_seconds", (before,)] = 0.0
        self._waiting = (label, self._clock()) if label is not None else None
        if label is not None:
            self._add("slot_wait_seconds_total", label, value=0)

    @_taken
    def run_ended(self, outcome: str) -> None:
        """Take in how the run ended, after its last attempt; an attempt that is under way ends with it.

        Args:
            outcome: one of `RUN_OUTCOMES`.
        """
        self._ended = True
        if self._values["running", ()]:
            self._add("attempts_total", outcome if outcome in ATTEMPT_OUTCOMES else "failed")
        self._add("runs_total", bounded("outcome", outcome))
        if outcome in SUCCESSES:
            self._set(last_success_timestamp_seconds=self._wall())
        self._rest()

    def close(self) -> None:
        """Close the outlet; a run whose end was not reported has failed, or was refused before it began."""
        if not self._closed:
            self._closed = True
            if not self._ended:
                self.run_ended("failed" if self._began else "refused")
            try:
                self.outlet.close()
            except Exception as error:  # noqa: BLE001 - as in `_taken`
                self._failed(error)

    def values(self) -> dict[Series, float]:
        """Copy all values; a wait that is under way counts up to now."""
        with self._lock:
            values = dict(self._values)
            if self._waiting is not None:
                label, since_s = self._waiting
                waited_s = max(0.0, self._clock() - since_s)
                values["slot_waiting_seconds", (label,)] = waited_s
                values["slot_wait_seconds_total", (label,)] += waited_s
            return values

    def collect(self) -> Iterable[Metric]:
        """Give the values to prometheus_client."""
        values = self.values()
        for spec in CATALOGUE:
            family = Metric(re.sub("_(total|info)$", "", spec.name), spec.help, spec.type)
            for (name, labels), value in values.items():
                if PREFIX + name in spec.series:
                    found = dict(zip(("cache", *spec.labels, "le"), (self.cache, *labels)))  # noqa: B905
                    family.add_sample(PREFIX + name, found, value)
            if family.samples:
                yield family

    def _failed(self, error: Exception) -> None:
        self._problem = self._problem or f"metrics are incomplete: {type(error).__name__}: {error}"

    def _rest(self) -> None:
        self._set(running=0, pause_seconds=0, suspected=0, blind=0)

    def _set(self, **values: float) -> None:
        self._values |= {(name, ()): float(value) for name, value in values.items()}

    def _add(self, name: str, *labels: str, value: float = 1) -> None:
        self._values[name, labels] = self._values.get((name, labels), 0.0) + value

    def _count(
        self,
        written: int,
        allocated: int,
        stalls: Sequence[ReportedStall],
        told: LoggedProgress | None,
        suspicions: int = 0,
    ) -> None:
        # max: a counter never falls, in whatever order the calls arrive.
        counts = (written, allocated, suspicions, len(stalls), told.count if told is not None else 0)
        for name, in_attempt in zip(_COUNTED, counts, strict=True):
            self._values[name, ()] = max(self._values[name, ()], self._begun.get(name, 0.0) + in_attempt)

    def _forget(self, *names: str) -> None:
        self._values = {series: value for series, value in self._values.items() if series[0] not in names}
