"""`cachewatch exec --record` on real processes: what it leaves behind, however the run ends, can be replayed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.trace.files import read_trace
from support import (
    CACHEWATCH,
    assert_none_left,
    eventually,
    exec_argv,
    new_tag,
    program,
    run,
    run_exec,
    running,
    tagged,
)

# Writes layers a while apart and a temporary file that it deletes; then ends, or hangs.
GENERATOR = """
import os, sys, time
cache, layers, hang = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "hang"
for layer in range(layers):
    for name in (f"layer{layer}", "scratch"):
        with open(os.path.join(cache, name), "wb") as file:
            file.write(b"x" * 100_000)
    time.sleep(0.3)
    os.unlink(os.path.join(cache, "scratch"))
time.sleep(600 if hang else 0)
"""
WINDOWS = ("--stall-after", "2s", "--first-write-within", "30s", "--poll", "0.5s")


def command(cache: Path, layers: int, end: str, tag: str | None = None) -> list[str]:
    return [*program(GENERATOR, tag or new_tag()), str(cache), str(layers), end]


def replayed(path: Path, *options: str) -> dict[str, object]:
    done = run([*CACHEWATCH, "replay", str(path), "--json", *options])
    assert (done.status, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_healthy_run_is_recorded_to_its_end(tmp_path):
    cache, path = tmp_path / "cache", tmp_path / "t.csv"
    ran = run_exec(cache, "--record", path, "--quiet", *WINDOWS, command=command(cache, 5, "end"))
    assert (ran.status, ran.stderr) == (0, "")
    trace = read_trace(path)
    assert (trace.recorded, trace.torn, trace.ending) == (True, False, "exited")
    last = trace.rows[-1]
    assert (last.total_bytes, last.file_count, last.kept_bytes) == (500_000, 5, 500_000)
    assert last.written_bytes == ran.report["growth"]["bytes_written"]
    data = replayed(path, *WINDOWS)
    assert (data["status"], data["bytes_written"]) == ("ended", last.written_bytes)


@pytest.mark.campaign
def test_a_stalled_run_is_stopped_at_the_same_moment_when_it_is_replayed(tmp_path):
    cache, path = tmp_path / "cache", tmp_path / "t.csv"
    ran = run_exec(cache, "--record", path, "--no-bundle", *WINDOWS, command=command(cache, 3, "hang"))
    assert ran.status == 124
    assert read_trace(path).ending == "stopped"
    data = replayed(path, *WINDOWS)
    assert (data["status"], data["kind"], data["stopped_in_vain"]) == ("stalled", "no_growth", False)
    assert data["after_last_growth_s"] == pytest.approx(2, abs=0.01)
    assert data["last_growth_s"] == pytest.approx(ran.report["growth"]["last_growth_s"], abs=0.01)
    # A longer window is not decided by a trace that ends in the pause; a hang there is.
    assert replayed(path, "--stall-after", "1m", "--poll", "0.5s")["status"] == "ended"
    frozen = replayed(path, "--stall-after", "1m", "--poll", "0.5s", "--hang-at", "1h")
    assert frozen["after_last_growth_s"] == pytest.approx(60, abs=0.01)


@pytest.mark.campaign
def test_a_run_that_is_killed_leaves_a_valid_trace_so_far(tmp_path):
    cache, path, tag = tmp_path / "cache", tmp_path / "t.csv", new_tag()

    def rows() -> int:
        try:
            return len(read_trace(path).rows)
        except InputError:
            return 0

    with running(exec_argv(cache, "--record", path, *WINDOWS, command=command(cache, 1000, "end", tag))) as process:
        assert eventually(lambda: rows() > 3)
        assert tagged(tag)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    assert_none_left(tag)
    trace = read_trace(path)
    assert (trace.ending, trace.torn) == ("cut_off", False)
    assert trace.rows[-1].written_bytes > 0
    assert replayed(path, *WINDOWS)["status"] == "ended"


def test_a_directory_gets_a_file_of_its_own_for_each_run(tmp_path):
    cache, traces = tmp_path / "a cache", tmp_path / "traces"
    traces.mkdir()
    for _ in range(2):
        run_exec(cache, "--record", traces, "--quiet", *WINDOWS, command=command(cache, 1, "end"))
    found = sorted(traces.iterdir())
    assert [path.name.startswith("a-cache-") for path in found] == [True, True]
    assert [read_trace(path).ending for path in found] == ["exited", "exited"]


@pytest.mark.campaign
def test_a_recording_that_fails_ends_no_generation(tmp_path):
    cache, path = tmp_path / "cache", tmp_path / "t.csv"
    # Whatever a run imports is compiled by now: Python would keep a module that was cut off under the limit.
    run_exec(
        tmp_path / "before",
        "--record",
        tmp_path / "before.csv",
        *WINDOWS,
        command=command(tmp_path / "before", 1, "end"),
    )
    # No file may grow beyond 1024 bytes, as on a disk that fills up; for the generator the limit is lifted again.
    lifted = ["bash", "-c", 'ulimit -S -f unlimited; sleep 3; exec "$@"', "bash", *command(cache, 2, "end")]
    argv = exec_argv(cache, "--record", path, "--quiet", *WINDOWS[:-1], "0.1s", command=lifted)
    ran = run(["bash", "-c", 'ulimit -S -f 1; exec "$@"', "bash", *argv])
    assert ran.status == 0
    assert f"cachewatch: the trace {path} is incomplete: File too large" in ran.stderr
    trace = read_trace(path)
    assert (trace.ending, trace.torn) == ("cut_off", False)
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: (p / "t.csv").write_text("mine"),
            "trace {} exists already: name another file, or a directory, where each run gets its own",
        ),
        (lambda p: None, None),
    ],
    ids=["exists", "in the cache"],
)
def test_a_place_that_cannot_be_recorded_to_is_refused_before_the_start(tmp_path, make, message):
    make(tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir()
    path = tmp_path / "t.csv" if message else cache / "t.csv"
    ran = run_exec(cache, "--record", path, command=["touch", str(cache / "started")])
    message = message or (
        f"trace {{}} lies in cache directory {cache}, where it would count as growth: put it elsewhere"
    )
    assert (ran.status, ran.last_line) == (125, "cachewatch: " + message.format(path))
    assert os.listdir(cache) == []
