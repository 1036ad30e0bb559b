"""What must come of an incident that many runs take, on a server of any database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import new_tag

__all__ = ["PLAIN", "ROOT", "argv", "check_interrupted", "check_one_acts"]

ROOT = Path(__file__).parents[2]
PLAIN = {"PREFECT_LOGGING_LEVEL": "ERROR"}


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


def check_one_acts(url: str) -> None:
    """Of twelve who suspect their storage at once one acts."""
    found = takers(url, "many", f"many-{new_tag()}", 12)
    assert found["ends"] == [0] * 12
    holder = found["sets"][0][1]
    assert found["held"] == [1, holder] and [words[1] for words in found["sets"]].count(holder) == 1
    told = [words for words in found["events"] if words[1] == "suspected"]
    assert [words[3] for words in told] == [holder]
    assert found["end"] == [3, None]
