"""The detection benchmark: its corpus is the same everywhere, and no hang of it escapes."""

from __future__ import annotations

import pytest
from tests.benchmarks import detection
from tests.benchmarks.detection import OURS, PEER
from tests.corpus import FAMILIES, synthetic_run


def test_the_corpus_is_pinned():
    # A change here changes all figures of the benchmark.
    ends = {family: round(synthetic_run(family, 0).end_s, 3) for family in FAMILIES}
    assert ends == {
        "steady": 4163.419, "lognormal": 7420.099, "layer-wise": 4281.385, "phase change": 13073.567, "Pareto": 5468.487,
    }  # fmt: skip


def test_no_hang_of_the_corpus_escapes_the_default_policy():
    found = detection.measure([0, 1])
    assert set(found) == {"all", *FAMILIES, "recorded"}
    for rules in found.values():
        assert set(rules) == {OURS, PEER}
        detections = rules[OURS].detections_s
        assert all(each == pytest.approx(300, abs=0.01) for each in detections)
    assert found["steady"][OURS].false_stalls == found["phase change"][OURS].false_stalls == 0
    assert len(found["steady"][OURS].detections_s) == 2
