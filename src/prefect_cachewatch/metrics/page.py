"""A run's values as Prometheus reads them, and back.

The registry has this run alone, without this process's or Prefect's own metrics. Its collector reads the values of
`run`, all at one moment. Counter and Gauge objects of the library would write into PROMETHEUS_MULTIPROC_DIR if a worker
has it, and would add series `_created`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from prefect_cachewatch.metrics.catalogue import CATALOGUE, LASTING, label_values
from prefect_cachewatch.metrics.run import RunMetrics, Series

_LASTING = {spec.name: spec for spec in CATALOGUE if spec.name in LASTING}


class _Page(Collector):
    def __init__(self, run: RunMetrics) -> None:
        self._run = run

    def collect(self) -> Iterable[Metric]:
        values = self._run.snapshot()
        for spec in CATALOGUE:
            family = Metric(re.sub("_(total|info)$", "", spec.name), spec.help, spec.type)
            for (name, labels), value in values.items():
                if name in spec.series:
                    family.add_sample(name, dict(zip(("cache", *spec.labels, "le"), (self._run.cache, *labels))), value)  # noqa: B905
            if family.samples:
                yield family


def make_registry(run: RunMetrics) -> CollectorRegistry:
    """Make a registry with the metrics of one run and nothing else.

    Args:
        run: the run.

    Example:
        >>> from prometheus_client import generate_latest
        >>> b'cachewatch_running{cache="llama"} 0.0' in generate_latest(make_registry(RunMetrics("llama"))).splitlines()
        True
    """
    registry = CollectorRegistry()
    registry.register(_Page(run))
    return registry


def read_counters(text: str, cache: str) -> dict[Series, float]:
    """Read back the counters of one cache, and its last success.

    Args:
        text: a page, perhaps of another version, perhaps damaged.
        cache: label value of the cache.

    Returns:
        The values whose names and labels are still known.

    Raises:
        ValueError: it is not exposition text.
    """
    found: dict[Series, float] = {}
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        spec = _LASTING.get(sample.name)
        if spec is None or sample.labels.get("cache") != cache or set(sample.labels) != {"cache", *spec.labels}:
            continue
        values = {label: sample.labels[label] for label in spec.labels}
        known = all(value in (label_values(label) or (value,)) for label, value in values.items())
        if known and math.isfinite(sample.value) and sample.value >= 0:
            found[spec.name, tuple(values.values())] = float(sample.value)
    return found
