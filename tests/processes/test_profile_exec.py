"""`cachewatch exec --profile`: directories, environment, windows and markers on real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.harness import state
from tests.support import eventually

from prefect_cachewatch.config.profiles import make_profile
from support import CACHEWATCH, Ran, assert_none_left, new_tag, run

WELL = ("--stall-after", "5m", "--first-write-within", "5m", "--poll", "0.2s")
STARTED, COMPLETED = "TT_METAL_CACHE_FIRST_RUN_STARTED", "TT_METAL_CACHE_COMPLETED"


def run_exec(tmp_path: Path, *options: object, command: list[str]) -> Ran:
    report = tmp_path / "r.json"
    report.unlink(missing_ok=True)
    ran = run([*CACHEWATCH, "exec", "--report", str(report), *map(str, options), "--", *command])
    ran.report = json.loads(report.read_text()) if report.exists() else None
    return ran


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def marked(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name.startswith("TT_METAL"))


def test_a_profile_tells_the_generator_where_and_the_watch_looks_there(tmp_path):
    script = 'mkdir -p "$HF_HUB_CACHE/blobs" && head -c 70000 /dev/zero > "$HF_HUB_CACHE/blobs/a.incomplete"'
    ran = run_exec(tmp_path, "--profile", f"hf-download,home={tmp_path}/hf", "--poll", "0.2s", command=sh(script))
    assert ran.status == 0, ran.stderr
    assert ran.report["cache_dirs"] == [f"{tmp_path}/hf/hub", f"{tmp_path}/hf/xet"]
    assert (ran.report["growth"]["bytes_written"], ran.report["name"]) == (70_000, "hf-download")


def test_what_is_given_beside_a_profile_goes_before_it(tmp_path):
    options = ("--profile", f"openvino,cache_dir={tmp_path}/ov", "--poll", "0.2s")
    hangs = sh("sleep 100")
    ran = run_exec(tmp_path, *options, "--first-write-within", "1s", "--no-bundle", "--grace", "0.5s", command=hangs)
    assert (ran.status, ran.report["stall"]["window_s"]) == (124, 1.0)
    ran = run_exec(tmp_path, *options, "--cache-dir", tmp_path / "own", "--env", "A=b",
                   command=sh(f'test "$A" = b && head -c 9000 /dev/zero > {tmp_path}/own/x'))  # fmt: skip
    assert (ran.status, ran.report["cache_dirs"]) == (0, [f"{tmp_path}/own"])


@pytest.fixture
def tt(tmp_path) -> tuple[str, ...]:
    (tmp_path / "done").unlink(missing_ok=True)
    parameters = f"tt-inference-server,model=m,device=n300,tt_cache_path={tmp_path}/tensors"
    return ("--profile", parameters, *WELL, "--no-bundle", "--grace", "0.5s")


def test_a_generation_that_fails_is_marked_as_started_and_never_as_completed(tmp_path, tt):
    cache = tmp_path / "tensors"
    # What it sees of the markers at its start is what others would see.
    ran = run_exec(
        tmp_path, *tt, command=sh(f'ls {cache} > {tmp_path}/seen; head -c 9000 /dev/zero > "$TT_CACHE_PATH/a"; exit 3')
    )
    assert (ran.status, marked(cache), (tmp_path / "seen").read_text()) == (3, [STARTED], f"{STARTED}\n")
    assert ran.report["growth"]["bytes_written"] == 9000
    assert (cache / STARTED).read_text().startswith("Cache generation started at 20")
    assert [path.name for path in cache.iterdir() if ".tmp" in path.name] == []
    assert (tmp_path / "tensors-kernels").is_dir()


# Writes its cache, is silent for a moment, answers /health with 200, and does not end.
SERVER = """
import http.server, os, sys, time
for n in range(3):
    open(f"{os.environ['TT_CACHE_PATH']}/{n}.tensorbin", "wb").write(bytes(20_000))
open(f"{os.environ['TT_METAL_CACHE']}/kernel.elf", "wb").write(bytes(9_000))
time.sleep(0.5)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def test_a_server_is_ready_by_its_health_and_its_cache_is_marked_as_completed(tmp_path, tt):
    tag = new_tag()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--profile", f"{tt[1]},port={port}", *tt[2:], "--then", "stop")
    ran = run_exec(tmp_path, *options, command=[sys.executable, "-c", SERVER, str(port), tag])
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.stderr
    assert (ran.report["ready"]["kind"], ran.report["ready"]["then"]) == ("http", "stop")
    assert ran.report["growth"]["bytes_written"] == 69_000
    assert marked(tmp_path / "tensors") == [COMPLETED, STARTED]
    assert_none_left(tag)


def test_a_cache_marked_as_completed_is_not_marked_as_started_again(tmp_path, tt):
    cache = tmp_path / "tensors"
    cache.mkdir()
    (cache / COMPLETED).write_text("by somebody else\n")
    ran = run_exec(tmp_path, *tt, "--ready", "exit", command=sh("exit 3"))
    assert (ran.status, marked(cache)) == (3, [COMPLETED])
    assert (cache / COMPLETED).read_text() == "by somebody else\n"


def test_a_marker_that_cannot_be_written_is_said_and_changes_nothing(tmp_path, tt):
    (tmp_path / "tensors" / STARTED).mkdir(parents=True)
    ran = run_exec(tmp_path, *tt, "--ready", "exit", command=sh("exit 3"))
    assert ran.status == 3
    (note,) = ran.report["notes"]
    assert note == f"marker {tmp_path}/tensors/{STARTED} was not written: Is a directory"


def test_without_a_command_the_profiles_own_is_taken(tmp_path):
    ran = run([*CACHEWATCH, "exec", "--profile", f"trtllm-build,output_dir={tmp_path}/e,checkpoint_dir=/k"])
    assert ran.status == 127
    assert (
        ran.last_line == "cachewatch: command 'trtllm-build' not found in PATH: check its name, or give its full path"
    )


@pytest.fixture
def builder(tmp_path, monkeypatch) -> list[str]:
    """A trtllm-build of our own, first in PATH, and how it is called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "trtllm-build").write_text('#!/bin/sh\nmkdir -p "$2"; head -c 9000 /dev/zero > "$2/rank0.engine"\n')
    (tools / "trtllm-build").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return ["trtllm-build", "--output_dir", str(tmp_path / "engine")]


# Writes weights, tells of progress, starts a server that is no child of it; then it hangs, gives up or ends.
TT_MODEL = """#!/bin/sh
echo "$1 $2" >> "$CALLS"
if [ "$1" = stop ]; then kill "$(cat "$CALLS.server")"; exit; fi
mkdir -p "$HF_HOME/hub"; head -c 9000 /dev/zero > "$HF_HOME/hub/weights"
echo '{"event":"progress","done":1,"total":2,"unit":"bytes"}'
(setsid sleep 3600 > /dev/null 2>&1 & echo $! > "$CALLS.server")
$THEN
"""


@pytest.mark.parametrize(("then", "window", "status"), [("sleep 3600", "2s", 124), ("exit 5", "5m", 5)])
def test_the_container_of_tt_serve_is_stopped_where_it_hangs_or_gives_up(tmp_path, monkeypatch, then, window, status):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tt-model").write_text(TT_MODEL)
    (tmp_path / "bin/tt-model").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("THEN", then)
    profile = f"tt-serve,tool=tt-model,model=ns/m,home={tmp_path}/hf,port=9"
    report = tmp_path / "r.json"
    options = (
        "--first-write-within",
        "5m",
        "--stall-after",
        window,
        "--warmup-within",
        window,
        "--poll",
        "0.2s",
        "--no-bundle",
    )
    ran = run([*CACHEWATCH, "exec", "--report", str(report), "--profile", profile, *options])
    assert (ran.status, json.loads(report.read_text())["logged"]["count"]) == (status, 1), ran.stderr
    assert (tmp_path / "calls").read_text() == "serve ns/m\nstop ns/m\n"
    server = int((tmp_path / "calls.server").read_text())
    assert eventually(lambda: state(server) in ("Z", ""))


def test_the_third_attempt_of_a_download_does_without_xet(tmp_path):
    (tmp_path / "hf").write_text('#!/bin/sh\necho "$HF_HUB_DISABLE_XET $*"\n')
    (tmp_path / "hf").chmod(0o755)
    command = make_profile("hf-download", {"home": "/h", "repo": "org/m"}).settings.command
    said = []
    for attempt in ("1", "2", "3"):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CACHEWATCH_ATTEMPT": attempt}
        said.append(subprocess.run(command, env=env, capture_output=True, text=True).stdout)
    assert said == [" download org/m\n", " download org/m\n", "1 download org/m\n"]


def test_the_generator_is_told_which_attempt_it_is(tmp_path):
    ran = run_exec(tmp_path, "--allow-empty", "--cache-dir", tmp_path / "c", command=sh('exit "4$CACHEWATCH_ATTEMPT"'))
    assert ran.status == 41


def test_a_known_command_is_watched_from_its_start_by_its_profile(tmp_path, builder):
    ran = run_exec(tmp_path, command=builder)
    assert (ran.status, ran.report["cache_dirs"], ran.report["name"]) == (0, [f"{tmp_path}/engine"], "engine"), (
        ran.stderr
    )
    assert ran.report["growth"]["bytes_written"] == 9000
    said = (
        f"cachewatch: profile trtllm-build, by the command: watching {tmp_path}/engine; --profile none turns this off\n"
    )
    assert said in ran.stderr


def test_a_profile_is_not_looked_for_where_a_directory_is_given(tmp_path, builder):
    ran = run_exec(tmp_path, "--allow-empty", "--cache-dir", tmp_path / "own", command=builder)
    assert (ran.status, ran.report["cache_dirs"]) == (0, [str(tmp_path / "own")]), ran.stderr
    assert "by the command" not in ran.stderr
