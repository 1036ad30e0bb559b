"""Storage that refuses every write: what is seen of it, and when it makes a silence a stall."""

from __future__ import annotations

import pytest

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.watching.outcomes import describe_stall
from prefect_cachewatch.watching.refusal import Refusal, find_refusal
from prefect_cachewatch.watching.stall import Measurement, StallRule

GOOD = {
    "free_bytes": 1 << 30, "root_bytes": 1 << 30, "total_bytes": 1 << 32, "free_inodes": 100, "total_inodes": 1000,
    "block_bytes": 4096, "read_only": False, "is_root": False,
}  # fmt: skip
FULL = GOOD | {"free_bytes": 0, "root_bytes": 0}
FAULT = Refusal("disk_full", "the file system under /c is full (0 B of 4.00 GiB free)")


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (GOOD, None),
        (FULL, "disk_full"),
        (GOOD | {"free_bytes": 0}, "disk_full"),
        (GOOD | {"free_bytes": 0, "is_root": True}, None),  # root has the reserve
        (GOOD | {"free_bytes": 4095, "root_bytes": 4095}, "disk_full"),
        (GOOD | {"free_bytes": 4096, "root_bytes": 4096}, None),
        (GOOD | {"free_inodes": 0}, "inodes_exhausted"),
        (GOOD | {"free_inodes": 0, "total_inodes": None}, None),  # btrfs counts none
        (GOOD | {"read_only": True}, "read_only_filesystem"),
        ({"error": "Input/output error"}, None),
    ],
)
def test_what_refuses_every_write(now, kind):
    found = find_refusal(["/c"], [now], [GOOD], 4096)
    assert (found and found.kind) == kind


def test_the_generator_may_be_root_where_this_user_is_not():
    reserve = GOOD | {"free_bytes": 0}
    assert find_refusal(["/c"], [reserve], [GOOD], 4096, as_root=True) is None
    assert find_refusal(["/c"], [FULL], [GOOD], 4096, as_root=True) is not None


def test_a_view_that_was_read_only_at_the_start_says_nothing_of_the_generators():
    shown = GOOD | {"read_only": True}
    assert find_refusal(["/c"], [shown], [shown], 4096) is None


def test_one_directory_that_takes_writes_is_enough():
    assert find_refusal(["/a", "/b"], [FULL, GOOD], [GOOD, GOOD], 4096) is None
    assert find_refusal(["/a", "/b"], [FULL, FULL], [GOOD, GOOD], 4096).text.startswith(
        "the file system under /a is full"
    )


def test_without_a_look_there_is_no_fault():
    assert find_refusal(["/c"], [], [GOOD], 4096) is None
    assert find_refusal(["/c"], [FULL], [], 4096) is None


class Silence:
    """A rule fed with scans when it asks for them; writes until 15 s, then never again."""

    def __init__(self, full, **policy):
        self.rule, self.full, self.looks = StallRule(StallPolicy(**policy), 0.0), full, []

    def until(self, end=2000):
        now = 0.0
        while now < end:
            now += self.rule.next_delay_s()
            look = self.rule.asks_for_space(now)
            if look:
                self.looks.append(now)
            refusal = FAULT if look and any(begin <= now < stop for begin, stop in self.full) else None
            seen = Measurement(8192, 8192, newest_age_s=0.0, refusal=refusal)
            verdict = self.rule.observe(now, now, seen)
            if verdict.final:
                return now, verdict
        return now, None


def test_a_silence_on_full_storage_is_a_stall_after_three_looks():
    silence = Silence([(0, 2000)])
    at, verdict = silence.until()
    assert silence.looks == [45, 47, 49]
    assert (at, verdict.kind, verdict.window_s, verdict.refusal) == (49, "disk_full", 30, FAULT)
    text = describe_stall(verdict, ["/c"], "8.00 KiB in 1 file")
    assert text == (
        "Tensor cache generation stalled: no disk write activity detected for 34 s in /c (8.00 KiB in 1 file), and no write "
        "can succeed: the file system under /c is full (0 B of 4.00 GiB free)."
    )


def test_space_that_comes_back_clears_it_and_the_usual_window_counts():
    silence = Silence([(0, 48)])
    at, verdict = silence.until()
    assert silence.looks[:4] == [45, 47, 49, 64]
    assert (at, verdict.kind, verdict.refusal) == (315, "no_growth", None)
    again = Silence([(0, 48), (100, 2000)])
    assert again.until()[0] == 113  # at 109 the first of three looks


@pytest.mark.parametrize("poll_s", [7, 15, 40])
def test_the_first_look_waits_for_no_poll_and_costs_one_scan(poll_s):
    silence = Silence([], poll_s=poll_s)
    silence.rule.observe(4, 4, Measurement(8192, 8192, newest_age_s=0.0))
    scans, now = [], 4.0
    while now < 100:
        now += silence.rule.next_delay_s()
        scans.append(now)
        silence.rule.observe(now, now, Measurement(8192, 8192))
    assert 34 in scans
    polls = [at for at in scans if at != 34]
    assert len(polls) <= 96 / poll_s + 1


def test_growth_on_full_storage_is_growth():
    rule = StallRule(StallPolicy(), 0.0)
    for now in range(15, 600, 15):
        seen = Measurement(8192 * now, 8192 * now, newest_age_s=0.0, refusal=FAULT)
        assert rule.observe(now, now, seen).status == "growing"
