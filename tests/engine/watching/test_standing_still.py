"""What the rule makes of time in which nobody watched, and of dates that cannot be true."""

from __future__ import annotations

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.measure.ledger import AgeClock
from prefect_cachewatch.watching.stall import Measurement, StallRule

S = 10**9


def rule(**policy: float) -> StallRule:
    return StallRule(StallPolicy(**{"stall_after_s": 10, "first_write_within_s": 10, "poll_s": 5} | policy), 0.0)


def test_time_by_which_a_scan_was_late_is_no_pause() -> None:
    watched = rule()
    watched.observe(4, 4, Measurement(0, 0))
    assert watched.observe(104, 104, Measurement(0, 0), late_s=98).status != "stalled"
    assert watched.pause_s == 6


def test_a_timers_error_counts_as_pause() -> None:
    watched = rule()
    watched.observe(5.1, 5.1, Measurement(0, 0), late_s=0.1)
    assert watched.pause_s == 5.1


def test_growth_seen_after_a_standstill_is_taken_as_new() -> None:
    watched = rule()
    watched.observe(5, 5, Measurement(0, 0))
    watched.observe(105, 105, Measurement(9000, 0, newest_age_s=99), late_s=95)
    assert watched.pause_s == 0


def test_a_late_first_byte_is_no_churning() -> None:
    watched = StallRule(StallPolicy(stall_after_s=300, first_write_within_s=1200, poll_s=15), 0.0)
    verdicts = []
    for tick in range(1, 121):
        at_s, kept = 15.0 * tick, max(0, 15 * tick - 1140) // 60 * 9000
        grown = kept and (15 * tick - 1140) % 60 == 0
        verdicts.append(watched.observe(at_s, at_s, Measurement(kept, kept, kept, kept, 0.0 if grown else None)).status)
    assert "stalled" not in verdicts


def test_churning_is_counted_from_the_first_write() -> None:
    watched = StallRule(StallPolicy(stall_after_s=300, first_write_within_s=1200, poll_s=15), 0.0)
    found = None
    for tick in range(1, 400):
        at_s, written = 15.0 * tick, max(0, 15 * tick - 1125) * 1000
        verdict = watched.observe(at_s, at_s, Measurement(written, written, 0, 0, 0.0))
        if verdict.final:
            found = (at_s, verdict.kind)
            break
    assert found == (1140 + 1200, "churning")


def test_the_next_delay_is_never_a_rounding_error() -> None:
    watched = StallRule(StallPolicy(stall_after_s=28.5, first_write_within_s=28.5, poll_s=0.2), 0.0)
    watched.pause_s = 0.6 * 28.5 - 4e-15
    assert watched.next_delay_s() == 0.2


def test_an_age_is_the_time_since_the_change() -> None:
    clock = AgeClock()
    clock.ages_s(100 * S, 0, 0, [None])
    assert clock.ages_s(110 * S, 10 * S, 10 * S, [107 * S, None]) == [3.0, None]


def test_an_age_across_a_step_of_the_wall_clock_is_unknown() -> None:
    for step in (3600, -3600):
        clock = AgeClock()
        clock.ages_s(10_000 * S, 0, 0, [None])
        assert clock.ages_s((10_010 + step) * S, 10 * S, 10 * S, [10_005 * S]) == [0.0]


def test_a_change_dated_before_the_last_scan_is_unknown() -> None:
    clock = AgeClock()
    clock.ages_s(10_000 * S, 0, 0, [None])
    assert clock.ages_s(10_010 * S, 10 * S, 10 * S, [9_000 * S]) == [0.0]
