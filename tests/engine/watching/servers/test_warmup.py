"""Warm-up with a fake clock: when silence is one, and how long it may last."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.watching.servers.warmup import PhaseChange, Warmup
from prefect_cachewatch.watching.stall import Measurement, StallRule, Verdict

MIB = 2**20
WINDOWS = {"stall_after_s": 300, "first_write_within_s": 1200, "poll_s": 15}


class Server:
    """A rule with warm-up, its clock, and the bytes that it has been told of."""

    def __init__(self, within_s: float = 1800, windows: dict[str, float] | None = None, **warmup: object) -> None:
        self.warmup = Warmup(within_s, **warmup)
        self.rule = StallRule(StallPolicy(**(windows or WINDOWS)), 0.0, self.warmup)
        self.written, self.present = 0, self.warmup.present_at_start
        self.now = 0.0

    def at(self, t: float, written: int = 0) -> Verdict:
        self.now = t
        self.written += written
        self.present += written
        seen = Measurement(
            self.written, self.written, self.written, self.written,
            newest_age_s=0.0 if written else None, bytes_present=self.present,
        )  # fmt: skip
        return self.rule.observe(t, t, seen)

    def poll_until(self, t: float) -> None:
        """Measure at each poll, nothing growing."""
        while self.now < t:
            self.at(min(t, self.now + 15))

    def until(self, phase: str | None = None) -> tuple[float, Verdict]:
        """Measure when the rule asks for it, nothing growing, until a phase begins or the verdict is final."""
        while self.now < 10**6:
            delay_s = self.rule.next_delay_s()
            assert delay_s > 0
            verdict = self.at(self.now + delay_s)
            if verdict.final or self.rule.phases.now == phase:
                return self.now, verdict
        raise AssertionError("no verdict")


def test_silence_after_the_last_byte_is_warm_up_and_lasts_no_longer_than_its_window():
    server = Server()
    server.at(15, MIB)
    assert server.until("warm_up") == (315, Verdict("growing", None, 300, 1800))
    assert server.until() == (1815, Verdict("stalled", "never_ready", 1800, 1800))
    assert server.rule.phases.changes == [
        PhaseChange(15, "writing", "the first byte"),
        PhaseChange(315, "warm_up", "silent for 5 minutes after its last byte"),
    ]


def test_growth_in_warm_up_returns_to_writing_and_its_window_counts_from_the_new_last_byte():
    server = Server()
    server.at(15, MIB)
    server.until("warm_up")
    server.at(1000, MIB)
    assert server.rule.phases.now == "writing"
    assert server.until("warm_up")[0] == 1300
    assert server.until() == (2800, Verdict("stalled", "never_ready", 1800, 1800))
    assert [change.phase for change in server.rule.phases.changes] == ["writing", "warm_up", "writing", "warm_up"]


def test_with_an_expected_size_warm_up_needs_95_per_cent_of_it():
    short, enough = Server(expected_bytes=100 * MIB), Server(expected_bytes=100 * MIB)
    short.at(15, 95 * MIB - 1)
    enough.at(15, 95 * MIB)
    assert short.until() == (315, Verdict("stalled", "no_growth", 300, 300))
    assert enough.until("warm_up")[0] == 315
    assert enough.rule.phases.changes[-1].why == "silent for 5 minutes with 95.0 MiB of the expected 100 MiB present"
    assert enough.until()[1].kind == "never_ready"


def test_a_server_on_a_full_cache_writes_nothing_and_is_not_killed_for_it():
    server = Server(present_at_start=MIB)
    assert server.until("warm_up") == (1200, Verdict("growing", None, 1200, 3000))
    why = "silent for 20 minutes without a byte written, on a cache that was there before"
    assert server.rule.phases.changes == [PhaseChange(1200, "warm_up", why)]
    assert server.until() == (3000, Verdict("stalled", "never_ready", 3000, 3000))


def test_a_server_on_an_empty_cache_that_never_writes_never_started():
    assert Server().until() == (1200, Verdict("stalled", "never_started", 1200, 1200))


def test_a_server_on_a_cache_that_is_smaller_than_expected_and_does_not_grow_never_started():
    server = Server(present_at_start=MIB, expected_bytes=2 * MIB)
    assert server.until() == (1200, Verdict("stalled", "never_started", 1200, 1200))


def test_a_warm_up_shorter_than_the_stall_window_ends_where_it_would_begin():
    server = Server(within_s=60)
    server.at(15, MIB)
    assert server.until() == (315, Verdict("stalled", "never_ready", 300, 60))


def test_silence_that_would_be_warm_up_is_not_suspected_and_any_other_is():
    server, stalling = Server(), Server(expected_bytes=100 * MIB)
    server.at(15, MIB)
    stalling.at(15, MIB)
    server.until()
    stalling.until()
    assert server.rule.suspicions == []
    assert [each.at_s for each in stalling.rule.suspicions] == [195]


def test_the_time_limit_of_an_attempt_holds_in_warm_up_too():
    server = Server(windows=WINDOWS | {"max_duration_s": 600})
    server.at(15, MIB)
    assert server.until() == (600, Verdict("deadline_exceeded", None, 585, 1800))


def test_a_file_system_that_cannot_be_measured_in_warm_up_is_blindness_not_silence():
    server = Server()
    server.at(15, MIB)
    server.until("warm_up")
    for t in range(330, 615, 15):
        assert not server.rule.observe_blind(t, 10, missing=False).final
    assert server.rule.observe_blind(615, 10, missing=False).kind == "filesystem_unresponsive"


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(1, 400), st.sampled_from([0, 0, MIB])), min_size=1, max_size=40),
    expected=st.sampled_from([None, 5 * MIB]),
    present=st.sampled_from([0, 7 * MIB]),
)
def test_a_verdict_never_falls_before_its_window_and_never_ready_only_in_warm_up(steps, expected, present):
    server = Server(expected_bytes=expected, present_at_start=present)
    now, last_growth = 0.0, 0.0
    for delay_s, written in steps:
        now += delay_s
        verdict = server.at(now, written)
        if written:
            last_growth = now
        if verdict.final:
            windows = {"no_growth": 300, "never_started": 1200, "never_ready": 1800, "churning": 0}
            assert now - last_growth >= windows[verdict.kind] - 1e-2
            if verdict.kind == "never_ready":
                assert server.rule.phases.now == "warm_up"
            if verdict.kind == "no_growth":
                assert expected is not None
            break
    ats = [change.at_s for change in server.rule.phases.changes]
    assert ats == sorted(ats)
    pairs = zip(server.rule.phases.changes, server.rule.phases.changes[1:], strict=False)
    assert all(before.phase != after.phase for before, after in pairs)
