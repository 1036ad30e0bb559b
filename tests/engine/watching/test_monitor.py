"""The monitor with a fake scanner and a fake clock: what it asks, and what it makes of the answers."""

from __future__ import annotations

import pytest

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.errors import ScanError, ScanTimeout
from prefect_cachewatch.measure.ledger import Growth
from prefect_cachewatch.watching.monitor import SAMPLES_MAX, GrowthMonitor
from prefect_cachewatch.watching.stall import StallRule

ROOT = {"path": "/c", "device": 1, "inode": 5, "missing": False, "error": None}


class FakeScanner:
    """Answers from a script: a dict is an answer, an exception is raised, None is silence until the deadline."""

    deadline_s, last_scan_s = 10.0, 0.01

    def __init__(self, world):
        self.world, self.pending, self.sent, self.asked = world, False, [], []

    def send(self, operation, **arguments):
        self.sent.append(operation)
        self.asked.append(arguments)
        self.pending = True

    def receive(self, timeout_s):
        step = self.world.script[0]
        if step is None:
            self.world.now += timeout_s
            raise ScanTimeout("silence")
        self.world.script.pop(0)
        self.pending = False
        if isinstance(step, Exception):
            raise step
        return step


class World:
    """A site, a clock and a script."""

    on_network = False
    paths, ignore, shared = ["/c"], [], []

    def __init__(self, *script, **policy):
        self.now, self.script, self.restarts = 0.0, list(script), 0
        self.scanner = FakeScanner(self)
        self.rule = StallRule(StallPolicy(**{"stall_after_s": 60, "poll_s": 15, **policy}), 0.0)
        self.monitor = GrowthMonitor(self, self.rule, lambda: self.now, answer(0))

    def restart_scanner(self):
        self.restarts += 1
        self.scanner = FakeScanner(self)

    def measure(self, at=None):
        self.now = self.now if at is None else at
        return self.monitor.measure(lambda: False)


def answer(written, *, scan=0, age_s=0.0, grown=None, errors=(), scan_s=0.01, **root):
    grown = written > 0 if grown is None else grown
    growth = Growth(written, written, written, written, written, written, 1, None, 1 if grown else None,
                    "/c/f" if grown else None)  # fmt: skip
    return {
        "roots": [ROOT | root], "directories": 1, "errors": list(errors), "scan": scan, "scan_s": scan_s,
        "growth": growth._asdict(), "newest_changed_age_s": age_s if grown else None, "touched_age_s": None,
    }  # fmt: skip


def test_growth_is_taken_over_and_dated():
    world = World(answer(8192, scan=1, age_s=4))
    assert world.measure(at=15).status == "growing"
    assert (world.rule.last_growth_s, world.monitor.growth.bytes_written, world.monitor.last_path) == (11, 8192, "/c/f")


def test_growth_on_a_network_file_system_is_dated_by_when_it_was_seen():
    world = World(answer(8192, scan=1, age_s=4))
    world.on_network = True
    world.measure(at=15)
    assert world.rule.last_growth_s == 15


def test_a_scan_that_does_not_answer_is_blindness_and_its_late_answer_is_not_the_next_scans():
    world = World(None, stall_after_s=60)
    assert world.measure(at=15).status == "growing"
    assert world.monitor.problem == "the file system does not answer"
    assert world.scanner.pending
    world.script[:] = [answer(8192, scan=1), answer(8192, scan=2, grown=False)]
    world.measure(at=40)
    assert world.scanner.sent == ["scan", "scan"]
    assert world.rule.first_write_s == 40
    assert world.monitor.problem is None


def test_no_second_request_is_sent_while_one_is_stuck():
    world = World(None)
    for at in (15, 40, 65):
        verdict = world.measure(at)
    assert world.scanner.sent == ["scan"]
    assert verdict.kind == "filesystem_unresponsive"


def test_a_missing_directory_is_its_own_verdict():
    gone = answer(0, missing=True, error="No such file or directory")
    world = World(*[gone] * 10)
    verdicts = [world.measure(at=15.0 * n) for n in range(1, 5)]
    assert [v.kind for v in verdicts] == [None, None, None, "cache_directory_missing"]
    assert world.monitor.problem == "/c: No such file or directory"


def test_an_unreadable_part_is_blindness_only_while_nothing_grows_elsewhere():
    errors = ["/c/closed: Permission denied"]
    world = World(answer(8192, scan=1, errors=errors), answer(8192, scan=2, grown=False, errors=errors))
    world.measure(at=15)
    assert world.monitor.problem is None
    world.measure(at=30)
    assert world.monitor.problem == errors[0]
    assert world.rule.pause_s == 0


def test_a_part_that_was_unreadable_from_the_start_is_not_waited_for():
    world = World(answer(0, scan=1, errors=["/c/lost+found: Permission denied"]))
    world.monitor._known_errors = {"/c/lost+found: Permission denied"}
    world.measure(at=15)
    assert (world.monitor.problem, world.rule.pause_s) == (None, 15)


def test_a_scan_process_that_died_is_replaced_and_nothing_that_was_counted_is_lost():
    world = World(
        answer(8192, scan=1), ScanError("the scan process ended unexpectedly"),
        answer(0, scan=0), answer(4096, scan=1),
    )  # fmt: skip
    for at in (15, 30):
        world.measure(at)
    assert world.restarts == 1
    assert world.monitor.notes == ["the scan process was started again: the scan process ended unexpectedly"]
    assert world.scanner.sent == ["begin"]
    assert world.monitor.growth.bytes_written == 8192
    assert world.rule.pause_s == 0  # what it would have seen is not known
    world.measure(at=60)
    assert world.scanner.sent == ["begin", "scan"]
    assert (world.monitor.growth.bytes_written, world.monitor.growth.bytes_kept) == (12288, 12288)
    assert world.rule.last_growth_s == 60


def test_a_scan_process_that_dies_again_while_it_begins_is_given_its_directories_again():
    world = World(
        answer(8192, scan=1), *[ScanError("the scan process ended unexpectedly")] * 2, answer(0), answer(4096, scan=1)
    )
    for at in (15, 30, 45, 60):
        world.measure(at)
    assert world.restarts == 2
    assert world.scanner.sent == ["begin", "scan"]
    assert world.monitor.growth.bytes_written == 12288


@pytest.mark.parametrize("between", [[], [answer(0)]])
def test_scan_processes_that_keep_dying_are_a_failure_of_ours_and_the_file_system_is_not_blamed(between):
    world = World(*[ScanError("the scan process ended unexpectedly"), *between] * 20)
    verdicts = []
    with pytest.raises(ScanError, match=r"^4 scan processes one after the other ended: "):
        while len(verdicts) < 10:
            verdicts.append(world.measure(at=world.now + 15))
    assert world.restarts == 3
    assert {verdict.status for verdict in verdicts} == {"growing"}
    assert world.rule.pause_s == 0


@pytest.mark.parametrize("window_s", [2, 60])
def test_a_scan_process_that_was_killed_is_no_blindness_however_short_the_window(window_s):
    world = World(
        ScanError("the scan process ended unexpectedly"), answer(0), answer(0, scan=1), stall_after_s=window_s
    )
    world.now = 100.0  # far behind, on a busy machine
    assert world.measure().status == "growing"
    assert world.measure().status == "growing"
    assert world.script == [answer(0, scan=1)] or not world.script


def test_a_replaced_directory_is_noted():
    world = World(answer(0, scan=1, inode=6), answer(0, scan=2, inode=6))
    world.measure(at=15), world.measure(at=30)
    assert world.monitor.notes == ["cache directory /c was replaced by another directory during the run"]


def test_the_end_of_the_generator_cuts_the_wait_for_a_slow_scan_short():
    world = World(None)
    world.monitor.measure(lambda: True)
    assert world.now == pytest.approx(5, abs=0.3)


def test_the_run_ends_with_a_last_scan_when_the_generator_ends():
    world = World(answer(8192, scan=1), answer(9192, scan=2))
    waits = []

    def wait(seconds):
        waits.append(seconds)
        world.now += seconds
        return len(waits) == 2

    verdict = world.monitor.run(wait, lambda: False)
    assert waits == [15, 15]
    assert not verdict.final
    assert world.monitor.growth.bytes_written == 9192


def test_a_verdict_needs_no_growth_in_a_scan_made_after_the_window():
    script = [answer(8192, scan=1), *[answer(8192, scan=n, grown=False) for n in range(2, 9)]]
    world = World(*script)

    def wait(seconds):
        world.now += seconds
        return False

    assert world.monitor.run(wait, lambda: False).kind == "no_growth"
    assert world.now == 75
    assert world.monitor.began_s == 75


def test_growth_in_the_confirming_scan_saves_the_generator():
    world = World(answer(8192, scan=1))
    late_growth_s = 74.99  # after the last poll before the window ends, which is at 75

    def wait(seconds):
        world.now += seconds
        if world.now > 15:
            grown = world.now == 75
            world.script[:] = [answer(8192 + 8192 * (world.now >= 75), scan=2, grown=grown, age_s=75 - late_growth_s)]
        return world.now >= 90

    verdict = world.monitor.run(wait, lambda: False)
    assert not verdict.final
    assert world.now == pytest.approx(90)
    assert world.rule.last_growth_s == pytest.approx(late_growth_s)


def test_samples_are_bounded_and_keep_their_ends():
    world = World(*[answer(8192 * n, scan=n) for n in range(1, 3000)], max_duration_s=None)
    for n in range(1, 3000):
        world.measure(at=15.0 * n)
    samples = world.monitor.samples
    assert SAMPLES_MAX / 3 < len(samples) <= SAMPLES_MAX
    assert (samples[0].at_s, samples[-1].at_s) == (0, 15.0 * 2999)
    assert [s.at_s for s in samples] == sorted({s.at_s for s in samples})


@pytest.mark.parametrize(("scan_s", "poll_s"), [(0.01, 15), (1.0, 20), (9.0, 30)])
def test_a_tree_that_takes_long_is_measured_less_often_and_twice_a_window_at_least(scan_s, poll_s):
    took_s = [9.0, 0.01, 0.01, scan_s, scan_s, scan_s, 0.01]
    world = World(*[answer(8192 * n, scan=n, scan_s=s) for n, s in enumerate(took_s, 1)], stall_after_s=60)
    waits_s: list[float] = []

    def wait(seconds: float) -> bool:
        world.now += seconds
        waits_s.append(seconds)
        return len(waits_s) == 7

    world.monitor.run(wait, lambda: False)
    assert waits_s == [15] * 6 + [poll_s]


def test_a_long_wait_counts_in_full_though_the_scan_after_it_is_quick():
    world = World(
        *[answer(8192 * min(n, 3), scan=n, grown=n < 4, scan_s=5.0 if n < 4 else 0.0) for n in range(1, 40)], poll_s=3
    )

    def wait(seconds: float) -> bool:
        world.now += seconds
        return False

    assert world.monitor.run(wait, lambda: False).kind == "no_growth"
    assert world.now == 9 + 60
