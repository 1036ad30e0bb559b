"""A publisher dies, or its storage refuses, at any call that changes something: readers beside it see a whole cache."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.builds import NAME, offer
from tests.contract.harness import LONG_S

REPOSITORY = Path(__file__).parents[2]


@contextlib.contextmanager
def reader(root: Path, how: str) -> Iterator[dict[str, Any]]:
    """Read beside what goes on; what was read is in the dictionary afterwards."""
    command = [sys.executable, "-m", "tests.contract.store_reader", str(root), NAME, how]
    seen: dict[str, Any] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield seen
            out, _ = process.communicate("stop\n", timeout=LONG_S)
            seen.update(json.loads(out))
        finally:
            process.kill()


def campaign(root: Path, scenario: str, how: str, stride: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.store_killer", str(root), scenario, how, str(stride)],
        stdout=subprocess.PIPE, text=True, check=True, cwd=REPOSITORY,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Who reads beside it, which calls it must be hit at, and how many at least.
SCENARIOS: dict[str, tuple[str, set[str], int]] = {
    "publish": ("plain", {"mkdir", "symlink"}, 25),
    "resume": ("plain", {"unlink", "symlink"}, 25),
    "refuse": ("pinned", {"mkdir", "unlink", "rmdir"}, 20),
    "switch": ("pinned", {"symlink", "rmdir"}, 20),
    "unhealthy": ("pinned", {"symlink", "rmdir"}, 40),
    "clean up": ("pinned", {"rmdir", "unlink"}, 10),
}
SIGNS = ("SIGKILL", "ENOSPC", "EIO", "EACCES")


def judge(root: Path, scenario: str, how: str, stride: int) -> Counter[str]:
    readers = SCENARIOS[scenario][0]
    offer(root)
    with reader(root, readers) as seen:
        found = campaign(root, scenario, how, stride)
    assert found["problems"] == []
    assert found["finished"] == 1, "the last child went through all its steps"
    assert seen["bad"] == [] and seen["reads"] > 1
    assert seen["builds"] > 1 or scenario == "refuse"
    return Counter(found["hits"])


@pytest.mark.parametrize("how", ["SIGKILL", "ENOSPC"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_some_calls_of_a_publisher_are_its_last_or_fail(root: Path, scenario: str, how: str) -> None:
    assert judge(root, scenario, how, 13).total() >= 1


@pytest.mark.campaign
@pytest.mark.parametrize("how", SIGNS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_any_call_of_a_publisher_is_its_last_or_fails(root: Path, scenario: str, how: str) -> None:
    _, calls, least = SCENARIOS[scenario]
    hits = judge(root, scenario, how, 1)
    assert hits.total() >= least
    assert calls | {"rename", "fsync"} <= set(hits)
