"""Every metric: name, type, labels and the values that each label may take. Data only.

The dashboard, the alert rules and docs/metrics.md are tested against this table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.watching.outcomes import ENDINGS, OutcomeName, is_failure
from prefect_cachewatch.watching.stall import Kind

# Outcomes of a watch over a process that cachewatch did not start; such a watch has no metrics.
_OF_OTHERS = ("ended", "detached")
ATTEMPT_OUTCOMES: tuple[str, ...] = tuple(name for name in get_args(OutcomeName) if name not in _OF_OTHERS)
RUN_OUTCOMES: tuple[str, ...] = (*ATTEMPT_OUTCOMES, "cached", "verification_failed", "refused")
# Runs that left a whole cache: the alert rules count all others except `cancelled` as failures.
SUCCESSES: tuple[str, ...] = tuple(ending.outcome for ending in reversed(ENDINGS) if ending.status == 0)
_FAILURES = (name for name in ATTEMPT_OUTCOMES if is_failure(name) and name != "stalled")
VERDICT_KINDS: tuple[str, ...] = (*get_args(Kind), *_FAILURES)
BLIND_REASONS: tuple[str, ...] = ("missing", "unreadable")
SCAN_BUCKETS_S: tuple[float, ...] = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)

PREFIX = "cachewatch_"
_OTHER = "other"
_NAME_MAX = 80

_LISTS: Mapping[str, tuple[str, ...]] = {
    "kind": (*VERDICT_KINDS, _OTHER),
    "outcome": (*RUN_OUTCOMES, _OTHER),
    "reason": BLIND_REASONS,
}

MetricType = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True)
class MetricSpec:
    """One metric; `name` is the name of its series, a histogram's without `_bucket`, `_sum` and `_count`.

    `labels` come after `cache`, which every series has: node-exporter joins the files of several runs into one page,
    on which no series may occur twice.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series."""
        parts = ("_bucket", "_count", "_sum") if self.type == "histogram" else ("",)
        return tuple(self.name + part for part in parts)


CATALOGUE: tuple[MetricSpec, ...] = (
    MetricSpec("cachewatch_build_info", "info", "The version that watches.", ("version",)),
    MetricSpec("cachewatch_running", "gauge", "1 while an attempt is under way."),
    MetricSpec("cachewatch_attempt", "gauge", "Number of the attempt under way, or of the last one."),
    MetricSpec("cachewatch_written_bytes_total", "counter", "Bytes by which files have grown, in apparent size."),
    MetricSpec(
        "cachewatch_written_allocated_bytes_total", "counter", "Bytes by which files have grown, in allocated blocks."
    ),
    MetricSpec("cachewatch_present_bytes", "gauge", "Apparent size of the files in the cache directories."),
    MetricSpec("cachewatch_present_allocated_bytes", "gauge", "Allocated blocks of these files."),
    MetricSpec("cachewatch_present_files", "gauge", "Number of these files."),
    MetricSpec("cachewatch_expected_bytes", "gauge", "Size of the finished cache; absent where it is not known."),
    MetricSpec("cachewatch_pause_seconds", "gauge", "Time without growth so far; 0 between attempts."),
    MetricSpec("cachewatch_longest_pause_seconds", "gauge", "The longest pause between two growths of the attempt."),
    MetricSpec("cachewatch_window_seconds", "gauge", "The pause at which a stall is said."),
    MetricSpec("cachewatch_suspected", "gauge", "1 while the pause is suspiciously long."),
    MetricSpec("cachewatch_suspicions_total", "counter", "Pauses that were suspiciously long."),
    MetricSpec("cachewatch_would_be_stops_total", "counter", "Stalls that were only reported, by on_stall report."),
    MetricSpec("cachewatch_progress_lines_total", "counter", "Lines of the output that told of progress."),
    MetricSpec("cachewatch_blind", "gauge", "1 while the cache directories cannot be measured."),
    MetricSpec(
        "cachewatch_last_scan_timestamp_seconds", "gauge", "When a measurement last ended, also one that failed."
    ),
    MetricSpec("cachewatch_scan_seconds", "histogram", "Duration of the measurements that succeeded."),
    MetricSpec("cachewatch_scan_failures_total", "counter", "Measurements that failed.", ("reason",)),
    MetricSpec("cachewatch_attempts_total", "counter", "Attempts that have ended.", ("outcome",)),
    MetricSpec("cachewatch_last_attempt_duration_seconds", "gauge", "Duration of the last attempt that ended."),
    MetricSpec("cachewatch_verdicts_total", "counter", "Attempts stopped or failed, by cause.", ("kind", "cause")),
    MetricSpec(
        "cachewatch_last_verdict", "gauge", "1 after such an attempt, until the next one begins.", ("kind", "cause")
    ),
    MetricSpec("cachewatch_runs_total", "counter", "Runs that have ended, all attempts of each.", ("outcome",)),
    MetricSpec("cachewatch_last_success_timestamp_seconds", "gauge", "When a run last ended with a whole cache."),
    MetricSpec("cachewatch_slot_waiting_seconds", "gauge", "Wait for the storage's slots so far.", ("storage",)),
    MetricSpec("cachewatch_slot_wait_seconds_total", "counter", "Time spent waiting for slots.", ("storage",)),
)

# Counters that are carried over from one run of a cache to the next.
LASTING: tuple[str, ...] = (
    *(spec.name for spec in CATALOGUE if spec.type == "counter"),
    "cachewatch_last_success_timestamp_seconds",
)


def label_values(label: str) -> tuple[str, ...] | None:
    """List the values that a label may take.

    Args:
        label: its name.

    Returns:
        All of them; None for a label with one value per run: a name, or a version.

    Example:
        >>> label_values("reason"), label_values("storage")
        (('missing', 'unreadable'), None)
    """
    if label == "cause":
        # Imported at the first verdict: the rules of the post-mortem import pydantic, and the process is to stay small.
        from prefect_cachewatch.evidence.causes import CAUSES  # noqa: PLC0415

        return (*CAUSES, _OTHER)
    return _LISTS.get(label)


def bounded(label: str, value: str) -> str:
    """Return the label value that a text stands for.

    Args:
        label: one that has a list of values.
        value: any text.

    Returns:
        The value, or `other` if the text is none of the label's.

    Example:
        >>> bounded("cause", "disk_full"), bounded("cause", "/mnt/cache")
        ('disk_full', 'other')
    """
    return value if value in (label_values(label) or ()) else _OTHER


def name_label(name: str) -> str:
    """Turn a name from outside into a label value: escaped, and of at most 80 characters.

    Args:
        name: name of a job or a storage.

    Returns:
        The name; a cut name ends with eight digits, so that two names cut at the same place differ.

    Example:
        >>> name_label("llama 3"), len(name_label("x" * 200))
        ('llama 3', 80)
    """
    shown = for_terminal(name, 10 * _NAME_MAX)
    if len(shown) <= _NAME_MAX:
        return shown
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{shown[: _NAME_MAX - 9]}-{digest}"
