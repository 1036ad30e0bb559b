"""Names, labels and values of the metrics, and where they may go: rules with literals and a fake clock."""

from __future__ import annotations

import itertools
import re
import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.evidence.causes import CAUSES
from prefect_cachewatch.measure.ledger import Growth
from prefect_cachewatch.metrics.catalogue import ATTEMPT_OUTCOMES, CATALOGUE, bounded, label_values, name_label
from prefect_cachewatch.metrics.outlets import read_counters, textfile_path
from prefect_cachewatch.metrics.run import Outlet, RunMetrics
from prefect_cachewatch.metrics.settings import HttpAddress, parse_destination
from prefect_cachewatch.watching.sections import LoggedProgress, ReportedStall
from prefect_cachewatch.watching.stall import Measurement, StallRule, Suspicion, Verdict

LABEL_VALUES = {label: label_values(label) or () for label in ("cause", "kind", "outcome", "reason")}
POLICY = StallPolicy(stall_after_s=300, first_write_within_s=1200, poll_s=15)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def run_metrics(name: str = "llama") -> tuple[RunMetrics, Clock]:
    clock = Clock()
    return RunMetrics(name, wall=clock, clock=clock), clock


def watch(
    written: int = 0, *, scan_s: float = 0.02, blind: str = "", status: str = "growing", pauses: int = 0,
    stalls: int = 0, lines: int = 0,
) -> Any:  # fmt: skip
    """What the metrics read of a watch, made of the real rule and the real counters."""
    rule = StallRule(POLICY, 0.0)
    if blind:
        rule.observe_blind(10.0, 10.0, missing=blind == "missing")
    else:
        rule.observe(10.0, 10.0 + scan_s, Measurement(written, written))
    rule.suspicions = [Suspicion(1.0, 1.0, "no growth")] * pauses
    growth = Growth(
        written, 2 * written, 0, 0, bytes_present=3 * written, allocated_present=4 * written, files_present=7
    )
    return SimpleNamespace(
        state=SimpleNamespace(growth=growth, rule=rule, began_s=10.0, verdict=Verdict(status)),  # type: ignore[arg-type]
        would_be_stops=[ReportedStall(1.0, "no_growth", "", None)] * stalls,
        told=lambda: told_of(lines),
    )


def told_of(lines: int) -> LoggedProgress | None:
    return LoggedProgress(lines, 1.0, 2.0, "") if lines else None


def outcome(name: str, kind: str | None = None, written: int = 0, stalls: int = 0, lines: int = 0) -> Any:
    return SimpleNamespace(
        name=name, kind=kind, growth=Growth(written, 2 * written), duration_s=12.5,
        would_be_stops=[ReportedStall(1.0, "no_growth", "", None)] * stalls, logged=told_of(lines),
    )  # fmt: skip


def test_reported_stalls_and_lines_of_progress_are_counted_over_all_attempts():
    run, _ = run_metrics()
    assert (value(run, "would_be_stops_total"), value(run, "progress_lines_total")) == (0, 0)
    for number in (1, 2):
        run.attempt_began(number, None)
        run.sampled(watch(stalls=1, lines=3))
        run.attempt_ended(outcome("failed", stalls=2, lines=5), None)
    assert (value(run, "would_be_stops_total"), value(run, "progress_lines_total")) == (4, 10)


def value(run: RunMetrics, name: str, *labels: str) -> float | None:
    return run.values().get((name, labels))


def scans(run: RunMetrics) -> tuple[float, ...]:
    """How many scans fell into each bucket, the last one unbounded."""
    reached = [value for (name, _), value in run.values().items() if name == "scan_seconds_bucket"]
    return tuple(count - below for below, count in itertools.pairwise([0.0, *reached]))


# Names


def test_names_follow_the_conventions():
    assert len({spec.name for spec in CATALOGUE}) == len(CATALOGUE)
    for spec in CATALOGUE:
        assert re.fullmatch(r"cachewatch_[a-z]+(_[a-z]+)*", spec.name)
        assert spec.name.endswith("_total") == (spec.type == "counter"), spec.name
        assert spec.name.endswith("_info") == (spec.type == "info"), spec.name
        assert spec.help[0].isupper() or spec.help[0] == "1"
        assert spec.help.endswith(".")
        assert not {"cache", "job", "instance", "le"} & set(spec.labels)


def test_every_label_has_a_list_of_values_or_is_one_name_a_run():
    labels = {label for spec in CATALOGUE for label in spec.labels}
    assert {label for label in labels if label_values(label) is None} == {"storage", "version"}
    assert set(LABEL_VALUES["cause"]) == {*CAUSES, "other"}


def test_a_value_that_is_on_no_list_is_other():
    assert bounded("cause", "disk_full") == "disk_full"
    assert bounded("cause", "/mnt/cache/layer.0") == "other"
    assert bounded("outcome", "") == "other"


@given(st.text(st.characters(), max_size=300))
def test_a_name_is_a_label_that_is_short_and_shows_no_control_character(name):
    label = name_label(name)
    assert len(label) <= 80
    assert not [char for char in label if unicodedata.category(char).startswith(("C", "Zl", "Zp"))]
    label.encode("utf-8")


def test_long_names_that_begin_alike_stay_apart():
    names = [f"{'x' * 199}{n}" for n in range(50)]
    assert len({name_label(name) for name in names}) == 50


# Values


def test_what_can_be_named_is_there_from_the_start_at_zero():
    run, _ = run_metrics()
    assert {value(run, "attempts_total", name) for name in ATTEMPT_OUTCOMES} == {0.0}
    assert (value(run, "runs_total", "refused"), value(run, "written_bytes_total")) == (0.0, 0.0)
    assert (value(run, "running"), value(run, "last_verdict")) == (0.0, None)


def test_a_sample_is_written_down():
    run, clock = run_metrics()
    run.attempt_began(1, 5_000_000)
    clock.now_s = 1015.0
    run.sampled(watch(100_000))
    assert (value(run, "running"), value(run, "attempt"), value(run, "expected_bytes")) == (1.0, 1.0, 5e6)
    assert (value(run, "written_bytes_total"), value(run, "written_allocated_bytes_total")) == (100_000, 200_000)
    assert (value(run, "present_bytes"), value(run, "present_allocated_bytes")) == (300_000, 400_000)
    assert (value(run, "present_files"), value(run, "pause_seconds")) == (7, 0)
    assert (value(run, "window_seconds"), value(run, "suspected"), value(run, "blind")) == (300, 0, 0)
    assert value(run, "last_scan_timestamp_seconds") == 1015.0
    run.sampled(watch(status="suspected", pauses=1))
    assert (value(run, "suspected"), value(run, "suspicions_total"), value(run, "window_seconds")) == (1, 1, 1200)


def test_a_measurement_that_failed_is_a_failure_and_no_scan():
    run, _ = run_metrics()
    run.attempt_began(1, None)
    run.sampled(watch(5000, scan_s=0.2))
    run.sampled(watch(5000, blind="unreadable"))
    run.sampled(watch(5000, blind="missing"))
    assert value(run, "blind") == 1
    assert [value(run, "scan_failures_total", reason) for reason in ("missing", "unreadable")] == [1, 1]
    assert scans(run) == (0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert value(run, "scan_seconds_sum") == pytest.approx(0.2)
    run.sampled(watch(6000))
    assert value(run, "blind") == 0


def test_counters_count_on_over_the_attempts_of_a_run():
    run, clock = run_metrics()
    run.attempt_began(1, None)
    run.sampled(watch(1000, pauses=2))
    run.attempt_ended(outcome("stalled", "no_growth", 1500), "disk_full")
    assert value(run, "written_bytes_total") == 1500
    assert value(run, "last_verdict", "no_growth", "disk_full") == 1
    assert (value(run, "running"), value(run, "pause_seconds")) == (0, 0)
    run.attempt_began(2, 10)
    assert value(run, "last_verdict", "no_growth", "disk_full") is None
    assert value(run, "verdicts_total", "no_growth", "disk_full") == 1
    run.sampled(watch(500, pauses=1))
    assert (value(run, "written_bytes_total"), value(run, "suspicions_total"), value(run, "attempt")) == (2000, 3, 2)
    run.attempt_ended(outcome("completed", None, 700), None)
    clock.now_s = 2000.0
    run.run_ended("completed")
    assert [value(run, "attempts_total", name) for name in ("stalled", "completed", "failed")] == [1, 1, 0]
    assert (value(run, "runs_total", "completed"), value(run, "written_bytes_total")) == (1, 2200)
    assert (value(run, "last_success_timestamp_seconds"), value(run, "last_attempt_duration_seconds")) == (2000.0, 12.5)


@pytest.mark.parametrize(
    ("name", "kind", "cause", "labels"),
    [
        ("stalled", "churning", "churning", ("churning", "churning")),
        ("stalled", "no_growth", None, ("no_growth", "unknown")),
        ("stalled", "a new kind", "/etc/passwd", ("other", "other")),
        ("deadline_exceeded", None, "compute_bound", ("deadline_exceeded", "compute_bound")),
        ("failed", None, "oom_killed", ("failed", "oom_killed")),
        ("cancelled", None, None, None),
        ("completed", None, None, None),
    ],
)
def test_a_verdict_has_a_kind_and_a_cause_of_the_lists(name, kind, cause, labels):
    run, _ = run_metrics()
    run.attempt_began(1, None)
    run.attempt_ended(outcome(name, kind), cause)
    found = [labels for (metric, labels) in run.values() if metric == "verdicts_total"]
    assert found == ([labels] if labels else [])


def test_an_attempt_that_is_under_way_when_the_run_ends_ended_with_it():
    for ending, counted in (("cancelled", "cancelled"), ("refused", "failed")):
        run, _ = run_metrics()
        run.attempt_began(1, None)
        run.run_ended(ending)
        assert (value(run, "attempts_total", counted), value(run, "runs_total", ending)) == (1, 1)
        assert (value(run, "running"), value(run, "last_success_timestamp_seconds")) == (0, None)


def test_a_wait_for_slots_counts_while_it_lasts():
    run, clock = run_metrics()
    assert value(run, "slot_waiting_seconds", "nfs-a") is None
    with run.waiting("nfs-a"):
        clock.now_s += 40
        assert (value(run, "slot_waiting_seconds", "nfs-a"), value(run, "slot_wait_seconds_total", "nfs-a")) == (40, 40)
        clock.now_s += 5
    clock.now_s += 100
    assert (value(run, "slot_waiting_seconds", "nfs-a"), value(run, "slot_wait_seconds_total", "nfs-a")) == (0, 45)


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("began"), st.integers(1, 5)),
        st.tuples(st.just("sampled"), st.integers(0, 10**9)),
        st.tuples(st.just("ended"), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20)),
        st.tuples(st.just("run"), st.text(max_size=20)),
        st.tuples(st.just("wait"), st.just("nfs")),
    ),
    max_size=25,
)


@given(CALLS)
def test_whatever_happens_counters_never_fall_and_labels_stay_on_their_lists(calls):
    run, clock = run_metrics("job")
    counted = {spec.name.removeprefix("cachewatch_") for spec in CATALOGUE if spec.type == "counter"}
    specs = {name.removeprefix("cachewatch_"): spec for spec in CATALOGUE for name in spec.series}
    before: dict[Any, float] = {}
    for call, *given_ in calls:
        clock.now_s += 1
        if call == "began":
            run.attempt_began(given_[0], None)
        elif call == "sampled":
            run.sampled(watch(given_[0]))
        elif call == "ended":
            run.attempt_ended(outcome(given_[0], given_[1]), given_[2])
        elif call == "run":
            run.run_ended(given_[0])
        else:
            with run.waiting(given_[0]):
                clock.now_s += 1
        values = run.values()
        for series, earlier in before.items():
            if series[0] in counted:
                assert values[series] >= earlier
        before = dict(values)
        for name, labels in values:
            of_scan = ("le",) if name.endswith("_bucket") else ()
            for label, text in zip((*specs[name].labels, *of_scan), labels, strict=True):
                assert label not in LABEL_VALUES or text in LABEL_VALUES[label]
    assert len([name for name, _ in before if "scan_seconds_" not in name]) < 40 + len(calls)


# Text


def test_a_page_parses_and_holds_what_the_catalogue_names():
    run, _ = run_metrics('a "quoted" \\ name\n{x="y"}')
    run.attempt_began(1, 10)
    run.sampled(watch(5000))
    with run.waiting("nfs"):
        pass
    run.attempt_ended(outcome("stalled", "no_growth"), "disk_full")
    run.run_ended("completed")
    families = list(text_string_to_metric_families(generate_latest(run.registry).decode()))
    names = {family.name for family in families}
    assert names == {spec.name.removesuffix("_total") for spec in CATALOGUE}
    labels = {sample.labels["cache"] for family in families for sample in family.samples}
    assert labels == {'a "quoted" \\ name\\n{x="y"}'}


def test_buckets_are_cumulated_and_end_with_infinity():
    run, _ = run_metrics()
    for scan_s in (0.005, 0.2, 0.3, 1000):
        run.sampled(watch(0, scan_s=scan_s))
    page = generate_latest(run.registry).decode()
    found = re.findall(r'scan_seconds_bucket\{cache="llama",le="([^"]+)"\} (\S+)', page)
    assert found[0] == ("0.01", "1.0")
    assert found[3:5] == [("0.5", "3.0"), ("1.0", "3.0")]
    assert found[-1] == ("+Inf", "4.0")
    assert 'scan_seconds_count{cache="llama"} 4.0' in page


def test_counters_come_back_from_the_text_and_gauges_do_not():
    run, clock = run_metrics("llama")
    run.attempt_began(1, 10)
    run.sampled(watch(5000))
    with run.waiting("nfs"):
        clock.now_s += 3
    run.attempt_ended(outcome("stalled", "no_growth", 5000), "disk_full")
    run.run_ended("stalled")
    later, _ = run_metrics("llama")
    later.count_on(read_counters(generate_latest(run.registry).decode(), "llama"))
    assert value(later, "verdicts_total", "no_growth", "disk_full") == 1
    assert (value(later, "written_bytes_total"), value(later, "slot_wait_seconds_total", "nfs")) == (5000, 3)
    assert (value(later, "attempt"), value(later, "present_bytes")) == (0, None)
    assert value(later, "last_verdict", "no_growth", "disk_full") is None
    later.attempt_began(1, None)
    later.sampled(watch(10))
    assert value(later, "written_bytes_total") == 5010


def test_a_file_from_a_stranger_brings_in_no_series_of_its_own():
    text = """
cachewatch_verdicts_total{cache="llama",kind="no_growth",cause="/mnt/secret"} 3
cachewatch_verdicts_total{cache="llama",kind="no_growth"} 3
cachewatch_attempts_total{cache="other",outcome="stalled"} 3
cachewatch_attempts_total{cache="llama",outcome="stalled"} NaN
cachewatch_attempts_total{cache="llama",outcome="failed"} -1
cachewatch_runs_total{cache="llama",outcome="failed"} 2
node_load1{cache="llama"} 3
"""
    assert read_counters(text, "llama") == {("runs_total", ("failed",)): 2.0}
    with pytest.raises(ValueError, match=r".+"):
        read_counters("cachewatch_runs_total{cache=", "llama")


def test_two_names_never_share_a_file(tmp_path):
    names = ["a", "A", "a b", "a-b", "a/b", "á", "..", "a" * 100, "a" * 101]
    paths = [textfile_path(tmp_path, name_label(name)) for name in names]
    assert len(set(paths)) == len(names)
    for path in paths:
        assert path.parent == tmp_path
        assert re.fullmatch(r"cachewatch-[a-z0-9-]+-[0-9a-f]{8}\.prom", path.name)


# Where they go


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9464", HttpAddress("127.0.0.1", 9464)),
        (":9464", HttpAddress("127.0.0.1", 9464)),
        ("9464", HttpAddress("127.0.0.1", 9464)),
        ("[::1]:9464", HttpAddress("::1", 9464)),
        ("file:/var/lib/x", "/var/lib/x"),
        ("file:x", "x"),
    ],
)
def test_a_destination_is_read(text, expected):
    assert parse_destination(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("127.0.0.1", "is no address"),
        ("http://127.0.0.1:9464/metrics", "is no address"),
        ("127.0.0.1:65536", "has a port above 65535"),
        (":9464-9479", "is no address"),
        ("file:", "names no directory"),
    ],
)
def test_what_is_no_destination_is_said_in_one_sentence(text, says):
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        parse_destination(text)
    said = str(caught.value)
    assert said.startswith(f"metrics destination {text!r} ")
    assert "\n" not in said and ":9464" in said


@given(st.text(max_size=40))
def test_any_text_is_a_destination_or_one_sentence(text):
    try:
        found = parse_destination(text)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    if isinstance(found, HttpAddress):
        assert 0 <= found.port <= 65535
        assert parse_destination(str(found)) == found


# Failures of their own


class Broken(Outlet):
    def changed(self) -> None:
        raise OSError("broken")

    def close(self) -> None:
        raise RuntimeError("still broken")


def test_what_breaks_in_the_metrics_is_a_problem_and_no_exception():
    run, _ = run_metrics()
    run.outlet = Broken()
    run.attempt_began(1, None)
    run.sampled(SimpleNamespace(state=None))  # type: ignore[arg-type]
    with run.waiting("nfs"):
        pass
    run.close()
    assert run.problem == "metrics are incomplete: OSError: broken"
    assert value(run, "runs_total", "failed") == 1
