"""Waiting for a generator's end: the end may come between a wait and the look at what it left."""

from __future__ import annotations

from typing import cast

import pytest

from prefect_cachewatch.errors import GuardError
from prefect_cachewatch.supervise.helper_client import HelperClient
from prefect_cachewatch.supervise.supervisor import Supervisor, TreeEnd, wait_for_report

ENDED = TreeEnd("stop", None, 15, 0.5)


class JustTooLate(HelperClient):
    """Ends as soon as a wait for it is over."""

    def __init__(self, left: TreeEnd | None) -> None:
        super().__init__("guard", "c" * 32)
        self._left = left

    def wait(self, timeout_s: float) -> TreeEnd | None:
        found = super().wait(timeout_s)
        self._has_ended(self._left)
        return found


def wait(left: TreeEnd | None) -> TreeEnd | None:
    return wait_for_report(cast(Supervisor, JustTooLate(left)), 0.0)


def test_an_end_that_comes_just_after_the_wait_is_no_guard_without_a_report():
    assert wait(ENDED) is ENDED


def test_an_end_without_a_report_is_an_error():
    with pytest.raises(GuardError, match="ended without a report: look for leftovers of the command"):
        wait(None)


def test_what_goes_on_has_no_report_yet():
    assert wait_for_report(cast(Supervisor, HelperClient("guard", "c" * 32)), 0.0) is None
