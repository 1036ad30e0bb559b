"""`cachewatch watch --container`: containers that somebody else started, on a real engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.engine import SHELL_IMAGE, Engine
from tests.support import CACHEWATCH, PATIENCE_S, Ran, eventually, run, running

WELL = ("--stall-after", "5m", "--first-write-within", "5m", "--poll", "0.2s")
SHORT = ("--stall-after", "1s", "--first-write-within", "1s", "--poll", "0.2s", "--grace", "1s", "--no-bundle")
# Waits for a file, so that a watch is there before it goes on.
WAITS = "while ! test -e /cache/go; do sleep 0.05; done; "


@pytest.fixture
def started(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts containers as somebody else would, the cache a bind mount; each is removed at the end."""
    names: list[str] = []
    (tmp_path / "host").mkdir()

    def start(script: str, *options: object) -> str:
        names.append(f"attached-{tmp_path.name[-20:].strip('-_')}-{len(names)}")
        engine.podman(
            "run", "-d", "--name", names[-1], "--network", "none", "-v", f"{tmp_path}/host:/cache", *options,
            SHELL_IMAGE, "sh", "-c", script,
        )  # fmt: skip
        return names[-1]

    yield start
    for name in names:
        engine.podman("rm", "--force", "--time", "0", name, check=False)


def watch_argv(container: str, *options: object) -> list[str]:
    return [*CACHEWATCH, "watch", "--container", container, *map(str, options)]


def report_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_end_of_a_container_is_seen_with_its_exit_code_and_a_path_in_it_is_found(started, tmp_path):
    name = started(WAITS + "head -c 90000 /dev/zero > /cache/a.bin; exit 7")
    report = tmp_path / "r.json"
    with running(watch_argv(name, "--cache-dir", "/cache", *WELL, "--report", report)) as watching:
        assert f"watching container {name} (sh -c" in watching.stderr.readline()
        time.sleep(1)  # it is measuring the start
        (tmp_path / "host" / "go").touch()
        _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 7, said
    found = report_of(report)
    assert (found["outcome"], found["exit_code"], found["cache_dirs"]) == ("failed", 7, [f"{tmp_path}/host"])
    assert found["growth"]["bytes_written"] >= 90_000
    assert found["attached"]["container"].isalnum()


def test_a_stall_stops_the_container_through_the_engine(engine, started, tmp_path):
    name = started("trap '' TERM; while :; do sleep 1; done")
    report = tmp_path / "r.json"
    ran = run(watch_argv(name, "--cache-dir", f"{tmp_path}/host", *SHORT, "--on-stall", "stop", "--report", report))
    assert ran.status == 124, ran.stderr
    found = report_of(report)
    assert (found["outcome"], found["stop"]["survivors"]) == ("stalled", [])
    state = json.loads(engine.podman("inspect", name))[0]["State"]
    assert (state["Running"], state["ExitCode"]) == (False, 137)


def test_a_reported_stall_and_the_end_of_the_watch_leave_it_alone(engine, started, tmp_path):
    name = started("while :; do sleep 1; done")
    report = tmp_path / "r.json"
    argv = watch_argv(name, "--cache-dir", "/cache", *SHORT, "--report", report)
    with running(argv) as watching:
        assert eventually(report.exists)
        watching.terminate()
        _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 143
    assert f"Container {name} was left alone." in said
    assert f"container {name} goes on" in said
    found = report_of(report)
    assert (found["outcome"], len(found["attached"]["stalls"])) == ("detached", 1)
    assert json.loads(engine.podman("inspect", name))[0]["State"]["Status"] == "running"


def refused(*options: object) -> Ran:
    ran = run([*CACHEWATCH, "watch", *map(str, options)])
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    return ran


def test_bad_input_is_one_sentence(engine, started, tmp_path):
    assert (
        "there is no container nobody at the engine" in refused("--container", "nobody", "--cache-dir", "/c").last_line
    )
    assert "either a process with --pid PID, or a container" in refused("--cache-dir", "/c").last_line
    assert "say where the container writes" in refused("--container", "x").last_line
    none = f"unix://{tmp_path}/none.sock"
    assert "no container engine answers" in refused("--container", "x", "--cache-dir", "/c", "--engine", none).last_line
    name = started("exit 0")
    assert eventually(lambda: json.loads(engine.podman("inspect", name))[0]["State"]["Status"] == "exited")
    assert f"container {name} does not run (exited)" in refused("--container", name, "--cache-dir", "/cache").last_line


def test_a_container_of_a_guarded_run_may_be_watched_and_not_stopped(engine, cache, tmp_path):
    script = "while :; do sleep 1; done"
    guarded = [*CACHEWATCH, "exec", "--cache-dir", str(cache), "--image", SHELL_IMAGE, *WELL, "--", "sh", "-c", script]
    with running(guarded) as run_of_ours:
        (name,) = eventually(engine.containers)
        ran = run(watch_argv(name, "--cache-dir", str(cache), *WELL, "--on-stall", "stop"))
        assert ran.status == 125
        assert "belongs to a run of cachewatch already" in ran.last_line
        run_of_ours.terminate()
        run_of_ours.communicate(timeout=PATIENCE_S)
