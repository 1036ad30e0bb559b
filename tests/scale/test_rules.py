"""The rules by which the scale test judges a run, counts requests and works out what a day's generations need."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from tests.scale import counts, truth
from tests.scale.counts import DatabaseSize, count_requests, growth
from tests.scale.truth import Ended, Interruptions, Truth, judge, modes, read_truth

DOCS = Path(__file__).parents[2] / "docs"
COMPLETED = Ended("COMPLETED", "Completed", 10.0, 100.0)
STALLED = Ended("FAILED", "Stalled", 10.0, 100.0)
FAILED = Ended("FAILED", "GeneratorFailed", 10.0, 100.0)
CRASHED = Ended("CRASHED", "Crashed", 10.0, 100.0)
QUIET = Interruptions()


def did(
    *, starts: int = 1, last_write_s: float | None = 90.0, silent_s: float | None = None, code: int | None = None
) -> Truth:
    return Truth(starts, 5, last_write_s, 20.0, silent_s, None if code is None else 95.0, code)


@pytest.mark.parametrize(
    ("what", "ended", "is_true"),
    [
        (did(code=0), COMPLETED, True),
        (did(code=0), STALLED, False),
        (did(code=0), CRASHED, False),
        (did(code=3), FAILED, True),
        (did(code=3), COMPLETED, False),
        (did(silent_s=91.0), STALLED, True),
        (did(silent_s=91.0), COMPLETED, False),
        (did(silent_s=91.0), CRASHED, False),
        (did(last_write_s=99.0), STALLED, False),  # stopped in the middle of its work
        (did(last_write_s=91.9), STALLED, True),  # it had no turn of the processor for a window of 8 s
        (did(last_write_s=50.0), CRASHED, False),
        (did(starts=2, code=0), COMPLETED, False),
    ],
)
def test_a_state_is_true_only_if_it_says_what_the_generator_did(what: Truth, ended: Ended, is_true: bool) -> None:
    problem = judge(what, ended, 8.0, QUIET)[1]
    assert (problem is None) is is_true
    if problem is not None:
        assert f"{ended.type}/{ended.name}" in problem


@pytest.mark.parametrize(
    ("interruptions", "excused"),
    [
        (QUIET, False),
        (Interruptions(server_away=((50.0, 60.0),)), True),
        (Interruptions(server_away=((101.0, 110.0),)), False),
        (Interruptions(server_away=((1.0, 9.0),)), False),
        (Interruptions(workers_killed_s=(50.0,)), True),
        (Interruptions(workers_killed_s=(5.0, 101.0)), False),
    ],
)
def test_a_run_that_never_began_needs_an_interruption_that_explains_it(
    interruptions: Interruptions, excused: bool
) -> None:
    nothing = Truth(0, 0, None, None, None, None, None)
    assert (judge(nothing, CRASHED, 8.0, interruptions)[1] is None) is excused
    assert judge(nothing, COMPLETED, 8.0, interruptions)[1] is not None


def test_a_run_whose_flow_was_killed_has_crashed_and_nothing_else() -> None:
    assert judge(did(), CRASHED, 8.0, QUIET, flow_killed=True) == ("flow killed", None)
    assert judge(did(), STALLED, 8.0, QUIET, flow_killed=True)[1] is not None


def test_notes_that_a_kill_cut_short_are_read_as_far_as_they_go() -> None:
    text = '{"event": "begin", "at_s": 1.0}\n{"event": "write", "at_s": 2.0}\n{"event": "wri'
    assert read_truth(text) == Truth(1, 1, 2.0, 1.0, None, None, None)
    assert read_truth("").starts == 0


def test_the_kinds_of_generators_are_spread_over_the_order() -> None:
    found = list(modes(200, 0.1, 0.05))
    assert [found.count(kind) for kind in ("finish", "fail", "sleep", "stopped", "daemon")] == [170, 10, 7, 7, 6]
    assert max(found.index(kind) for kind in ("fail", "sleep", "stopped", "daemon")) < 60


def test_requests_are_counted_by_route_and_the_tests_own_are_not() -> None:
    run = "0e0ea1a5-0000-4000-8000-000000000001"
    log = f"""
INFO: uvicorn.access - 127.0.0.1:1 - "POST /api/flow_runs/{run}/set_state HTTP/1.1" 201
INFO: uvicorn.access - 127.0.0.1:1 - "GET /api/flow_runs/{run}?by=scale HTTP/1.1" 200
INFO: uvicorn.error - 127.0.0.1:1 - "WebSocket /api/events/in" [accepted]
INFO: uvicorn.access - 127.0.0.1:1 - "POST /api/work_pools/scale/get_scheduled_flow_runs HTTP/1.1" 200
INFO: uvicorn.access - 127.0.0.1:1 - "POST /api/v2/concurrency_limits/increment-with-lease HTTP/1.1" 423
INFO: something else
"""
    found = count_requests(log)
    assert found.runs == {
        "POST /flow_runs/{id}/set_state": 1,
        "WebSocket /events/in": 1,
        "POST /v2/concurrency_limits/increment-with-lease": 1,
    }
    assert found.polling == {"POST /work_pools/scale/get_scheduled_flow_runs": 1}
    assert found.failed == {"423": 1}


def test_growth_is_what_was_added() -> None:
    before = DatabaseSize(100, {"log": 1, "events": 0})
    after = DatabaseSize(160, {"log": 1, "events": 9, "task_run": 3})
    assert growth(before, after) == {"total_bytes": 60, "rows": {"events": 9, "task_run": 3}}


def test_the_examples_run() -> None:
    assert [doctest.testmod(module).failed for module in (counts, truth)] == [0, 0]
