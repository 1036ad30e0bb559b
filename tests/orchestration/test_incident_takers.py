"""The record of an incident with many takers, each a process: at once, interrupted at each request, by clocks that differ."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL
from tests.orchestration.conftest import Server
from tests.orchestration.incident_checks import PLAIN, ROOT, argv, check_interrupted, check_one_acts
from tests.support import eventually, new_tag, unavailable


def test_of_twelve_who_suspect_their_storage_at_once_one_acts(server: Server) -> None:
    check_one_acts(server.url)


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


def test_runs_whose_clocks_are_four_hours_apart_see_each_other_and_agree_on_an_age(server: Server) -> None:
    faketime = shutil.which("faketime")
    if faketime is None:
        unavailable("faketime is not installed: apt install faketime")
    name = f"clocks-{new_tag()}"
    facts = {"by": "r0", "window_s": 300.0}
    made = server.request("POST", "/variables/", name=f"cachewatch-incident-{name}_1", value=facts)
    looks = [
        subprocess.Popen(
            [faketime, "-f", offset, *argv("look", name, number)], env=server.env | PLAIN, cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for number, offset in enumerate(("+2h", "-2h"), 1)
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
        assert eventually(
            lambda: [one["group"] for one in ask()] == [2, 2], 60
        )  # the server files events within seconds
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
