"""What follows a cause, as `--retry-cause` says it."""

from __future__ import annotations

import pytest

from prefect_cachewatch.cli.generate import _RETRY
from prefect_cachewatch.cli.options.retry_cause import read_causes
from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.errors import InputError


def test_each_word_is_a_field_of_the_cause():
    given = _RETRY.given(
        {"by_cause": ("disk_full=again, 10m", "compile_error=never", "device_fault=reset,kernel_cache,90")}
    )
    by_cause = RetryPolicy(by_cause=read_causes(given["by_cause"])).by_cause
    assert {name: own.model_dump() for name, own in by_cause.items()} == {
        "disk_full": {"again": True, "pause_s": 600.0, "change": None},
        "compile_error": {"again": False, "pause_s": None, "change": None},
        "device_fault": {"again": None, "pause_s": 90.0, "change": ["reset", "kernel_cache"]},
    }
    assert read_causes({"waiting_for_network": "unchanged"}) == {"waiting_for_network": {"change": []}}


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("disk_ful=again", "--retry-cause: disk_ful is no cause: did you mean disk_full?"),
        ("disk_full", "--retry-cause 'disk_full' is not CATEGORY=WHAT"),
        ("disk_full=", "--retry-cause disk_full=: give again, never, a pause such as 10m, "),
        ("disk_full=again,\x1b[2J", "--retry-cause disk_full=\\x1b[2J: give again, never, "),
    ],
)
def test_a_word_that_is_not_known_is_one_sentence(pair: str, said: str):
    with pytest.raises(InputError) as caught:
        read_causes(_RETRY.given({"by_cause": (pair,)})["by_cause"])
    assert caught.value.message.startswith(said)
