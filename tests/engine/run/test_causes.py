"""What follows an attempt, by its cause: the decision, as values."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.evidence.causes import CAUSES, Cause, Confidence
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.run.retry import RetryDecision, decide_retry, describe_next, last_traceback
from prefect_cachewatch.watching.attempt import Outcome

THRICE = RetryPolicy(attempts=3, backoff_s=30)
TRACE = 'Traceback (most recent call last):\n  File "/a/b.py", line 7, in f\n    g(x)\nValueError: '


def ended(cause: str | None = None, confidence: Confidence = "high", present: int = 0, **more: Any) -> Outcome:
    diagnosis = Cause(cause, "it is so", (), confidence) if cause is not None else None
    growth = Growth(present, present, present, present, present, 1)
    given: dict[str, Any] = {
        "name": "failed", "kind": None, "facts": "", "exit_code": 1, "signal": None, "started_at": 0.0, "duration_s": 1.0,
        "growth": growth, "diagnosis": diagnosis, "learned": None,
    }  # fmt: skip
    fields = Outcome.__dataclass_fields__
    empty = {name: () for name in fields if name not in given and name not in more}
    return Outcome(**{**empty, **given, **more})


def decide(*outcomes: Outcome, policy: RetryPolicy = THRICE, tracebacks: tuple[str, ...] = ()) -> RetryDecision:
    return decide_retry(policy, outcomes, 0, tracebacks)


@pytest.mark.parametrize(
    "cause",
    ["disk_full", "quota_exceeded", "missing_module", "waiting_for_input", "bad_argument", "permission_denied",
     "wrong_architecture", "access_denied_hub"],
)  # fmt: skip
def test_where_nothing_can_have_changed_there_is_no_further_attempt(cause: str) -> None:
    decision = decide(ended(cause, present=10_000))
    assert (decision.again, decision.reason, decision.category) == (False, CAUSES[cause].why, cause)
    # A guess does not keep it from being tried again.
    assert decide(ended(cause, "low", present=10_000)).again


def test_the_same_traceback_twice_without_growth_ends_the_attempts() -> None:
    first, second = ended("python_error", present=10_000), ended("python_error", present=10_000)
    same = (last_traceback(TRACE + "layer 3 at 0x7f"), last_traceback("more\n" + TRACE + "layer 4 at 0x9e\nend\n"))
    assert same[0] == same[1] != ""
    assert decide(first, second, tracebacks=same).reason == (
        "it failed with the same traceback as before, and the cache did not grow"
    )
    assert decide(first, second, tracebacks=("", "")).again
    assert decide(first, second, tracebacks=(same[0], same[0].replace("7", "8"))).again
    # A cache that grew has come further; and what fails outside fails at the same place.
    assert decide(first, ended("python_error", present=20_000), tracebacks=same).again
    net = (ended("download_error", present=10_000), ended("download_error", present=10_000))
    assert decide(*net, tracebacks=same).again


def test_a_chained_traceback_is_known_by_its_last_part() -> None:
    chained = (
        TRACE + "a\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE.replace("7", "9")
    )
    assert last_traceback(chained + "b") == '  File "/a/b.py", line 9\nValueError'
    assert last_traceback("Traceback (most recent call last):\n  File") == ""


def test_the_sentence_says_pause_command_and_reason() -> None:
    decision = RetryDecision(True, "attempt 1 of 3 ended stalled", "waiting_for_network")
    told = describe_next(decision, THRICE, 1, "its peer may answer", 0.5)
    assert (told.sentence, told.pause_s) == ("again after 30 s, because its peer may answer", 30.0)
    resets = RetryPolicy(before_retry=["tt-smi", "-r"])
    at_once = describe_next(RetryDecision(True, "", "compile_error", 0), resets, 1, "it is so", 0.5)
    assert at_once.sentence == "again at once, after tt-smi -r, because it is so"
    no = describe_next(RetryDecision(False, "the disk is as full as before", "disk_full"), THRICE, 1, "", 0.5)
    assert (no.again, no.sentence, no.pause_s) == (False, "no further attempt: the disk is as full as before", None)
    extra = describe_next(RetryDecision(True, "the window was learned", extra=True), THRICE, 0, "", 0.5)
    assert (extra.again, extra.sentence, extra.pause_s) == (True, "again at once, because the window was learned", 0.0)
