"""`cachewatch stop` where there is nothing to stop, or not one server that is meant: one sentence, nothing touched."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prefect_cachewatch.cli.stop import command
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import read_stat
from prefect_cachewatch.supervise.supervisor import RunningServer
from prefect_cachewatch.watching.servers.records import ServerRecord, make_record, write_record


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path))
    return tmp_path


def stop(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def record(name: str, server: RunningServer | None = None) -> ServerRecord:
    me = read_stat(os.getpid())
    assert me is not None
    mine = RunningServer("process", os.getpid(), me.start_ticks, ((os.getpid(), me.start_ticks),))
    return make_record(
        server or mine, name=name, run_id=uuid.uuid4().hex, cache_dirs=("/mnt/x",), ready="http://h/health",
        stop_grace_s=0, log=None,
    )  # fmt: skip


def test_two_servers_of_one_name_have_to_be_told_apart():
    paths = [write_record(record("llama")), write_record(record("llama"))]
    result = stop("llama")
    assert isinstance(result.exception, InputError)
    assert result.exception.message.startswith(
        f"2 servers are called llama (pid {os.getpid()}, pid {os.getpid()}): say which"
    )
    assert all(path.exists() for path in paths)


def test_a_container_whose_engine_is_not_there_is_not_stopped_and_its_record_stays(tmp_path):
    engine_url = f"unix://{tmp_path}/none.sock"
    server = RunningServer("container", None, container_id="0123456789abcdef", engine_url=engine_url)
    path = write_record(record("llama", server))
    result = stop("llama")
    assert isinstance(result.exception, InputError)
    assert result.exception.message == (
        f"the container engine at {engine_url}, which runs llama (container 0123456789ab), does not answer: "
        "start it, and stop the server again"
    )
    assert path.exists()
