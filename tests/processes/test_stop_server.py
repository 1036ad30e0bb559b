"""`cachewatch stop`: real servers that were left running, their records, and records that are not to be trusted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.ready_bench import Bench, made_bench

from support import assert_none_left, tagged


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with made_bench(tmp_path) as made:
        yield made


def test_stop_lists_its_servers_and_stops_one_by_name(bench: Bench):
    pid = bench.exec(workers=1).report["ready"]["pid"]
    listed = bench.cachewatch("stop", "--list")
    assert f"cache  pid {pid}  running" in listed.stdout
    (described,) = json.loads(bench.cachewatch("stop", "--list", "--json").stdout)
    assert (described["state"], described["pid"], described["name"]) == ("running", pid, "cache")
    assert len(tagged(bench.tag)) == 2
    assert bench.cachewatch("stop", "cache").status == 0
    assert_none_left(bench.tag)


@pytest.mark.campaign
def test_a_server_that_ignores_sigterm_is_killed_after_the_grace_period(bench: Bench):
    bench.exec(ignore_term=True)
    stopped = bench.cachewatch("stop", "cache", "--grace", "0.3s", "--json")
    assert (stopped.status, "1 of 1 killed" in stopped.stderr) == (0, True)
    (told,) = json.loads(stopped.stdout)["servers"]
    assert (told["name"], told["killed"], told["survivors"]) == ("cache", 1, [])
    assert_none_left(bench.tag, 5)


@pytest.mark.campaign
def test_a_worker_that_lost_its_parent_is_stopped_with_its_server(bench: Bench):
    pid = bench.exec(workers=2).report["ready"]["pid"]
    assert len(tagged(bench.tag)) == 3
    os.kill(pid, signal.SIGKILL)
    assert bench.cachewatch("stop", "cache").status == 0
    assert_none_left(bench.tag)


def test_the_record_of_a_server_that_has_ended_is_recognised_and_removed(bench: Bench):
    pid = bench.exec().report["ready"]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert_none_left(bench.tag)
    assert "ended" in bench.cachewatch("stop", "--list").stdout
    answer = bench.cachewatch("stop", "cache")
    assert (answer.status, answer.stdout) == (0, f"cache (pid {pid}) had ended already\n")
    assert bench.records() == []


def test_a_record_of_another_boot_is_never_acted_on_whoever_has_its_pid_now(bench: Bench):
    ran = bench.exec()
    path = Path(ran.report["ready"]["record"])
    data = json.loads(path.read_text()) | {"boot_id": "00000000-0000-0000-0000-000000000000"}
    path.write_text(json.dumps(data))
    answer = bench.cachewatch("stop", "--all")
    assert (answer.status, path.exists()) == (0, False)
    assert tagged(bench.tag) == [ran.report["ready"]["pid"]]


@pytest.mark.campaign
def test_a_record_that_others_could_have_written_is_left_alone(bench: Bench):
    ran = bench.exec()
    path = Path(ran.report["ready"]["record"])
    path.chmod(0o666)
    answer = bench.cachewatch("stop", "--all")
    assert (answer.status, "was left alone: others have access to it (mode 0666)" in answer.stdout) == (0, True)
    assert tagged(bench.tag) == [ran.report["ready"]["pid"]]
    assert path.exists()
