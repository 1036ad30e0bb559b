"""The detection benchmark: its corpus is the same everywhere, its peers are what their sources say."""

from __future__ import annotations

import math

import pytest
from tests.benchmarks import detection
from tests.benchmarks.detection import OURS, PEERS, POLICIES, Fixed, Longest, PhiExponential, PhiNormal
from tests.corpus import FAMILIES, hang_point, synthetic_trace, write_times


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


def test_an_alarm_falls_at_a_poll_and_growth_refutes_it():
    # Seen at 15; 300 s of silence have passed at 315; growth at 400 is seen at 405 and refutes it.
    assert alarms([10, 400], Fixed(), 600) == [(315, True)]
    assert alarms([10, 400], Fixed(), 3600) == [(315, True), (705, False)]
    assert alarms([10, 309], Fixed(), 450) == []
    assert alarms([], Fixed(), 3600) == []


def test_no_hang_of_the_corpus_escapes_the_default_policy():
    found = detection.measure([0, 1])
    assert set(found) == {"all", *FAMILIES, "recorded"}
    for rules in found.values():
        assert set(rules) == {*POLICIES, *PEERS}
        detections = rules[OURS].detections_s
        assert all(each == pytest.approx(300, abs=0.01) for each in detections)
    assert found["steady"][OURS].false_stalls == found["phase change"][OURS].false_stalls == 0
    assert len(found["steady"][OURS].detections_s) == 2
