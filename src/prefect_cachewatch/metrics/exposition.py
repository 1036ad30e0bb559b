"""Values to text and back, through prometheus_client: the one module here that needs it.

Each page has a registry of its own: nothing of this process or of Prefect's own metrics is on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from prefect_cachewatch.metrics.catalogue import CATALOGUE, LASTING, SCAN_BUCKETS_S, MetricSpec, label_values
from prefect_cachewatch.metrics.run import RunMetrics, Series, Snapshot

__all__ = ["make_registry", "read_counters", "render", "render_text"]

_LASTING = {spec.name: spec for spec in CATALOGUE if spec.name in LASTING}


class _Page(Collector):
    def __init__(self, runs: Callable[[], Sequence[RunMetrics]]) -> None:
        self._runs = runs

    def collect(self) -> Iterable[Metric]:
        snapshots = [run.snapshot() for run in self._runs()]
        for spec in CATALOGUE:
            family = _family(spec, snapshots)
            if family.samples:
                yield family


def make_registry(runs: Callable[[], Sequence[RunMetrics]]) -> CollectorRegistry:
    """Make a registry that holds the metrics of some runs and nothing else.

    Args:
        runs: says which; asked at each scrape. Their caches must differ.

    Returns:
        The registry.
    """
    registry = CollectorRegistry()
    registry.register(_Page(runs))
    return registry


def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Write a registry in the format that a scraper asks for.

    Args:
        registry: of `make_registry`.
        accept: the request's `Accept` header; Prometheus asks for OpenMetrics.

    Returns:
        The page and its content type.
    """
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def render_text(run: RunMetrics) -> bytes:
    """Write one run in the text format that node-exporter reads.

    Example:
        >>> b'cachewatch_running{cache="llama"} 0.0' in render_text(RunMetrics("llama")).splitlines()
        True
    """
    return generate_latest(make_registry(lambda: [run]))


def read_counters(text: str, cache: str) -> dict[Series, float]:
    """Read back what one cache's counters stood at, and its last success.

    Args:
        text: of `render_text`, perhaps by another version, perhaps damaged.
        cache: label value of the cache.

    Returns:
        The values whose names and labels are known today.

    Raises:
        ValueError: it is no exposition text.
    """
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            spec = _LASTING.get(sample.name)
            if spec is None or sample.labels.get("cache") != cache or set(sample.labels) != {"cache", *spec.labels}:
                continue
            values = tuple(sample.labels[label] for label in spec.labels)
            known = all(
                value in (label_values(label) or (value,)) for label, value in zip(spec.labels, values, strict=True)
            )
            if known and math.isfinite(sample.value) and sample.value >= 0:
                found[spec.name, values] = float(sample.value)
    return found


def _family(spec: MetricSpec, snapshots: Sequence[Snapshot]) -> Metric:
    labels = ("cache", *spec.labels)
    if spec.type == "histogram":
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=labels)
        for snapshot in snapshots:
            histogram.add_metric([snapshot.cache], list(_cumulated(snapshot)), snapshot.scans_sum_s)
        return histogram
    if spec.type == "info":
        info = InfoMetricFamily(spec.name.removesuffix("_info"), spec.help, labels=["cache"])
        for cache, values, _ in _series(spec, snapshots):
            info.add_metric([cache], dict(zip(spec.labels, values, strict=True)))
        return info
    family: CounterMetricFamily | GaugeMetricFamily = (
        CounterMetricFamily(spec.name.removesuffix("_total"), spec.help, labels=labels)
        if spec.type == "counter"
        else GaugeMetricFamily(spec.name, spec.help, labels=labels)
    )
    for cache, values, value in _series(spec, snapshots):
        family.add_metric([cache, *values], value)
    return family


def _series(spec: MetricSpec, snapshots: Sequence[Snapshot]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for snapshot in snapshots:
        for (name, values), value in sorted(snapshot.values.items()):
            if name == spec.name:
                yield snapshot.cache, values, value


def _cumulated(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*SCAN_BUCKETS_S, math.inf), snapshot.scans, strict=True):
        total += count
        yield ("+Inf" if bound == math.inf else str(float(bound))), float(total)
