"""Write traces of real generators (tests/data/traces), replayed through ledger and rule.

A trace is sampled every 0.2 s; here each poll sees the last row before it, as a scan would have.
"""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.run.trace.files import read_trace
from prefect_cachewatch.run.trace.replay import replay_trace
from prefect_cachewatch.watching.stall import Measurement, StallRule, Verdict

TRACES = Path(__file__).parents[3] / "data/traces"
WRITING = ["ttnn_as_tensor", "torch_inductor", "safetensors_shards", "memmap_fill"]
LEAST = StallPolicy().min_growth_bytes
END_S = 10**6


@dataclass(frozen=True)
class File:
    st_ino: int
    st_size: int
    st_blocks: int
    st_ctime_ns: int
    st_nlink: int = 1
    st_atime_ns: int = 0
    st_dev: int = 0

    @property
    def st_mtime_ns(self) -> int:
        return self.st_ctime_ns


@dataclass(frozen=True)
class Row:
    t_s: float
    bytes: int
    allocated: int
    files: int


def read(name: str, *, detail: bool) -> list[Row]:
    with (TRACES / f"{name}{'.detail' if detail else ''}.csv").open() as file:
        return [
            Row(float(r["t_s"]), int(r["total_bytes"]), int(r.get("alloc_bytes") or r["total_bytes"]), int(r["file_count"]))
            for r in csv.DictReader(file)
        ]  # fmt: skip


def files_of(rows: list[Row]) -> list[dict[int, File]]:
    """Turn totals into files: what a row adds is in its new files, or in the newest one."""
    state: dict[int, File] = {}
    history, born = [], 0
    before = Row(-1, 0, 0, 0)
    for row in rows:
        state = dict(state)
        now_ns = int(row.t_s * 1e9) + 1
        grown, allocated = row.bytes - before.bytes, row.allocated - before.allocated
        while len(state) > row.files:  # a deletion: its bytes are in the difference of the totals
            gone = state.pop(min(state))
            grown, allocated = grown + gone.st_size, allocated + gone.st_blocks * 512
        for _ in range(row.files - len(state)):
            born += 1
            state[born] = File(born, 0, 0, now_ns)
        if state and (grown or allocated):
            last = state[max(state)]
            state[max(state)] = File(last.st_ino, last.st_size + grown, last.st_blocks + allocated // 512, now_ns)
        history.append(state)
        before = row
    return history


def progress_times(rows: list[Row], start: Row, least: int = LEAST) -> list[float]:
    """When a counter had advanced by the least growth; the oracle, without ledger and rule."""
    times, high_bytes, high_allocated = [], start.bytes, start.allocated
    for row in rows:
        if row.bytes - high_bytes >= least or row.allocated - high_allocated >= least:
            times.append(row.t_s)
            high_bytes, high_allocated = max(high_bytes, row.bytes), max(high_allocated, row.allocated)
    return times


def replay(rows: list[Row], policy: StallPolicy, until_s: float = END_S) -> tuple[StallRule, Ledger, float, Verdict]:
    """Poll a trace as the watch does, on beyond its end as if the generator had frozen there."""
    history = files_of(rows)
    ledger, rule = Ledger(), StallRule(policy, rows[0].t_s)
    at = 0

    def scan(t_s: float):
        nonlocal at
        while at + 1 < len(rows) and rows[at + 1].t_s <= t_s:
            at += 1
        ledger.begin()
        state = history[at]
        ledger.see("/c/", 0, [f"f{number}" for number in state], list(state.values()))
        return ledger.end()

    scan(rows[0].t_s)
    t_s, verdict = rows[0].t_s, Verdict("growing")
    while not verdict.final and t_s < until_s:
        t_s += rule.next_delay_s()
        growth = scan(t_s)
        age_s = None if growth.newest_changed_ns is None else t_s - growth.newest_changed_ns / 1e9
        touched_s = None if growth.touched_ns is None else t_s - growth.touched_ns / 1e9
        verdict = rule.observe(
            t_s, t_s,
            Measurement(growth.bytes_written, growth.allocated_written, growth.bytes_kept, growth.allocated_kept,
                        age_s, touched_s),
        )  # fmt: skip
    return rule, ledger, t_s, verdict


def longest_gap_s(times: list[float]) -> float:
    return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


@pytest.mark.parametrize("poll_s", [0.2, 1, 15])
@pytest.mark.parametrize("factor", [1.02, 1.5, 4, 40])
@pytest.mark.parametrize("detail", [True, False], ids=["blocks", "sizes"])
@pytest.mark.parametrize("name", WRITING)
def test_no_window_above_the_longest_gap_stops_a_real_generator(name, detail, factor, poll_s):
    rows = read(name, detail=detail)
    times = progress_times(rows, rows[0])
    gap_s = longest_gap_s(times)
    window_s = max(0.5, factor * gap_s + 0.01)
    policy = StallPolicy(stall_after_s=window_s, first_write_within_s=times[0] + 1, poll_s=poll_s)
    rule, _, t_s, verdict = replay(rows, policy)
    # The only stall is the one after the trace's end, and it is dated from its last growth.
    assert (verdict.status, verdict.kind) == ("stalled", "no_growth")
    # (A last growth of less than the least is dated too, if it comes with more in one poll.)
    last_s = progress_times(rows, rows[0], least=1)[-1]
    assert times[-1] - 0.001 <= rule.last_growth_s <= last_s + 0.001
    assert t_s == pytest.approx(rule.last_growth_s + window_s, abs=0.002)
    # What grows between two polls is seen at its last change only: a pause is over-stated by a poll at most.
    assert rule.longest_pause_s <= gap_s + rule.poll_s + 0.001


@pytest.mark.parametrize("name", ["ttnn_as_tensor", "torch_inductor", "safetensors_shards"])
def test_a_window_below_the_longest_gap_does_stop_it(name):
    rows = read(name, detail=True)
    times = progress_times(rows, rows[0])
    gap_s = longest_gap_s(times)
    _, _, t_s, verdict = replay(rows, StallPolicy(stall_after_s=max(0.2, gap_s * 0.6), poll_s=0.1))
    assert verdict.kind == "no_growth"
    assert t_s < times[-1]


# Not the round figures of the rows: a poll at a row's very moment sees it or not, by a nanosecond.
@pytest.mark.parametrize("poll_s", [0.213, 1.013, 15])
@pytest.mark.parametrize("window_s", [1.003, 4.003, 30.003])
@pytest.mark.parametrize("name", WRITING)
def test_the_replay_command_says_what_this_replay_says(name, window_s, poll_s):
    rows = read(name, detail=True)
    policy = StallPolicy(stall_after_s=window_s, first_write_within_s=60, poll_s=poll_s)
    rule, _, t_s, verdict = replay(rows, policy)
    found = replay_trace(read_trace(TRACES / f"{name}.detail.csv"), policy, hang_at_s=rows[-1].t_s)
    assert (found.status, found.kind) == (verdict.status, verdict.kind)
    assert found.at_s == pytest.approx(t_s - rows[0].t_s, abs=0.001)
    assert found.last_growth_s == pytest.approx(rule.last_growth_s - rows[0].t_s, abs=0.001)
    assert found.longest_pause_s == pytest.approx(rule.longest_pause_s, abs=0.001)
    assert len(found.suspicions) == len(rule.suspicions)


@pytest.mark.parametrize("name", WRITING)
def test_the_ledger_counts_what_the_trace_counted(name):
    rows = read(name, detail=True)
    _, ledger, _, _ = replay(rows, StallPolicy(stall_after_s=60, poll_s=0.1))
    assert sum(record.size_bytes for record in ledger.files.values()) == rows[-1].bytes
    written = sum(record.written_bytes for record in ledger.files.values())
    assert rows[-1].bytes <= written + rows[0].bytes


def test_a_file_filled_in_place_needs_the_blocks_to_be_seen():
    # numpy's memmap: the size is there at once, and only the blocks go on.
    sizes, blocks = read("memmap_fill", detail=False), read("memmap_fill", detail=True)
    assert longest_gap_s(progress_times(blocks, blocks[0])) < 1.5
    assert len(progress_times(sizes, sizes[0])) == 1


def test_a_warm_run_writes_nothing_and_is_not_stopped_within_the_first_window():
    rows = read("ttnn_warm_rerun", detail=False)
    assert rows[0].bytes == rows[-1].bytes > 2 * 10**9
    rule, _, _, verdict = replay(rows, StallPolicy(stall_after_s=1, first_write_within_s=20, poll_s=0.2), rows[-1].t_s)
    assert not verdict.final
    assert rule.first_write_s is None
