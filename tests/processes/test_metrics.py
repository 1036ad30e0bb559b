"""Metrics of real runs: scraped over HTTP while they last, written as files, and what cannot be served."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from prefect_cachewatch.metrics.outlets import open_metrics
from prefect_cachewatch.metrics.settings import Metrics
from support import (
    PATIENCE_S,
    assert_none_left,
    eventually,
    exec_argv,
    metrics_of,
    new_tag,
    program,
    run,
    run_exec,
    running,
    tagged,
)

GROWS_THEN_WAITS = """
    import os, sys, time
    for n in range(3):
        open(os.path.join(sys.argv[2], f"layer{n}.bin"), "wb").write(bytes(50_000))
    while not os.path.exists(sys.argv[2] + ".end"):
        time.sleep(0.05)
"""
WELL = ("--stall-after", "5m", "--first-write-within", "5m", "--poll", "0.2s", "--no-bundle")


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def scrape(url: str) -> dict[str, float]:
    answer = httpx.get(url, timeout=10)
    assert answer.status_code == 200
    return metrics_of(answer.text)


def url_of(process: subprocess.Popen[str]) -> str:
    """What the command says it serves."""
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.fullmatch(r"cachewatch: metrics: (http://127\.0\.0\.1:\d+/metrics)\n", line)
    assert found, line
    return found[1]


# The endpoint


def test_clients_that_say_nothing_keep_nobody_else_waiting():
    endpoint = open_metrics(Metrics(to=":0"), "llama")
    silent = []
    try:
        host, port = endpoint.where.split("/")[2].split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(60)]
        assert scrape(endpoint.where)["cachewatch_running"] == 0
    finally:
        endpoint.close()  # does not wait for them
        for connection in silent:
            connection.close()


# Files


def test_a_damaged_file_is_begun_anew_and_said(tmp_path):
    with open_metrics(Metrics(to=f"file:{tmp_path}"), "llama") as exporter:
        pass
    Path(exporter.where).write_bytes(b"\xff\x00cachewatch_runs_total{")
    with open_metrics(Metrics(to=f"file:{tmp_path}"), "llama") as exporter:
        exporter.run_ended("completed")
    assert exporter.problem is not None
    assert exporter.problem.startswith(f"earlier counts in {exporter.where} could not be read")
    assert metrics_of(Path(exporter.where).read_text())["cachewatch_runs_total{outcome=completed}"] == 1


def test_a_directory_that_does_not_answer_holds_nobody(tmp_path, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr("prefect_cachewatch.metrics.outlets._replace", lambda path, text: answers.wait(PATIENCE_S))
    monkeypatch.setattr("prefect_cachewatch.metrics.outlets._CLOSE_S", 0.2)
    with open_metrics(Metrics(to=f"file:{tmp_path}"), "llama") as exporter:
        exporter.attempt_began(1, None)
    assert exporter.problem == f"the metrics file {exporter.where} is out of date: its directory does not answer"
    answers.set()


# The command


def test_a_run_is_scraped_while_it_lasts(cache):
    tag = new_tag()
    argv = exec_argv(
        cache, *WELL, "--expect", "1MB", "--metrics", ":0",
        command=[*program(GROWS_THEN_WAITS, tag), str(cache)],
    )  # fmt: skip
    with running(argv) as process:
        url = url_of(process)
        seen: dict[str, float] = {}

        def grown() -> bool:
            seen.update(scrape(url))
            return seen.get("cachewatch_written_bytes_total") == 150_000

        assert eventually(grown)
        assert (seen["cachewatch_running"], seen["cachewatch_attempt"]) == (1, 1)
        assert (seen["cachewatch_present_files"], seen["cachewatch_expected_bytes"]) == (3, 1_000_000)
        assert seen["cachewatch_window_seconds"] == 300
        assert seen["cachewatch_scan_seconds_count"] >= 1
        assert abs(seen["cachewatch_last_scan_timestamp_seconds"] - time.time()) < PATIENCE_S
        Path(f"{cache}.end").touch()
        assert process.wait(PATIENCE_S) == 0
    assert_none_left(tag)


def test_a_stall_is_in_the_file_with_its_cause(cache, tmp_path):
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    ran = run_exec(
        cache, "--stall-after", "1s", "--poll", "0.2s", "--grace", "0.3s", "--no-bundle", "--metrics", f"file:{metrics}",
        command=["sh", "-c", f"head -c 9000 /dev/zero > {cache}/a; kill -STOP $$"],
    )  # fmt: skip
    assert ran.status == 124
    (path,) = metrics.iterdir()
    values = metrics_of(path.read_text())
    assert values["cachewatch_last_verdict{cause=stopped_by_signal,kind=no_growth}"] == 1
    assert values["cachewatch_verdicts_total{cause=stopped_by_signal,kind=no_growth}"] == 1
    assert (values["cachewatch_attempts_total{outcome=stalled}"], values["cachewatch_running"]) == (1, 0)
    assert values["cachewatch_written_bytes_total"] == 9000
    assert values["cachewatch_suspicions_total"] == 1
    assert f"cachewatch: metrics: {path}\n" in ran.stderr
    assert path.stat().st_mode & 0o777 == 0o644, "node-exporter is another user"
    ran = run_exec(cache, "--metrics", f"file:{cache}", command=["touch", str(tmp_path / "ran")])
    assert (ran.status, (tmp_path / "ran").exists()) == (125, False)
    assert "where it would count as growth" in ran.stderr


def test_a_metrics_directory_that_goes_away_leaves_the_run_as_it_is(cache, tmp_path):
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    ran = run_exec(
        cache, *WELL, "--metrics", f"file:{metrics}",
        command=["sh", "-c", f"rm -r {metrics}; head -c 9000 /dev/zero > {cache}/a"],
    )  # fmt: skip
    assert ran.status == 0
    assert re.search(
        r"^cachewatch: the metrics file .* cannot be written: No such file or directory$", ran.stderr, re.M
    )


def engine_of(front: int) -> psutil.Process:
    """The process that watches, below a command."""
    (engine,) = (one for one in psutil.Process(front).children() if one.cmdline()[-1].startswith("cachewatch: engine"))
    return engine


def test_a_run_whose_watch_is_killed_stays_running_in_its_file(cache, tmp_path):
    metrics, tag = tmp_path / "metrics", new_tag()
    metrics.mkdir()
    where = ("--metrics", f"file:{metrics}")
    with running(exec_argv(cache, *WELL, *where, command=[*program(GROWS_THEN_WAITS, tag), str(cache)])) as process:

        def written() -> bool:
            return any(
                'written_bytes_total{cache="cache"} 150000.0' in path.read_text() for path in metrics.glob("*.prom")
            )

        assert eventually(written)
        engine_of(process.pid).kill()
        process.communicate(timeout=PATIENCE_S)
    assert_none_left(tag)
    (path,) = metrics.glob("*.prom")
    assert metrics_of(path.read_text())["cachewatch_running"] == 1  # what CachewatchWatchLost asks for
    assert run_exec(cache, *WELL, *where, command=["true"]).status == 0
    values = metrics_of(path.read_text())
    assert (values["cachewatch_running"], values["cachewatch_written_bytes_total"]) == (0, 150_000)


def test_a_cache_that_is_refused_counts_as_a_refused_run(tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "no").touch()
    ran = run_exec(tmp_path / "no", "--metrics", f"file:{tmp_path / 'metrics'}", command=["true"])
    assert ran.status == 125
    (path,) = (tmp_path / "metrics").iterdir()
    values = metrics_of(path.read_text())
    assert values["cachewatch_runs_total{outcome=refused}"] == 1
    assert values["cachewatch_attempts_total{outcome=failed}"] == 0


@pytest.mark.parametrize("command", ["exec", "generate"])
def test_what_cannot_be_served_starts_nothing(cache, taken, tmp_path, command):
    cases = [
        (f"127.0.0.1:{taken}", "the port is taken by another process"),
        ("nine", "is no address: write it like 127.0.0.1:9464"),
        ("192.0.2.7:9464", "this machine has no such address"),
        (f"file:{tmp_path / 'gone'}", "does not exist: create it"),
    ]
    for where, says in cases if command == "exec" else cases[:1]:  # Prefect's imports take a second each time
        argv = exec_argv(cache, "--metrics", where, command=["touch", str(tmp_path / "ran")])
        argv[argv.index("exec")] = command
        ran = run(argv)
        assert ran.status == 125
        assert ran.stderr.startswith(("cachewatch: metrics ", "cachewatch: --metrics: metrics "))
        assert ran.stderr.count("\n") == 1
        assert says in ran.stderr
        assert not cache.exists()
        assert not (tmp_path / "ran").exists()


def listeners(pid: int) -> set[str]:
    """Hexadecimal addresses that a process listens on."""
    inodes: set[Any] = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just closed that one
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd)):
                inodes.add(found[1])
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.parametrize(("where", "address"), [(":0", "0100007F"), ("0.0.0.0:0", "00000000")])
def test_it_listens_on_loopback_unless_told_otherwise_and_the_generator_inherits_nothing(cache, where, address):
    tag = new_tag()
    argv = exec_argv(cache, *WELL, "--metrics", where, command=[*program(GROWS_THEN_WAITS, tag), str(cache)])
    with running(argv) as process:
        assert eventually(lambda: tagged(tag))
        assert listeners(engine_of(process.pid).pid) == {address}
        assert [listeners(pid) for pid in tagged(tag)] == [set()]
        Path(f"{cache}.end").touch()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
