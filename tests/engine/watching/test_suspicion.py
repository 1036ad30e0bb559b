"""Whether a silence is the storage's: the rule on standings, how long a stall waits, and what one run learns of the others."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import eventually

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.watching import neighbours as neighbours_of
from prefect_cachewatch.watching.neighbours import Neighbours, Prober
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.stall import Measurement, StallRule
from prefect_cachewatch.watching.suspicion import Standing, Suspected, fell_silent, is_majority, is_suspected

W = 300.0
SILENCES = st.lists(st.one_of(st.none(), st.floats(0, 2000)), max_size=12)


def runs(*since: float | None) -> list[Standing]:
    return [Standing(f"run-{n:02}", f"job-{n}", at) for n, at in enumerate(since)]


@pytest.mark.parametrize(
    ("silent", "active", "well", "slow", "dead", "unknown"),
    [
        (1, 1, False, False, False, False),  # alone: judged as ever
        (1, 2, False, False, False, False),
        (2, 2, False, True, True, False),
        (2, 3, False, False, False, False),
        (3, 3, False, True, True, True),
        (3, 5, False, True, True, True),
        (3, 6, False, False, False, False),
        (12, 12, False, True, True, True),
    ],
)
def test_how_many_silent_runs_of_how_many_make_a_storage_suspected(
    silent: int, active: int, well: bool, slow: bool, dead: bool, unknown: bool
) -> None:
    found = [is_suspected(silent, active, probed) for probed in ("well", "slow", "dead", "unknown")]  # type: ignore[arg-type]
    assert found == [well, slow, dead, unknown]


@given(SILENCES, st.floats(1, 500))
def test_a_group_began_within_one_window_contains_the_run_itself_and_no_run_that_moves(
    since: list[float | None], window_s: float
) -> None:
    standings = runs(*since)
    for one in standings:
        group = fell_silent(one.run, standings, window_s)
        assert (one in group) == (one.silent_since_s is not None)
        begins = [each.silent_since_s for each in group if each.silent_since_s is not None]
        assert len(begins) == len(group) and (not begins or max(begins) - min(begins) <= window_s * (1 + 1e-9))
        assert group == fell_silent(one.run, list(reversed(standings)), window_s)


def test_silences_a_window_apart_are_not_one_fault() -> None:
    standings = runs(0.0, W + 1, 2 * W + 2)
    assert [len(fell_silent(one.run, standings, W)) for one in standings] == [1, 1, 1]
    assert len(fell_silent("run-01", runs(0.0, W, 2 * W), W)) == 2  # and no chain of them


@given(st.integers(0, 20), st.integers(0, 20))
def test_nothing_is_suspected_that_was_not_worth_a_probe(silent: int, active: int) -> None:
    if any(is_suspected(silent, active, probed) for probed in ("well", "slow", "dead", "unknown")):  # type: ignore[arg-type]
        assert is_majority(silent, active)


class Silence:
    """A rule of which one file grew at 10 s and nothing after it."""

    def __init__(self, **policy: Any) -> None:
        self.rule = StallRule(StallPolicy(stall_after_s=W, poll_s=15, **policy), 0)
        self.t = 10.0
        self.rule.observe(10, 10, Measurement(10**6, 10**6, newest_age_s=0))

    def until_stall(self, fate: Any, limit_s: float = 5000) -> float:
        """Measure when the rule asks for it; return the pause at the verdict."""
        while self.t < limit_s:
            delay_s = self.rule.next_delay_s()
            assert delay_s > 0
            self.t += delay_s
            verdict = self.rule.observe(self.t, self.t, Measurement(10**6, 10**6))
            if verdict.final and self.rule.hold_back(verdict, fate(self.t)).final:
                return self.rule.pause_s
        raise AssertionError("no verdict")


@pytest.mark.parametrize(
    ("policy", "fate", "pause_s"),
    [
        ({}, lambda t: "never suspected", W),
        ({}, lambda t: "suspected", 4 * W),  # its window, the patience of two, and one whole window more
        ({"storage_patience_s": 60}, lambda t: "suspected", 2 * W + 60),
        ({"storage_patience_s": 0}, lambda t: "suspected", W),
        ({}, lambda t: "suspected before", 2 * W),  # the storage is well again: a whole window from then on
        ({}, lambda t: "suspected" if t < 500 else "suspected before", None),
    ],
)
def test_a_stall_waits_for_the_patience_and_then_for_one_whole_window(
    policy: Any, fate: Any, pause_s: float | None
) -> None:
    found = Silence(**policy).until_stall(fate)
    assert found == pytest.approx(pause_s) if pause_s is not None else 490 + W <= found <= 490 + W + 15


@pytest.mark.parametrize("every", [2, 5, 10, 19])
def test_scans_that_fail_now_and_then_do_not_put_a_stall_off_for_ever(every: int) -> None:
    rule, t, n = Silence().rule, 10.0, 0
    while t < 24 * 3600:
        t, n = t + rule.next_delay_s(), n + 1
        if n % every:
            verdict = rule.observe(t, t, Measurement(10**6, 10**6))
        else:
            verdict = rule.observe_blind(t, 15, missing=False)
        if verdict.final and rule.hold_back(verdict, "suspected").final:
            break
    assert t <= 9 * W  # each second scan is blind, and is no pause


def test_a_storage_that_was_blind_and_then_is_silent_has_one_patience() -> None:
    silence = Silence()
    while silence.t < 800:
        silence.t += silence.rule.next_delay_s()
        verdict = silence.rule.observe_blind(silence.t, 15, missing=False)
        assert not (verdict.final and silence.rule.hold_back(verdict, "suspected").final)
    silence.until_stall(lambda t: "suspected")
    assert silence.t <= 4 * W + 60


def test_growth_ends_a_silence_and_the_next_one_has_its_own_patience() -> None:
    silence = Silence()
    assert silence.until_stall(lambda t: "suspected") == pytest.approx(4 * W)
    silence.t += 15
    silence.rule.observe(silence.t, silence.t, Measurement(2 * 10**6, 2 * 10**6, newest_age_s=0))
    assert silence.rule.window_s == W
    at_s = silence.t
    silence.rule.observe(at_s, at_s, Measurement(2 * 10**6, 2 * 10**6))


def test_a_directory_that_cannot_be_measured_waits_too_and_a_missing_one_does_not() -> None:
    for missing, expected_s in ((False, 4 * W), (True, W)):
        rule = StallRule(StallPolicy(stall_after_s=W, poll_s=15), 0)
        t = 0.0
        while True:
            t += rule.next_delay_s()
            verdict = rule.observe_blind(t, 15, missing=missing)
            if verdict.final and rule.hold_back(verdict, "suspected").final:
                break
        assert verdict.pause_s == pytest.approx(expected_s)
    blind = StallRule(StallPolicy(stall_after_s=W, poll_s=15), 0)
    assert blind.silence is None
    blind.observe_blind(15, 15, missing=False)
    assert blind.silence == (15, W)


def test_other_verdicts_do_not_wait() -> None:
    rule = StallRule(StallPolicy(stall_after_s=W), 0)
    for verdict in (rule.observe(1200, 1200, Measurement(0, 0)),):
        assert rule.hold_back(verdict, "suspected") is verdict


class Table:
    """A board in memory, and all runs on it."""

    def __init__(self, me: str, others: list[Standing]) -> None:
        self.me, self.others, self.said, self.left = me, others, [], False  # type: ignore[var-annotated]
        self.followed: list[Suspected | None] = []

    def say(self, silent_s: float | None) -> None:
        self.said.append(silent_s)

    def read(self) -> list[Standing]:
        return [*self.others, Standing(self.me, "mine", 0.0)]

    def follow(self, suspected: Suspected | None, window_s: float) -> bool:
        self.followed.append(suspected)
        return False

    def leave(self) -> None:
        self.left = True


def watch_with(silence: tuple[float, float] | None) -> Any:
    state = SimpleNamespace(rule=SimpleNamespace(silence=silence, poll_s=0.5), note=lambda text: None)
    site = SimpleNamespace(scanner=SimpleNamespace(last_scan_s=0.0))
    return SimpleNamespace(state=state, stall=StallPolicy(stall_after_s=2, poll_s=0.5), site=site, ended=False)


def test_one_run_learns_of_the_others_and_forgets_when_it_moves() -> None:
    told: list[str] = []
    board = Table("me", runs(0.1, 0.2))

    def refuse() -> float:
        raise TimeoutError

    neighbours = Neighbours("nas", board, Prober(refuse), told.append)
    assert neighbours.fate() == "never suspected"
    neighbours.sampled(watch_with((1.5, 2.0)))
    eventually(lambda: neighbours.fate() == "suspected")
    assert told == [
        "storage nas is suspected: 3 of 3 runs on it fell silent together (mine, job-0, job-1), and a write to it does not "
        "return; stalls wait for up to 4 s"
    ]
    neighbours.sampled(watch_with((0.0, 2.0)))
    assert neighbours.fate() == "never suspected"
    eventually(lambda: board.said[-1] is None)
    neighbours.close()
    eventually(lambda: board.left)


def test_a_run_that_has_not_written_says_nothing() -> None:
    board = Table("me", [])
    neighbours = Neighbours("nas", board, Prober(lambda: 0.01), clock=lambda: 0.0)  # every measurement is in time
    neighbours.sampled(watch_with(None))
    eventually(lambda: board.said, 1.5)  # its first look is after 1 s
    assert board.said == []
    neighbours.sampled(watch_with((0.1, 2.0)))
    eventually(lambda: board.said)
    assert board.said == [None]
    neighbours.close()


def test_a_thread_that_cannot_start_stops_nothing_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    board = Table("me", [])
    neighbours = Neighbours("nas", board, Prober(lambda: 0.01))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        neighbours.sampled(watch_with((1.5, 2.0)))
        neighbours.close()
    again = Neighbours("nas", board, Prober(lambda: 0.01))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        again.sampled(watch_with((1.5, 2.0)))
    again.sampled(watch_with((1.5, 2.0)))
    eventually(lambda: board.said)
    again.close()


def test_a_board_that_hangs_or_fails_delays_nothing_and_nothing_is_suspected() -> None:
    released = threading.Event()

    class Hung(Table):
        def read(self) -> list[Standing]:
            released.wait(60)
            raise OSError

    neighbours = Neighbours("nas", Hung("me", []), Prober(lambda: 9.0))
    neighbours.sampled(watch_with((1.5, 2.0)))
    neighbours.sampled(watch_with((2.5, 2.0)))
    assert neighbours.fate() == "never suspected"
    neighbours.close()
    released.set()


def test_a_run_that_ends_during_a_probe_does_nothing_about_its_storage_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbours_of, "_DEAD_S", (60.0, 60.0))
    released, begun = threading.Event(), threading.Event()

    def write() -> float:
        begun.set()
        released.wait(60)
        return 0.0

    board = Table("me", runs(0.1, 0.2))
    neighbours = Neighbours("nas", board, Prober(write))
    neighbours.sampled(watch_with((1.5, 2.0)))
    assert begun.wait(60)
    neighbours.close()
    eventually(lambda: board.left)
    assert board.followed == [] and neighbours.fate() == "never suspected"
    released.set()


def test_a_write_that_does_not_return_is_dead_and_is_not_begun_again_before_it_has() -> None:
    released, begun = threading.Event(), []

    def write() -> float:
        begun.append(1)
        released.wait(60)
        return 70.0

    prober = Prober(write)
    assert [prober.look(0.05), prober.look(0.05)] == ["dead", "dead"]
    assert len(begun) == 1
    released.set()
    assert prober.look(30) == "slow"
    assert [Prober(lambda: 0.01).look(30), Prober(lambda: 1 // 0).look(30)] == ["well", "unknown"]


@pytest.mark.parametrize("name", [".fuse_hidden0001", ".nfs0001", ".cachewatch-probe-1"])
def test_a_removed_file_that_is_still_open_is_no_growth_whatever_a_job_ignores(tmp_path: Path, name: str) -> None:
    with CacheDirectories([tmp_path], ignore=["*.log"]) as site:
        site.begin()
        (tmp_path / name).write_bytes(bytes(1 << 20))
        assert site.scanner.request("scan")["growth"]["bytes_written"] == 0
