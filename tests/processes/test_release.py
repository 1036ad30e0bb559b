"""The one way in which a guard lets go: asked by a living flow process, and only as a whole."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.common.parked import park
from prefect_cachewatch.supervise.client import GuardClient
from prefect_cachewatch.supervise.supervisor import Launch, RunningServer
from prefect_cachewatch.watching.servers.records import list_servers, make_record, write_record
from support import PATIENCE_S, assert_none_left, eventually, new_tag, program, signal_each, tagged

LIFE_S = 100
PLAIN = f"import time; time.sleep({LIFE_S})"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@contextlib.contextmanager
def guarded(source: str) -> Iterator[tuple[GuardClient, str]]:
    tag = new_tag()
    null = os.open(os.devnull, os.O_RDWR)
    guard = GuardClient(Launch(
        program(source, tag), env=dict(os.environ), cwd="/", stdio=(null, null, null), grace_s=0.3,
        run_token=uuid.uuid4().hex, may_release=True,
    ))  # fmt: skip
    try:
        guard.start()
        yield guard, tag
    finally:
        guard.close()
        os.close(null)
        signal_each(tagged(tag))


def test_what_has_ended_is_not_released():
    with guarded("pass") as (guard, _):
        assert guard.wait(PATIENCE_S).why == "exited"
        assert guard.running() is None
        assert guard.release(5) == "it has ended"


def test_a_released_server_is_no_sooner_a_victim_of_the_kernel_than_the_guard_was():
    mine = Path("/proc/self/oom_score_adj").read_text()
    with guarded(PLAIN) as (guard, tag):
        assert eventually(lambda: tagged(tag))
        assert Path(f"/proc/{guard.pid}/oom_score_adj").read_text() == "500\n"
        assert guard.release(PATIENCE_S) is None
        assert Path(f"/proc/{guard.pid}/oom_score_adj").read_text() == mine


def test_a_guard_whose_state_file_stays_does_not_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, directory = tmp_path / "file", tmp_path / "directory"
    directory.mkdir()
    file.touch()

    def made(run_token: str) -> tuple[int, str]:
        return park(os.open(file, os.O_RDWR | os.O_CLOEXEC)), str(directory)

    monkeypatch.setattr("prefect_cachewatch.supervise.client.create_run_file", made)
    with guarded(PLAIN) as (guard, tag):
        assert eventually(lambda: tagged(tag))
        assert guard.release(PATIENCE_S) == f"its state file {directory} cannot be removed: Is a directory"
        assert tagged(tag)
        guard.stop()
        assert guard.wait(PATIENCE_S).why == "stop"
    assert_none_left(tag)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("first", ["the stop", "the end"])
def test_a_release_after_a_stop_comes_too_late_and_waits_for_nothing(first: str):
    with guarded(PLAIN) as (guard, tag):
        assert eventually(lambda: tagged(tag))
        guard.stop()
        if first == "the end":
            assert guard.wait(PATIENCE_S).why == "stop"
        assert guard.release(10 * PATIENCE_S) == "it has ended"
        assert guard.wait(PATIENCE_S).why == "stop"
    assert_none_left(tag)


def record_of(server: RunningServer, run_token: str, **more: object):
    facts = {"name": "llama", "cache_dirs": ("/mnt/x",), "ready": "a test", "stop_grace_s": 0.3, "log": None}
    return make_record(server, run_id=run_token, **facts | more)


def test_a_directory_that_others_may_write_into_holds_no_records(state: Path):
    (state / "servers").mkdir(parents=True)
    (state / "servers").chmod(0o777)
    (found,) = list_servers()
    assert (found.state, found.reason) == ("refused", "others may write into it")


def test_logs_of_servers_that_are_long_gone_are_removed_and_those_of_running_ones_are_not(state: Path):
    folder = state / "servers"
    folder.mkdir(parents=True, mode=0o700)
    for number in range(60):
        (folder / f"old-{number:02}.log").write_text("x")
        os.utime(folder / f"old-{number:02}.log", (number, number))
    record = record_of(RunningServer("process", os.getpid(), None, ()), uuid.uuid4().hex)
    path = write_record(record)
    path.with_suffix(".log").write_text("x")
    os.utime(path.with_suffix(".log"), (0, 0))
    write_record(record_of(RunningServer("process", os.getpid(), None, ()), uuid.uuid4().hex))
    left = sorted(each.name for each in folder.glob("old-*.log"))
    assert (len(left), left[0]) == (50, "old-10.log")
    assert path.with_suffix(".log").exists()
