"""Values to text and back, through prometheus_client: the only module here that needs it.

Each page has a registry of its own, without this process's or Prefect's own metrics. Its collector reads the values
of `run`, all at one moment. Counter and Gauge objects of the library would write into PROMETHEUS_MULTIPROC_DIR if a
worker has it, and would add series `_created` unless these are switched off for the whole process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from prefect_cachewatch.metrics.catalogue import CATALOGUE, LASTING, label_values
from prefect_cachewatch.metrics.run import RunMetrics, Series

_LASTING = {spec.name: spec for spec in CATALOGUE if spec.name in LASTING}


class _Page(Collector):
    def __init__(self, runs: Callable[[], Sequence[RunMetrics]]) -> None:
        self._runs = runs

    def collect(self) -> Iterable[Metric]:
        pages = [(run.cache, run.snapshot()) for run in self._runs()]
        for spec in CATALOGUE:
            family = Metric(re.sub("_(total|info)$", "", spec.name), spec.help, spec.type)
            for cache, values in pages:
                for (name, labels), value in values.items():
                    if name in spec.series:
                        family.add_sample(name, dict(zip(("cache", *spec.labels, "le"), (cache, *labels))), value)  # noqa: B905
            if family.samples:
                yield family


def make_registry(runs: Callable[[], Sequence[RunMetrics]]) -> CollectorRegistry:
    """Make a registry with the metrics of some runs and nothing else.

    Args:
        runs: returns the runs; called at each scrape. Their caches must differ.

    Returns:
        The registry.
    """
    registry = CollectorRegistry()
    registry.register(_Page(runs))
    return registry


def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Write a registry in the format that a scraper asks for.

    Args:
        registry: a registry from `make_registry`.
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
    """Read back the counters of one cache, and its last success.

    Args:
        text: from `render_text`, perhaps of another version, perhaps damaged.
        cache: label value of the cache.

    Returns:
        The values whose names and labels are still known.

    Raises:
        ValueError: it is not exposition text.
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
