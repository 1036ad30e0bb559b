"""`exec --on-stall report`: what would have been stopped is told at once, and at the end whether rightly; it is left alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import QUICK, Place, eventually

ALONE = (*QUICK, "--on-stall", "report", "--stall-after", "1s", "--first-write-within", "60s")
# Grows, and goes on when the stall has been reported.
REPORTED = """
(PLACE / 'cache/a').write_bytes(os.urandom(50_000))
while not (PLACE / 'r.json').exists(): time.sleep(0.05)
"""
# Grows, and again when a file of the next name is there.
IN_STEPS = """
for name in ('a', 'b', 'c'):
    while name != 'a' and not (PLACE / name).exists(): time.sleep(0.02)
    (PLACE / 'cache' / name).write_bytes(os.urandom(50_000))
sys.exit(3)
"""


def argv(place: Place, source: str, *options: str) -> list[object]:
    where = ("--cache-dir", place.cache, "--report", place.root / "r.json")
    return ["exec", *where, *ALONE, *options, "--", *place.program(source)]


def report(place: Place) -> dict[str, Any]:
    file = place.root / "r.json"
    return json.loads(file.read_text()) if file.exists() else {"would_be_stops": []}


def test_each_stall_is_told_once_and_each_report_says_what_became_of_it(place: Place) -> None:
    with place.started(*argv(place, IN_STEPS)) as watching:
        for name in ("b", "c"):
            known = len(report(place)["would_be_stops"])
            assert eventually(lambda known=known: len(report(place)["would_be_stops"]) > known)
            assert report(place)["outcome"] == "stalled"
            (place.root / name).touch()
            assert eventually((place.cache / name).exists)
        _, said = watching.communicate(timeout=120)
    final = report(place)
    told = final["would_be_stops"]
    assert (watching.returncode, final["outcome"], final["exit_code"], final["stop"]) == (3, "failed", 3, None)
    # There may be more: the process may get no processor for a whole window.
    assert len(told) >= 2 and {stall["kind"] for stall in told} == {"no_growth"}
    assert told[0]["at_s"] < told[0]["resumed_at_s"] < told[1]["at_s"] and told[0]["in_vain"] is True
    assert said.count("would have been stopped, and was left alone.") == len(told)
    for stall in told:
        end = json.loads((Path(stall["bundle"]) / "end.json").read_text())
        assert (end["outcome"], end["exit_code"]) == ("failed", 3)
    assert "\nthen    " in place.run("report", told[0]["bundle"]).stdout
    (run,) = json.loads(place.run("report", "--history", "cache", "--json").stdout)["runs"]
    assert (run["outcome"], run["stalls"]) == ("failed", len(told))
    assert run["longest_pause_s"] >= 1


@pytest.mark.parametrize(
    ("end", "status", "in_vain"),
    [
        ("", 0, True),
        ("sys.exit(7)", 7, False),
        ("(PLACE / 'cache/b').write_bytes(bytes(50_000)); sys.exit(7)", 7, True),
    ],
    ids=["completes", "never grows again and fails", "grows again and fails"],
)
def test_the_end_says_whether_it_would_have_been_stopped_in_vain(
    place: Place, end: str, status: int, in_vain: bool
) -> None:
    ran = place.run(*argv(place, REPORTED + end, "--no-bundle", "--quiet"))
    assert ran.status == status, ran.stderr
    told = report(place)["would_be_stops"]
    assert told[0]["in_vain"] is in_vain and (told[0]["resumed_at_s"] is not None) is ("cache/b" in end)
    assert len(ran.stderr.splitlines()) == len(told) + 1  # each is said and the end, quiet or not


def test_the_time_limit_is_told_once_and_changes_no_exit_status(place: Place) -> None:
    source = "while not (PLACE / 'r.json').exists(): time.sleep(0.05)\n"
    ran = place.run(*argv(place, source, "--no-bundle", "--max-duration", "0.5s"))
    assert ran.status == 0, ran.stderr  # though its cache stayed empty, which is a failure otherwise
    (limit,) = report(place)["would_be_stops"]
    assert (limit["kind"], limit["in_vain"]) == (None, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_tree_as_ever_and_nothing_is_claimed(place: Place, number: signal.Signals) -> None:
    with place.started(*argv(place, IN_STEPS, "--no-bundle")) as watching:
        assert eventually((place.root / "r.json").exists)
        watching.send_signal(number)
        watching.communicate(timeout=120)
    assert (watching.returncode, report(place)["outcome"]) == (128 + number, "cancelled")
    assert {stall["in_vain"] for stall in report(place)["would_be_stops"]} == {None}
