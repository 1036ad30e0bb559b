"""The detection benchmark: its corpus is the same everywhere, its peers are what their sources say."""

from __future__ import annotations

import itertools
import math

import pytest
from tests.benchmarks import detection
from tests.benchmarks.detection import OURS, PEERS, POLICIES, Fixed, Longest, PhiExponential, PhiNormal, Tally
from tests.corpus import FAMILIES, hang_point, recorded_traces, synthetic_trace, write_times

from prefect_cachewatch.run.trace.replay import replay_trace


def taught(rule, *pauses):
    for pause_s in pauses:
        rule.learn(pause_s)
    return rule.limit_s()


def alarms(times, rule, end_s):
    return list(detection._alarms(times, rule, end_s))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_synthetic_trace_is_the_same_each_time_and_another_for_another_seed(family):
    assert synthetic_trace(family, 3) == synthetic_trace(family, 3)
    assert synthetic_trace(family, 3) != synthetic_trace(family, 4)
    trace = synthetic_trace(family, 3)
    assert len(write_times(trace)) == 400
    assert hang_point(trace) == hang_point(trace)
    assert hang_point(trace) - 1e-3 in write_times(trace)[40:]


def test_the_corpus_is_pinned():
    # A change here changes all figures of the benchmark.
    ends = {family: round(synthetic_trace(family, 0).end_s, 3) for family in FAMILIES}
    assert ends == {
        "steady": 4163.419, "lognormal": 7420.099, "layer-wise": 4281.385, "phase change": 13073.567, "Pareto": 5468.487,
    }  # fmt: skip


def test_the_families_pause_as_they_are_described():
    longest = {}
    for family in FAMILIES:
        times = [write_times(synthetic_trace(family, seed)) for seed in range(5)]
        longest[family] = max(b - a for each in times for a, b in itertools.pairwise(each))
    assert longest["steady"] < 20 < longest["phase change"] < 151
    assert min(longest["lognormal"], longest["layer-wise"], longest["Pareto"]) > 150


def test_the_recorded_traces_are_those_of_the_real_generators():
    assert [trace.name for trace in recorded_traces()] == [
        "memmap_fill.detail.csv", "safetensors_shards.detail.csv", "torch_inductor.detail.csv", "ttnn_as_tensor.detail.csv",
    ]  # fmt: skip


def test_the_peers_wait_as_long_as_their_sources_say():
    assert taught(Fixed(), 1, 2000) == 300
    assert taught(Longest(), *[10] * 7, 40) == 200
    assert taught(PhiExponential(), *[10] * 8) == pytest.approx(8 * math.log(10) * 10)
    # All alike: Akka's least deviation, and its acceptable pause on top of the mean.
    assert taught(PhiNormal(), *[10] * 8) == pytest.approx(10 + 3 + 0.1 * detection._DEVIATIONS)
    y = detection._DEVIATIONS
    e = math.exp(-y * (1.5976 + 0.070566 * y * y))
    assert -math.log10(e / (1 + e)) == pytest.approx(8)
    assert taught(PhiNormal(), *[5, 15] * 4) == pytest.approx(10 + 3 + 5 * y)


@pytest.mark.parametrize("make", [Longest, PhiExponential, PhiNormal])
def test_a_rule_that_learns_holds_the_fixed_window_until_the_eighth_pause(make):
    rule = make()
    for _ in range(7):
        rule.learn(10)
        assert rule.limit_s() == 300
    rule.learn(10)
    assert rule.limit_s() < 300


def test_phi_forgets_what_is_older_than_its_thousand_samples():
    rule = PhiExponential()
    for pause_s in [500] * 50 + [10] * 1000:
        rule.learn(pause_s)
    assert rule.mean_s == pytest.approx(10)


def test_an_alarm_falls_at_a_poll_and_growth_refutes_it():
    # Seen at 15; 300 s of silence have passed at 315; growth at 400 is seen at 405 and refutes it.
    assert alarms([10, 400], Fixed(), 600) == [(315, True)]
    assert alarms([10, 400], Fixed(), 3600) == [(315, True), (705, False)]
    assert alarms([10, 309], Fixed(), 450) == []
    assert alarms([], Fixed(), 3600) == []


def test_a_run_that_was_stopped_in_vain_is_watched_no_longer():
    trace = next(
        trace for trace in (synthetic_trace("Pareto", seed) for seed in range(20))
        if replay_trace(trace, POLICIES[OURS]).grew_again_s is not None
    )  # fmt: skip
    at_s = replay_trace(trace, POLICIES[OURS]).at_s
    assert at_s < trace.end_s
    ours = detection._ours(trace, POLICIES[OURS])
    assert (ours.watched_s, ours.false_stalls) == (at_s, 1)
    fixed = detection._peers(trace, Fixed)
    assert fixed.false_stalls == 1
    assert 0 <= fixed.watched_s - at_s <= 15 or fixed.watched_s > at_s  # a later poll, or a pause it did not see


def test_the_figures_are_sums_over_time_and_shares_of_hangs():
    tally = Tally(7200.0, 3, 3600.0, 5, [300.0, 310.0, math.inf, 320.0])
    assert list(tally.figures().values()) == [1500, 75, 310, 3600, 5]
    assert list(Tally(3600.0, 1, 3600.0, 0).figures().values()) == [1000, None, None, None, 0]


def test_no_hang_of_the_corpus_escapes_the_default_policy():
    found = detection.measure([0, 1])
    assert set(found) == {"all", *FAMILIES, "recorded"}
    for rules in found.values():
        assert set(rules) == {*POLICIES, *PEERS}
        detections = rules[OURS].detections_s
        assert all(each == pytest.approx(300, abs=0.01) for each in detections)
    assert found["steady"][OURS].false_stalls == found["phase change"][OURS].false_stalls == 0
    assert len(found["steady"][OURS].detections_s) == 2


def test_a_row_has_what_the_table_needs():
    rows = detection.run(quick=True)
    assert len(rows) == 4 * 5 + 4
    assert {"name", "ours", "unit", "peer", "peer_value", "ratio", "target", "ok", "note"} <= set.intersection(
        *map(set, rows)
    )
    by_family = rows[0]["families"]
    assert set(by_family) == {"all", *FAMILIES, "recorded"}
    assert by_family["all"] == {OURS: rows[0]["ours"], rows[0]["peer"]: rows[0]["peer_value"]}
