"""The stall rule with a fake clock: exact times, exact verdicts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.watching.servers.warmup import Warmup
from prefect_cachewatch.watching.stall import Measurement, StallRule, Verdict, effective_poll_s

MIB = 2**20


class Run:
    """A rule and its clock; `at` makes a scan that takes no time."""

    def __init__(self, started_s: float = 0.0, **policy: object) -> None:
        self.rule = StallRule(StallPolicy(**policy), started_s)
        self.bytes = self.kept = 0

    def at(self, t: float, written: int = 0, age_s: float | None = 0.0, *, kept: int | None = None,
           touched_age_s: float | None = None, began: float | None = None,
           told_age_s: float | None = None) -> Verdict:  # fmt: skip
        self.bytes += written
        self.kept += written if kept is None else kept
        seen = Measurement(
            self.bytes, self.bytes, self.kept, self.kept,
            newest_age_s=age_s if written else None, touched_age_s=touched_age_s, told_age_s=told_age_s,
        )  # fmt: skip
        return self.rule.observe(t if began is None else began, t, seen)

    def until_final(self, t: float, limit_s: float = 10**6) -> tuple[float, Verdict]:
        """Measure when the rule asks for it, nothing growing, until the verdict is final."""
        while t < limit_s:
            delay = self.rule.next_delay_s()
            assert delay > 0
            t += delay
            if (verdict := self.at(t)).final:
                return t, verdict
        raise AssertionError("no verdict")


def test_silence_for_the_window_after_growth_is_a_stall_to_the_second():
    run = Run(stall_after_s=300, first_write_within_s=1200, poll_s=15)
    assert run.at(15, MIB) == Verdict("growing", None, 0, 300)
    assert run.until_final(15) == (315, Verdict("stalled", "no_growth", 300, 300))


def test_before_the_first_byte_its_own_window_holds():
    run = Run(stall_after_s=300, first_write_within_s=1200, poll_s=15)
    assert run.rule.window_s == 1200
    assert run.until_final(0) == (1200, Verdict("stalled", "never_started", 1200, 1200))


def test_after_the_first_byte_the_stall_window_holds():
    run = Run(stall_after_s=60, first_write_within_s=1200, poll_s=15)
    for t in range(15, 1110, 15):
        assert not run.at(t).final
    assert run.at(1110, MIB) == Verdict("growing", None, 0, 60)
    assert run.rule.window_s == 60
    assert run.until_final(1110) == (1170, Verdict("stalled", "no_growth", 60, 60))


def test_a_stall_is_dated_from_the_files_change_and_not_from_the_poll_that_saw_it():
    run = Run(stall_after_s=100, poll_s=15)
    run.at(15, MIB)
    run.at(30, MIB, age_s=12)
    assert (run.rule.last_growth_s, run.rule.pause_s) == (18, 12)
    assert run.until_final(30)[0] == 118


def test_a_change_time_before_the_last_scan_is_taken_as_just_after_it():
    run = Run(stall_after_s=100, poll_s=15)
    run.at(15, MIB)
    run.at(30, MIB, age_s=10_000)
    assert run.rule.last_growth_s == 15


def test_a_change_time_in_the_future_is_now():
    run = Run(stall_after_s=100, poll_s=15)
    run.at(15, MIB, age_s=-3600)
    assert (run.rule.last_growth_s, run.rule.pause_s) == (15, 0)


def test_growth_during_the_scan_itself_leaves_no_pause():
    run = Run(stall_after_s=100, poll_s=15)
    run.at(25, MIB, age_s=2, began=15)
    assert (run.rule.last_growth_s, run.rule.pause_s) == (23, 0)


def test_the_verdict_rests_on_a_scan_that_began_when_the_window_had_passed():
    run = Run(stall_after_s=30, poll_s=15)
    run.at(0, MIB)
    run.at(15)
    assert not run.at(40, began=29.9).final  # it ended after the window, but looked before
    assert run.rule.next_delay_s() == pytest.approx(0.1)
    assert run.at(40.1, began=40).final


def test_polls_are_aligned_with_the_deadline():
    run = Run(stall_after_s=40, poll_s=15)
    run.at(0, MIB)
    due = []
    t = 0.0
    while not run.rule.pause_s >= 40:
        t += run.rule.next_delay_s()
        due.append(t)
        run.at(t)
    # 24 is 0.6 of the window: the suspicion has its deadline too; from 30 on the storage is looked at.
    assert due == [15, 24, 30, 40]


def test_a_tick_counts_at_most_two_polls_so_that_a_paused_machine_is_no_stall():
    run = Run(stall_after_s=300, poll_s=15)
    run.at(15, MIB)
    assert not run.at(10_000).final
    assert run.rule.pause_s == 30
    assert run.until_final(10_000)[0] == 10_270


def test_time_that_goes_backwards_counts_nothing():
    run = Run(stall_after_s=300, poll_s=15)
    run.at(15, MIB)
    run.at(10)
    assert run.rule.pause_s == 0


def test_growth_below_the_least_is_no_progress_until_it_adds_up():
    run = Run(stall_after_s=60, poll_s=15)
    run.at(0, MIB)
    run.at(15, 4000)
    assert run.rule.pause_s == 15
    run.at(30, 96)
    assert (run.rule.pause_s, run.rule.last_growth_s) == (0, 30)


@pytest.mark.parametrize("apparent", [True, False])
def test_either_counter_alone_is_progress(apparent):
    rule = StallRule(StallPolicy(stall_after_s=60, poll_s=15), 0)
    seen = Measurement(8192 if apparent else 0, 0 if apparent else 8192, newest_age_s=0)
    rule.observe(15, 15, seen)
    assert rule.first_write_s == 15


def test_a_touched_file_is_progress_only_when_that_was_asked_for():
    for progress, pause_s in (("bytes", 30), ("any", 0)):
        run = Run(stall_after_s=60, poll_s=15, progress=progress)
        run.at(0, MIB)
        run.at(15)
        run.at(30, touched_age_s=0)
        assert run.rule.pause_s == pause_s


# Suspicion


def test_before_eight_gaps_six_tenths_of_the_window_is_suspicious():
    run = Run(stall_after_s=100, poll_s=30)
    run.at(0, MIB)
    verdict = run.at(60)
    assert verdict.status == "suspected"
    assert verdict.suspicion.message == "no growth for 1 minute; a stall after 100 s"
    assert (verdict.suspicion.at_s, verdict.suspicion.pause_s, verdict.suspicion.cleared_at_s) == (60, 60, None)


def test_after_eight_gaps_three_times_the_longest_is_suspicious():
    run = Run(stall_after_s=300, poll_s=5)
    t = 0.0
    run.at(t, MIB)
    for gap in (10, 24, 10, 10, 10, 10, 10, 10):
        for _ in range(3):
            t += gap / 4
            run.at(t)
        t += gap / 4
        run.at(t, MIB)
    assert run.rule.longest_pause_s == 24
    assert run.rule.suspect_after_s == 72
    for _ in range(14):
        t += 5
        assert run.at(t).status == "growing"
    t += 2
    assert run.rule.next_delay_s() == 2
    verdict = run.at(t)
    assert verdict.status == "suspected"
    assert verdict.suspicion.message == "no growth for 72 s; the longest pause so far was 24 s"
    assert not verdict.final


def test_pauses_go_by_the_dates_of_growth_and_not_by_the_polls():
    run = Run(stall_after_s=300, poll_s=15)
    for n in range(10):
        run.at(15.0 * n, MIB, age_s=0.5)
    assert (run.rule.longest_pause_s, run.rule.longest_silence_s) == (0.5, 15)
    run.at(150)
    run.at(165, MIB, age_s=5)
    assert run.rule.longest_pause_s == 160 - 134.5


def test_a_suspicion_is_never_sooner_than_four_polls_and_never_later_than_six_tenths():
    run = Run(stall_after_s=300, poll_s=15)
    for n in range(10):
        run.at(15 * n, MIB, age_s=14)
    assert run.rule.suspect_after_s == 60
    for t in range(150, 240, 15):
        run.at(t)
    run.at(240, MIB)
    assert run.rule.suspect_after_s == 180


def test_a_suspicion_is_said_once_and_cleared_by_growth():
    run = Run(started_s=1000, stall_after_s=100, poll_s=30)
    run.at(1000, MIB)
    for t in (1030, 1060, 1090):
        run.at(t)
    assert len(run.rule.suspicions) == 1
    run.at(1095, MIB, age_s=1)
    assert run.rule.suspicions[0].cleared_at_s == 94
    for t in (1125, 1155):
        run.at(t)
    assert [(s.at_s, s.cleared_at_s) for s in run.rule.suspicions] == [(60, 94), (155, None)]


def test_before_the_first_byte_the_suspicion_says_what_is_due():
    run = Run(stall_after_s=100, first_write_within_s=1000, poll_s=15)
    t = 0.0
    while run.at(t).status == "growing":
        t += run.rule.next_delay_s()
    assert t == 600
    assert run.rule.suspicions[0].message == "no byte written in 10 minutes; the first is due within 16 min 40 s"


# Long pauses


# Churn


def churn(run: Run, start_s: int, end_s: int, step_s: int = 15) -> float | None:
    """Write and delete a megabyte at each step; returns when that was called churning."""
    for t in range(start_s, end_s, step_s):
        verdict = run.at(t, MIB, kept=0)
        if verdict.final:
            assert (verdict.status, verdict.kind) == ("stalled", "churning")
            return t
    return None


def test_writing_without_keeping_anything_for_four_windows_is_churning():
    assert churn(Run(stall_after_s=60, poll_s=15), 15, 1000) == 15 + 240


def test_temporary_files_seen_half_written_are_churning_all_the_same():
    # Each scan sees the one temporary file at another size: what is kept goes up and down and never up for good.
    random = Random(7)
    run, kept, flagged_s = Run(stall_after_s=300, poll_s=15), 0, None
    for t in range(15, 20_000, 15):
        now = random.randrange(2**30)
        if run.at(t, 2**31, kept=now - kept).final:
            flagged_s = t
            break
        kept = now
    assert flagged_s is not None
    assert 1215 <= flagged_s <= 6000


# Bytes written and kept at each measurement: what was there before is no kept growth, so that its removal takes none away.
KEEPS = {
    "a first byte after the churn window": [(0, 0)] * 199 + [(MIB, MIB)] * 200,
    "what it keeps of each write": [(MIB, MIB)] * 199,
    "shards that are merged and deleted late": [(MIB, MIB)] * 99 + [(90 * MIB, -5 * MIB)] + [(MIB, MIB)] * 299,
    "its own large cache that it deletes first": [(2**37, 2**37), (MIB, -(2**37))] + [(MIB, MIB)] * 197,
    "temporary files beside a cache that grows": [(64 * MIB, -62 * MIB), (64 * MIB, 63 * MIB)] * 199,
}


@pytest.mark.parametrize("name", KEEPS)
def test_one_that_keeps_something_is_not_churning(name):
    run = Run(stall_after_s=60, first_write_within_s=3600, poll_s=15)
    for number, (written, kept) in enumerate(KEEPS[name], start=1):
        assert not run.at(15 * number, written, kept=kept).final


def test_one_that_first_works_and_then_churns_is_churning_four_windows_later():
    run = Run(stall_after_s=60, poll_s=15)
    for t in range(15, 615, 15):
        run.at(t, MIB)
    seen = churn(run, 615, 5000)
    assert 600 + 240 <= seen <= 600 + 240 + 120


def test_a_pause_with_nothing_written_is_never_called_churning():
    run = Run(stall_after_s=60, poll_s=15)
    run.at(0, MIB, kept=0)
    assert run.until_final(0)[1].kind == "no_growth"


# Blindness


def test_a_scan_that_fails_is_neither_progress_nor_silence():
    run = Run(stall_after_s=60, poll_s=15)
    run.at(0, MIB)
    run.at(15)
    for t in (30, 45, 60):
        assert not run.rule.observe_blind(t, 10, missing=False).final
    assert run.rule.pause_s == 15
    run.at(75)
    assert run.rule.pause_s == 30


@pytest.mark.parametrize(("missing", "kind"), [(False, "filesystem_unresponsive"), (True, "cache_directory_missing")])
def test_blindness_for_its_window_is_its_own_verdict(missing, kind):
    run = Run(stall_after_s=60, poll_s=15)
    run.at(15, MIB)
    t, verdict = 15.0, Verdict("growing")
    while not verdict.final:
        t += run.rule.next_delay_s()
        verdict = run.rule.observe_blind(t, 10, missing=missing)
    assert (t, verdict) == (75, Verdict("stalled", kind, 60, 60))


def test_blindness_has_a_window_of_its_own_if_wanted():
    run = Run(stall_after_s=60, poll_s=15, unresponsive_after_s=20)
    assert not run.rule.observe_blind(15, 10, missing=False).final
    assert run.rule.next_delay_s() == 5
    assert run.rule.observe_blind(20, 10, missing=False).kind == "filesystem_unresponsive"


def test_one_good_scan_forgives_blindness():
    run = Run(stall_after_s=60, poll_s=15)
    run.at(0, MIB)
    run.rule.observe_blind(30, 10, missing=False)
    run.at(45, MIB)
    assert not run.rule.observe_blind(75, 10, missing=False).final


def test_a_machine_that_was_paused_while_blind_is_not_unresponsive():
    run = Run(stall_after_s=300, poll_s=15)
    run.at(0, MIB)
    assert not run.rule.observe_blind(100_000, 10, missing=False).final


def test_the_time_limit_holds_in_blindness_too():
    run = Run(stall_after_s=60, poll_s=15, max_duration_s=70, unresponsive_after_s=1000)
    run.at(0, MIB)
    for t in (30, 60):
        assert not run.rule.observe_blind(t, 10, missing=False).final
    assert run.rule.next_delay_s() == 10
    assert run.rule.observe_blind(70, 10, missing=False).status == "deadline_exceeded"


# Time limit


def test_the_time_limit_ends_a_run_that_grows():
    run = Run(started_s=1000, stall_after_s=60, poll_s=15, max_duration_s=100)
    for t in range(1015, 1091, 15):
        assert not run.at(t, MIB).final
    assert run.rule.next_delay_s() == 10
    assert run.at(1100, MIB) == Verdict("deadline_exceeded", None, 0, 60)


def test_a_stall_is_called_a_stall_when_both_are_due():
    run = Run(stall_after_s=60, poll_s=15, max_duration_s=60)
    run.at(0, MIB)
    assert run.until_final(0)[1].kind == "no_growth"


# The poll


@pytest.mark.parametrize(
    ("policy", "poll_s"),
    [
        ({}, 15),
        ({"stall_after_s": 30}, 15),
        ({"stall_after_s": 29}, 14.5),
        ({"stall_after_s": 1, "poll_s": 0.1}, 0.1),
        ({"first_write_within_s": 10}, 5),
        ({"max_duration_s": 2}, 1),
        ({"stall_after_s": 0.2}, 0.1),
    ],
)
def test_the_poll_fits_twice_into_every_window(policy, poll_s):
    assert effective_poll_s(StallPolicy(**policy)) == poll_s


# Properties

STEPS = st.lists(
    st.tuples(st.sampled_from(["grow", "churn", "nothing", "blind", "gone"]), st.floats(0, 1.5)), max_size=80
)


@given(STEPS, st.floats(1, 1000), st.floats(0.1, 100))
def test_whatever_happens_no_stall_is_said_before_its_window_has_passed(steps, window_s, poll_s):
    policy = StallPolicy(stall_after_s=window_s, first_write_within_s=2 * window_s, poll_s=poll_s)
    rule, t, written, kept, last_growth, last_sight = StallRule(policy, 0), 0.0, 0, 0, 0.0, 0.0
    for what, late in steps:
        t += rule.next_delay_s() * (1 + late)  # the machine is slow, never early
        if what in ("blind", "gone"):
            verdict = rule.observe_blind(t, 1.0, missing=what == "gone")
        else:
            written += MIB if what in ("grow", "churn") else 0
            kept += MIB if what == "grow" else 0
            age = 0.0 if what in ("grow", "churn") else None
            verdict = rule.observe(t, t, Measurement(written, written, kept, kept, age))
            last_sight = t
            if age is not None:
                last_growth = t
        assert rule.pause_s >= 0
        if verdict.kind in ("no_growth", "never_started"):
            assert t - last_growth >= verdict.window_s - 0.01
        if verdict.kind in ("filesystem_unresponsive", "cache_directory_missing"):
            assert t - last_sight >= window_s - 0.01
        if verdict.kind == "churning":
            assert t >= 4 * window_s - 0.01
        if verdict.final:
            return
        assert 0 < rule.next_delay_s() <= rule.poll_s


@settings(max_examples=30)
@given(st.floats(0.2, 3600), st.floats(0.5, 3600))
def test_a_silent_generator_is_stopped_at_its_window_at_any_poll(window_s, poll_s):
    run = Run(stall_after_s=window_s, poll_s=poll_s, first_write_within_s=7200)
    run.at(0, MIB)
    t, verdict = run.until_final(0)
    assert verdict.kind == "no_growth"
    assert t == pytest.approx(window_s, abs=0.0011)


def test_the_windows_allow_for_an_attribute_cache():
    windows = {"stall_after_s": 100, "first_write_within_s": 500, "attribute_cache_s": 60}
    rule = StallRule(StallPolicy(**windows, poll_s=10), 0.0)
    assert rule.window_s == 560
    rule.observe(10, 10, Measurement(8192, 8192, 8192, 8192, 0.0))
    assert (rule.window_s, rule.suspect_after_s) == (160, 96)
    t = 10
    while not (verdict := rule.observe(t, t, Measurement(8192, 8192, 8192, 8192))).final:
        t += rule.next_delay_s()
    assert (t, verdict.window_s) == (170, 160)


def test_a_file_that_is_overwritten_without_growth_is_progress_but_not_the_first_byte():
    run = Run(stall_after_s=100, first_write_within_s=400, poll_s=10)
    run.rule.observe(50, 50, Measurement(0, 0, overwriting_age_s=1.0))
    assert (run.rule.pause_s, run.rule.window_s, run.rule.first_write_s) == (1, 400, None)
    run.at(60, MIB)
    run.rule.observe(120, 120, Measurement(MIB, MIB, overwriting_age_s=0.0))
    assert (run.rule.pause_s, run.rule.window_s, run.rule.last_growth_s) == (0, 100, 120)
    assert run.until_final(120) == (220, Verdict("stalled", "no_growth", 100, 100))


def test_a_line_of_progress_ends_the_pause_as_bytes_do():
    run = Run(stall_after_s=300, poll_s=15)
    run.at(15, MIB)
    for t in range(30, 300, 15):
        run.at(t)
    assert run.at(300, told_age_s=10).status == "growing"
    assert (run.rule.pause_s, run.rule.last_growth_s, run.rule.first_write_s) == (10, 15, 15)
    assert run.until_final(300) == (590, Verdict("stalled", "no_growth", 300, 300))
    assert run.rule.longest_pause_s == 275


def test_a_line_of_progress_before_the_first_byte_is_no_byte():
    run = Run(stall_after_s=300, first_write_within_s=1200, poll_s=15)
    for t in range(600, 6000, 600):
        assert run.at(t, told_age_s=0).status == "growing"
    assert (run.rule.first_write_s, run.rule.window_s) == (None, 1200)
    assert run.until_final(5400) == (6600, Verdict("stalled", "never_started", 1200, 1200))


def test_a_line_of_progress_ends_a_suspicion_with_its_own_time():
    run = Run(stall_after_s=300, poll_s=15)
    run.at(15, MIB)
    assert [run.at(t).status for t in range(30, 225, 15)][-1] == "suspected"
    assert run.at(225, told_age_s=5).status == "growing"
    assert run.rule.suspicions[0].cleared_at_s == 220


def test_a_line_older_than_the_last_bytes_changes_nothing():
    run = Run(stall_after_s=300, poll_s=15)
    run.at(15, MIB)
    run.at(30, MIB, age_s=2, told_age_s=12)
    assert (run.rule.pause_s, run.rule.last_growth_s) == (2, 28)


def test_lines_of_progress_do_not_hide_churning():
    verdicts = []
    for told_age_s in (None, 1.0):
        run = Run(stall_after_s=60, poll_s=15)
        verdict, t = run.at(15, MIB), 15
        while not verdict.final:
            t += 15
            verdict = run.at(t, MIB, kept=0, told_age_s=told_age_s)
        verdicts.append((t, verdict.kind))
    assert verdicts[0] == verdicts[1]
    assert verdicts[0][1] == "churning"


def test_lines_of_progress_do_not_make_up_for_a_file_system_that_does_not_answer():
    run = Run(stall_after_s=60, poll_s=15, unresponsive_after_s=45)
    run.at(15, MIB, told_age_s=0)
    for t in (30, 45):
        assert not run.rule.observe_blind(t, 15, missing=False).final
    assert run.rule.observe_blind(60, 15, missing=False).kind == "filesystem_unresponsive"


def test_in_a_warm_up_a_line_of_progress_begins_its_window_anew():
    rule = StallRule(StallPolicy(stall_after_s=60, warmup_within_s=600, poll_s=15), 0.0, Warmup(600))
    rule.observe(15, 15, Measurement(MIB, MIB, MIB, MIB, newest_age_s=0.0))
    for t in range(30, 615, 15):
        assert not rule.observe(t, t, Measurement(MIB, MIB, MIB, MIB)).final
    assert rule.phases.now == "warm_up"
    assert not rule.observe(614, 614, Measurement(MIB, MIB, MIB, MIB, told_age_s=0.0)).final
    assert not rule.observe(630, 630, Measurement(MIB, MIB, MIB, MIB)).final
    assert (rule.phases.now, rule.pause_s, rule.window_s) == ("warm_up", 16, 600)
