"""Whether a failed attempt is made again, after a stop by a learned window: pure."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.run.retry import RetryDecision, count_attempts, decide_retry
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.learned import LearnedWindow

LEARNED = LearnedWindow(30.0, 300.0, 9, 1.0)
ONCE_MORE = RetryDecision(True, "the window was learned: once more with the configured one", extra=True)


def attempt(name: str = "stalled", kind: str | None = "no_growth", learned: LearnedWindow | None = LEARNED) -> Outcome:
    values: dict[str, Any] = dict.fromkeys(Outcome.__dataclass_fields__)
    return Outcome(**{**values, "name": name, "kind": kind, "growth": Growth(), "learned": learned})


def decide(*outcomes: Outcome, **policy: Any) -> RetryDecision:
    return decide_retry(RetryPolicy(**policy), outcomes, 0)


@pytest.mark.parametrize("policy", [{"attempts": 1}, {"attempts": 3}, {"retry_stalls": False}])
def test_a_stop_by_a_learned_window_is_no_failure_yet_whatever_the_policy(policy: dict[str, Any]):
    assert decide(attempt(), **policy) == ONCE_MORE


def test_it_uses_up_no_attempt_and_counts_as_no_barren_one():
    configured = attempt(learned=None)
    assert count_attempts([attempt(), configured]) == 1
    assert not decide(attempt(), configured, attempts=1).again
    assert decide(attempt(), configured, attempts=2).reason == "attempt 1 of 2 ended stalled"
    assert decide(attempt(), configured, attempts=3).again
    assert not decide(attempt(), configured, configured, attempts=9).again


@pytest.mark.parametrize(
    ("name", "kind"),
    [("stalled", "never_started"), ("stalled", "churning"), ("stalled", "filesystem_unresponsive"), ("failed", None),
     ("deadline_exceeded", None), ("cancelled", None)],
)  # fmt: skip
def test_any_other_end_is_as_before(name: str, kind: str | None):
    outcome = attempt(name, kind)
    assert outcome.learned_stop is None
    assert not decide(outcome, attempts=1).again
