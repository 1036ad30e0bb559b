"""The rules of a fleet: who needs a person first, when failures stop it, how it ends, what its table says."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.cli.fleet_view import render_fleet, render_summary
from prefect_cachewatch.fleet.jobs import FleetPolicy
from prefect_cachewatch.fleet.outcome import count_rows, describe_fleet, fleet_end, table_rows, what_now
from prefect_cachewatch.fleet.rows import JobRow, Kind, by_need

STATES: list[tuple[str, Kind]] = [
    ("Refused", "failed"),
    ("VerificationFailed", "failed"),
    ("GeneratorFailed", "failed"),
    ("Stalled", "failed"),
    ("FilesystemUnresponsive", "failed"),
    ("DeadlineExceeded", "failed"),
    ("Crashed", "failed"),
    ("SomethingNew", "failed"),
    ("Running", "running"),
    ("Cancelled", "cancelled"),
    ("NotStarted", "not_started"),
    ("Waiting", "waiting"),
    ("Completed", "done"),
    ("Cached", "done"),
]
rows = st.builds(
    lambda name, state, size, pause, suspected: JobRow(
        name, state[0], state[1], size, pause_s=pause, suspected=suspected and state[1] == "running"
    ),
    st.text(min_size=1, max_size=12),
    st.sampled_from(STATES),
    st.none() | st.integers(0, 2**50),
    st.none() | st.floats(0, 1e4),
    st.booleans(),
)


def test_what_needs_a_person_stands_first() -> None:
    found = [JobRow(state.lower(), state, kind) for state, kind in STATES]
    found += [
        JobRow("silent", "Running", "running", pause_s=250.0),
        JobRow("odd", "Running", "running", suspected=True),
    ]
    random.Random(3).shuffle(found)
    assert [row.name for row in by_need(found)] == [
        "refused", "verificationfailed", "generatorfailed", "stalled", "filesystemunresponsive", "deadlineexceeded", "crashed",
        "somethingnew", "odd", "cancelled", "notstarted", "silent", "running", "waiting", "cached", "completed",
    ]  # fmt: skip


@given(st.lists(rows, max_size=30), st.integers(1, 40))
def test_the_table_has_every_job_or_says_how_many_more(found: list[JobRow], limit: int) -> None:
    table = table_rows(found, limit)
    kinds = {key: value for key, value in vars(count_rows(found)).items() if value}
    assert sum(kinds.values()) == count_rows(found).total == len(found)
    assert table[-1]["job"].startswith(f"total: {len(found)} job")
    assert len(table) == min(len(found), limit) + 1 + (len(found) > limit)
    assert len({tuple(row) for row in table}) == 1  # the same columns in every row
    assert json.dumps(table).isprintable()


def test_a_hostile_name_is_harmless_in_the_table_and_in_a_terminal() -> None:
    row = JobRow("a\x1b[2J\n\u202e|x", "Stal\x07led", "failed", cause="\x1b]0;t\x07", advice="\r")
    text = json.dumps(table_rows([row]), ensure_ascii=False) + "".join(
        line.plain for line in render_fleet("f\x1b", [row], 1)
    )
    assert text.isprintable()
    assert table_rows([row])[0]["job"] == "a\\x1b[2J\\n\\u202e|x"


def test_a_cause_makes_no_link_in_the_ui_that_reads_cells_as_markdown() -> None:
    (cells, _) = table_rows([JobRow("a", "Stalled", "failed", cause="[x](javascript:1)", advice="<javascript:1>")])
    assert (cells["cause"], cells["next"]) == ("[x]\\(javascript:1)", "\\<javascript:1>")


def test_ten_runs_that_need_a_person_are_linked_above_the_table() -> None:
    found = [JobRow(f"m{n:02}", "Stalled", "failed", url=f"http://s/{n}") for n in range(12)]
    text = describe_fleet("f[x](y)", [JobRow("good", "Completed", "done", url="http://s/good"), *found])
    assert text.startswith("f\\[x\\](y): 1 done, 12 failed. Look at [m00](<http://s/0>) (Stalled), [m01]")
    assert text.count("](<") == 10 and text.endswith("and 2 more") and "good" not in text


def test_two_hundred_rows_are_shown_and_the_rest_is_counted() -> None:
    found = [JobRow(f"m{n:04}", "Completed", "done", 10) for n in range(1500)] + [JobRow("bad", "Stalled", "failed")]
    table = table_rows(found)
    assert len(table) == 202
    assert [row["job"] for row in (table[0], *table[-2:])] == ["bad", "... and 1,301 more", "total: 1,501 jobs"]
    assert (table[-2]["state"], table[-1]["state"], table[-1]["bytes"]) == (
        "1301 done",
        "1500 done, 1 failed",
        "14.6 KiB",
    )


@pytest.mark.parametrize(
    ("policy", "verdicts"),
    [
        ({}, ["go_on"] * 4),
        ({"on_failure": "stop_new"}, ["go_on", "stop_new", "stop_new", "stop_new"]),
        ({"on_failure": "stop_new", "max_failures": 2}, ["go_on", "go_on", "go_on", "stop_new"]),
        ({"on_failure": "fail_fast", "max_failures": 1}, ["go_on", "go_on", "fail_fast", "fail_fast"]),
    ],
)
def test_failures_stop_a_fleet_as_its_policy_says(policy: dict[str, object], verdicts: list[str]) -> None:
    assert [what_now(FleetPolicy.model_validate(policy), failed) for failed in range(4)] == verdicts


def test_how_a_fleet_ends() -> None:
    done, cached = JobRow("a", "Completed", "done"), JobRow("b", "Cached", "done")
    stalled = JobRow("c", "Stalled", "failed", cause="no write.")
    never = JobRow("d", "NotStarted", "not_started")
    assert vars(fleet_end("f", [done, done])) == {
        "state": "Completed",
        "message": "Fleet 'f': 2 of 2 caches are there.",
    }
    assert fleet_end("f", [done, cached]).message == "Fleet 'f': 2 of 2 caches are there, 1 of them from before."
    assert fleet_end("f", [cached]).message == "Fleet 'f': 1 of 1 caches are there, all from before."
    assert vars(fleet_end("f", [done, never, stalled])) == {
        "state": "PartlyFailed",
        "message": "Fleet 'f': 1 of 3 caches are there; 1 failed, 1 not started. First: c is Stalled (no write)",
    }
    assert fleet_end("f", [stalled]).state == "FleetFailed"
    # One that a person cancelled is no failure of its own, and no whole fleet either.
    cancelled = fleet_end("f", [done, JobRow("e", "Cancelled", "cancelled")])
    assert (cancelled.state, "1 cancelled" in cancelled.message) == ("PartlyFailed", True)


@given(st.lists(rows, max_size=30), st.integers(20, 120), st.integers(2, 40))
def test_no_line_of_the_live_table_is_wider_or_the_table_higher_than_the_terminal(
    found: list[JobRow], width: int, height: int
) -> None:
    lines = render_fleet("nightly", found, 3.0, width, height)
    assert len(lines) <= max(2, height)
    assert all(line.cell_len <= width for line in [*lines, *render_summary(found, width)])


LOCK = "pid 17187 (python3) waits for the lock .build.lock held by pid 17045 (convert.py, since 02:13)"


def test_the_end_shows_the_whole_cause_what_to_do_and_the_run_at_80_columns() -> None:
    found = [
        JobRow("mixtral", "Stalled", "failed", 2**30, cause=LOCK, advice="See what pid 17045 does.", url="http://ui/run/1"),
        JobRow("qwen", "GeneratorFailed", "failed", cause="a short one"),
        JobRow("phi-3", "Completed", "done", 2**28, 2**20, duration_s=300),
    ]  # fmt: skip
    assert [line.plain.rstrip() for line in render_summary(found, 79)] == [
        "job                    state           cause; or size, rate, pause or time",
        "qwen                   GeneratorFailed a short one",
        "mixtral                Stalled         pid 17187 (python3) waits for the lock …",
        "  cause: pid 17187 (python3) waits for the lock .build.lock held by pid 17045",
        "    (convert.py, since 02:13)", "  next: See what pid 17045 does.", "  run: http://ui/run/1",
        "phi-3                  Completed       256 MiB    1.00 MiB/s 5 minutes",
    ]  # fmt: skip
