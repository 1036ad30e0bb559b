"""The record of an incident with many takers, each a process: at once, killed or stopped at each request, by clocks that differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.orchestration.conftest import Server
from tests.support import new_tag

ROOT = Path(__file__).parents[2]
PLAIN = {"PREFECT_CLIENT_MAX_RETRIES": "0", "PREFECT_LOGGING_LEVEL": "ERROR"}


def argv(*words: object) -> list[str]:
    return [sys.executable, "-m", "tests.orchestration.incident_takers", *map(str, words)]


def takers(server: Server, *words: object, timeout_s: float = 150) -> Any:
    done = subprocess.run(
        argv(*words), env=server.env | PLAIN, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_of_twelve_who_suspect_their_storage_at_once_one_acts(server: Server) -> None:
    found = takers(server, "many", f"many-{new_tag()}", 12)
    assert found["ends"] == [0] * 12
    (lowered, *_) = found["sets"]
    holder = lowered[1]
    assert found["held"] == [1, holder] and [words[1:3] for words in found["sets"]].count([holder, holder]) == 1
    told = [words for words in found["events"] if words[1] == "suspected"]
    assert [words[3] for words in told] == [holder]
    assert found["end"] == [3, None]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_whoever_is_interrupted_before_any_request_is_followed_by_another_one(server: Server, how: str) -> None:
    *interrupted, whole = takers(server, how, new_tag(), 1, 1)
    assert whole["finished"] == 0 and whole["end"] == [3, None] and len(interrupted) >= 25
    for one in interrupted:
        assert (one["code"], one["end"], one["last"]) == (0, [3, None], [3, None]), one
        assert one["strange"] == [], one  # who has lost the record sets no limit
        assert one["told"] == 1 or one["over"] or how == "stopped", one
