"""The evidence of real trees: bounded in time, consistent, without secrets, honest about what is missing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import pytest

from prefect_cachewatch.evidence.collector import collect_evidence
from prefect_cachewatch.evidence.proctree import find_descendants


@pytest.fixture
def start():
    """Start a command in a session of its own; its whole tree ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, ready: bool = True, env: dict[str, str] | None = None) -> int:
        child = subprocess.Popen(
            argv, stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, **(env or {})}
        )
        started.append(child)
        if ready:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        return child.pid

    yield run
    for child in started:
        for pid in find_descendants([child.pid]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_tree_of_two_hundred_processes_is_seen_whole_and_frozen_once(start, tmp_path):
    root = start("sh", "-c", "for i in $(seq 200); do sleep 99 & done; echo ready; wait")
    frozen = []
    evidence = collect_evidence([root], [tmp_path], budget_s=60.0, freeze=lambda: frozen.append(time.monotonic()))
    assert evidence.process_count == 201
    assert len(evidence.processes) == 201
    assert len(frozen) == 1


def test_the_budget_holds_when_freezing_itself_is_late(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")
    evidence = collect_evidence([root], [tmp_path], budget_s=0.3, freeze=lambda: time.sleep(0.4))
    assert evidence.took_s < 60
    assert any("time for the evidence was up" in missing.why for missing in evidence.missing)


def test_a_freeze_that_fails_is_reported_and_costs_nothing_else(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")

    def freeze() -> None:
        raise BrokenPipeError("the guard is gone")

    evidence = collect_evidence([root], [tmp_path], freeze=freeze)
    assert [m.part for m in evidence.missing if "guard is gone" in m.why] == ["freeze"]
    assert {process.name for process in evidence.processes} == {"sh", "sleep"}


def test_the_guard_itself_is_not_part_of_the_tree(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")
    evidence = collect_evidence([root], [tmp_path], include_roots=False, python_stacks=False)
    assert [process.name for process in evidence.processes] == ["sleep"]
