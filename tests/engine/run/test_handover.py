"""The record of attempts that other processes of the same run have made, and what follows from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.run.test_remedies import decide, ended

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.run.handover import LEAST_PAUSE_S, Earlier, fingerprint, read_earlier
from prefect_cachewatch.run.remedies import REMEDIES, Means, choose_steps, find_remedy
from prefect_cachewatch.run.retry import decide_retry, describe_next
from prefect_cachewatch.watching.sections import Diagnosis

RECORD = Earlier(2, 1, 1, 5000, 8192, "abc", ("no_xet",))


def test_the_record_is_read_as_it_was_written_by_the_next_process_alone() -> None:
    text = RECORD.to_json(run_count=3)
    assert read_earlier(text, 4) == RECORD
    assert [read_earlier(text, count) for count in (1, 3, 5)] == [Earlier()] * 3


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"made": -1}, {"made": 0}, {"made": True}, {"counted": "1"}, {"change": "no_xet"}, {"change": [1]},
     {"traceback": None}, {"run_count": None}],
)  # fmt: skip
def test_a_record_that_no_process_wrote_is_no_record(change: dict[str, Any]) -> None:
    assert read_earlier(json.dumps(json.loads(RECORD.to_json(3)) | change), 4) == Earlier()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '{"version": 1, "run_count": 3}'])
def test_what_is_no_record_at_all_is_none(text: str) -> None:
    assert read_earlier(text, 4) == Earlier()


def test_the_attempts_of_all_processes_use_up_those_of_the_policy() -> None:
    policy = RetryPolicy(attempts=3)

    def after(earlier: Earlier) -> tuple[bool, str]:
        decision = decide_retry(policy, [ended("io_error", present=9000)], 0, 4096, (), earlier)
        return decision.again, decision.reason

    assert after(Earlier(1, 1)) == (True, "attempt 2 of 3 ended failed")
    assert after(Earlier(2, 2)) == (False, "attempt 3 of 3 was the last")
    assert after(Earlier(2, 1)) == (True, "attempt 2 of 3 ended failed")  # one was stopped by a learned window


def test_growth_goes_on_from_the_last_process_on_the_same_directories_and_anew_on_others() -> None:
    first = Earlier().plus([ended("io_error", present=50_000)], 0, 4096)
    assert (first.made, first.counted, first.barren, first.size_mark) == (1, 1, 0, 50_000)
    assert first.plus([ended("io_error", present=50_000)], 50_000, 4096).barren == 1
    assert first.plus([ended("io_error", present=9_000)], 0, 4096).barren == 0
    assert first.plus([ended("io_error", present=0)], 0, 4096).barren == 1


def test_changes_of_the_environment_are_kept_once_each() -> None:
    failed = [ended("io_error")]
    tally = Earlier(change=("no_xet",)).plus(failed, 0, 4096, "abc", ["kernel_cache", "no_xet"])
    assert (tally.change, tally.traceback) == (("no_xet", "kernel_cache"), "abc")


def test_a_traceback_is_known_again_by_its_fingerprint() -> None:
    assert fingerprint("a") == fingerprint("a") != fingerprint("b")
    assert fingerprint("") == ""


def test_causes_of_the_machine_go_to_another_worker_where_that_is_possible() -> None:
    named = [cause for cause, remedy in REMEDIES.items() if "another_worker" in remedy.change]
    assert {"device_fault", "waiting_for_device", "io_error"} <= set(named)
    assert all(REMEDIES[cause].again and REMEDIES[cause].outside for cause in named)
    assert choose_steps(("another_worker",), Means({}, ["/c"])) == ()
    (step,) = choose_steps(("another_worker",), Means({}, ["/c"], other_workers=True))
    decision = decide(ended("io_error", present=9000))
    policy = RetryPolicy(backoff_s=1, jitter=0)
    section = describe_next(decision, policy, 1, find_remedy(Diagnosis("io_error", "s"), {})[1].why, [step], 0.5)
    assert section.sentence == "again after 20 s, by any free worker of the pool, because the storage may answer"
    assert (section.pause_s, section.change) == (LEAST_PAUSE_S, ("another_worker",))
    assert not RetryPolicy().another_worker
