"""The record of an incident with many takers, each a process: at once, interrupted at each request, by clocks that differ."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL
from tests.orchestration.conftest import Server
from tests.support import new_tag, unavailable

ROOT = Path(__file__).parents[2]
PLAIN = {"PREFECT_CLIENT_MAX_RETRIES": "0", "PREFECT_LOGGING_LEVEL": "ERROR"}


def argv(*words: object) -> list[str]:
    return [sys.executable, "-m", "tests.orchestration.incident_takers", *map(str, words)]


def takers(url: str, *words: object, timeout_s: float = 150) -> Any:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    done = subprocess.run(
        argv(*words), env=env | PLAIN | {"PREFECT_API_URL": url}, cwd=ROOT, capture_output=True, text=True,
        timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check_interrupted(url: str, how: str, first: int, step: int, timeout_s: float = 150) -> None:
    *interrupted, whole = takers(url, how, new_tag(), first, step, timeout_s=timeout_s)
    assert whole["finished"] == 0 and whole["end"] == [3, None] and len(interrupted) >= 25 // step
    for one in interrupted:
        if how in ("away", "mute"):
            assert (one["finished"], one["end"]) == (0, [3, None]), one
            continue
        assert (one["code"], one["end"], one["last"]) == (0, [3, None], [3, None]), one
        assert one["strange"] == [], one  # who has lost the record sets no limit
        assert one["told"] == 1 or one["over"], one  # one incident is one event


def test_of_twelve_who_suspect_their_storage_at_once_one_acts(server: Server) -> None:
    found = takers(server.url, "many", f"many-{new_tag()}", 12)
    assert found["ends"] == [0] * 12
    holder = found["sets"][0][1]
    assert found["held"] == [1, holder] and [words[1] for words in found["sets"]].count(holder) == 1
    told = [words for words in found["events"] if words[1] == "suspected"]
    assert [words[3] for words in told] == [holder]
    assert found["end"] == [3, None]


@pytest.mark.parametrize(("how", "first", "step"), [("stopped", 1, 5), ("killed", 3, 7), ("mute", 2, 9)])
def test_whoever_is_interrupted_before_a_request_is_followed_by_another_one(
    server: Server, how: str, first: int, step: int
) -> None:
    check_interrupted(server.url, how, first, step)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["stopped", "killed", "away", "mute"])
def test_whoever_is_interrupted_before_any_request_is_followed_by_another_one(prefect_harness: None, how: str) -> None:
    check_interrupted(PREFECT_API_URL.value(), how, 1, 1, 1000)


def test_takers_whose_clocks_are_four_hours_apart_agree_on_an_age(server: Server) -> None:
    faketime = shutil.which("faketime")
    if faketime is None:
        unavailable("faketime is not installed: apt install faketime")
    name = f"clocks-{new_tag()}"
    facts = {"by": "r0", "window_s": 300.0}
    made = server.request("POST", "/variables/", name=f"cachewatch-incident-{name}_1", value=facts)
    looks = [
        subprocess.Popen(
            [faketime, "-f", offset, *argv("look", name)], env=server.env | PLAIN, cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for offset in ("+2h", "-2h")
    ]  # fmt: skip

    def ask() -> list[Any]:
        for one in looks:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        return [json.loads(one.stdout.readline()) for one in looks if one.stdout is not None]

    try:
        young = ask()
        assert young[0]["now"] - young[1]["now"] > 3 * 3600
        assert all(one["age_s"] < 420 and not one["abandoned"] for one in young)
        home = Path(server.env["PREFECT_HOME"]) / "prefect.db"
        with closing(sqlite3.connect(home, timeout=60)) as database, database:
            row = made["id"].replace("-", "")
            aged = "UPDATE variable SET updated = datetime('now', '-1 hour') WHERE replace(id, '-', '') = ?"
            assert database.execute(aged, (row,)).rowcount == 1
        old = ask()
        assert all(3500 < one["age_s"] < 5000 for one in old if one["abandoned"]), old
        assert [one["took"] for one in old].count(True) == 1, old
        after = ask()
        assert not any(one["abandoned"] for one in after)
    finally:
        for one in looks:
            one.communicate(timeout=60)
