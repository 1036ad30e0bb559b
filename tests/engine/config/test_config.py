"""The inputs: bounds, messages, and the pauses between attempts."""

import pytest
from pydantic import ValidationError

from prefect_cachewatch import config
from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy

JOB = {"name": "x", "command": ["true"], "cache_dirs": ["/mnt/x"]}


def test_the_documented_defaults_stand():
    stall, retry = StallPolicy(), RetryPolicy()
    assert (stall.stall_after_s, stall.first_write_within_s, stall.poll_s) == (300, 1200, 15)
    assert stall.progress == "bytes"
    assert stall.max_duration_s is None
    assert StopPolicy().grace_s == 10
    assert (retry.attempts, retry.backoff_s, retry.on_retry, retry.retry_stalls) == (3, 30, "resume", True)
    assert CacheJob(**JOB).ignore == list(config.DEFAULT_IGNORE)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (CacheJob, JOB | {"cache_dirs": ["relative/dir"]}),
        (CacheJob, JOB | {"command": []}),
        (CacheJob, JOB | {"name": ""}),
        (CacheJob, JOB | {"env": {"1A": "x"}}),
        (CacheJob, JOB | {"expected_bytes": 0}),
        (CacheJob, JOB | {"comand": ["typo"]}),
        (StallPolicy, {"stall_after_s": 0}),
        (StallPolicy, {"stall_after_s": float("nan")}),
        (StallPolicy, {"progress": "hope"}),
        (RetryPolicy, {"attempts": 0}),
    ],
)
def test_input_out_of_bounds_is_refused(model, values):
    with pytest.raises(ValidationError):
        model(**values)


def test_a_window_may_be_learned_below_the_configured_one():
    assert StallPolicy(stall_after_s="learned").model_dump(exclude_unset=True) == {"learned": True}
    found = StallPolicy.model_validate_json('{"stall_after_s": "learned:10m", "poll_s": 5}')
    assert (found.stall_after_s, found.learned, found.poll_s) == (600, True, 5)
    assert StallPolicy(learned=True, stall_after_s="5m") == StallPolicy(stall_after_s="learned")
    assert not StallPolicy().learned
    for wrong in ("learned:", "learned:soon", "learnt", "learned:0s", "learned:9000h"):
        with pytest.raises(ValidationError):
            StallPolicy(stall_after_s=wrong)
