"""What becomes of a container when the flow, its warden or the engine dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.containers.stopping import RunningContainer
from prefect_cachewatch.supervise.proc import children, command_line
from tests.containers.engine import SHELL_IMAGE, Engine, Service
from tests.support import CACHEWATCH, PATIENCE_S, eventually, exec_argv, run, running

GROWS = (
    "echo up; i=0; while true; do i=$((i+1)); dd if=/dev/zero of=$CACHE/$i bs=64k count=1 2>/dev/null; sleep 0.1; done"
)
HANGS = "dd if=/dev/zero of=$CACHE/f bs=1M count=1 2>/dev/null; echo up; sleep 7777; true"


def argv(cache: Path, script: str, *options: object) -> list[str]:
    more = ["--image", SHELL_IMAGE, "--env", f"CACHE={cache}", "--poll", "0.2s", "--grace", "0.3s", *options]
    return exec_argv(cache, *more, command=["sh", "-c", script])


def doctor(engine_url: str | None = None) -> dict[str, Any]:
    """Let `cachewatch doctor` clear up; what it says of that."""
    env = os.environ | ({"DOCKER_HOST": engine_url} if engine_url else {})
    ran = run([*CACHEWATCH, "doctor", "--no-prefect", "--json"], env=env)
    (found,) = [one for one in json.loads(ran.stdout)["checks"] if one["subject"] == "leftover"]
    return dict(found)


def wardens(pid: int) -> list[int]:
    return [child for child in children(pid) if "cachewatch-guard-container" in command_line(child)]


def first_pid(engine: Engine) -> int:
    (found,) = json.loads(engine.podman("ps", "--format", "json"))
    return int(found["Pid"])


def await_up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "up\n", (line, process.stderr.read() if process.poll() is not None else "still running")


def test_the_container_of_a_flow_that_was_killed_is_gone_at_once(engine, cache):
    # TERM is ignored: the warden needs all its steps.
    with running(argv(cache, f"trap '' TERM; {GROWS}")) as process:
        await_up(process)
        process.kill()
        began_s = time.monotonic()
        assert eventually(lambda: not engine.containers())
        assert time.monotonic() - began_s < 30


def test_a_flow_that_is_killed_while_its_container_is_being_made_leaves_none(engine, cache):
    for delay_s in (0.2, 0.5, 0.8):
        directory = cache.parent / f"cache-{delay_s}"  # the warden holds the lock for as long as it looks
        with running(argv(directory, HANGS)) as process:
            (warden,) = eventually(lambda process=process: wardens(process.pid))
            time.sleep(delay_s)
            process.kill()
        # The warden ends only when it has looked until none can be under way any more.
        assert eventually(lambda warden=warden: not Path(f"/proc/{warden}").exists(), 90)
    assert engine.containers() == []


def test_the_container_of_a_warden_that_was_killed_is_stopped_at_once_and_removed(engine, cache):
    report = cache.parent / "report.json"
    with running(argv(cache, GROWS, "--report", report)) as process:
        await_up(process)
        (warden,) = wardens(process.pid)
        os.kill(warden, signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 125
    found = json.loads(report.read_text())
    assert found["outcome"] == "failed"
    assert "it was stopped because its guard process died" in found["message"]
    assert "the warden of the container was killed" in found["notes"]
    assert eventually(lambda: not engine.containers())


def test_a_container_that_somebody_has_paused_is_stopped(engine, cache):
    with running(argv(cache, HANGS, "--stall-after", "2s")) as process:
        await_up(process)
        (name,) = engine.containers()
        engine.podman("pause", name)
        assert process.wait(2 * PATIENCE_S) == 124
    assert eventually(lambda: not engine.containers())


@pytest.mark.parametrize("then", ["the flow stops it", "the flow is killed", "the run ends by itself"])
def test_a_warden_that_is_stopped_holds_up_nothing(engine, cache, then):
    script = HANGS if then == "the flow stops it" else GROWS
    if then == "the run ends by itself":
        script = GROWS.replace("true; do", "[ $i -lt 60 ]; do")
    with running(argv(cache, script, "--stall-after", "3s")) as process:
        await_up(process)
        (warden,) = wardens(process.pid)
        os.kill(warden, signal.SIGSTOP)
        if then == "the flow is killed":
            process.kill()
            process.wait(PATIENCE_S)
            # Nobody is left to continue it here: the janitor is the next line.
            eventually(lambda: not engine.containers(), 10)
            doctor()
        else:
            assert process.wait(2 * PATIENCE_S) == (124 if script == HANGS else 0)
    assert eventually(lambda: not engine.containers())


def test_the_janitor_continues_a_warden_that_was_stopped_after_its_flow_died(engine, cache):
    with running(argv(cache, f"trap '' TERM; {GROWS}", "--grace", "3s")) as process:
        await_up(process)
        (warden,) = wardens(process.pid)
        process.kill()
        process.wait(PATIENCE_S)
        os.kill(warden, signal.SIGSTOP)  # within its grace period
    time.sleep(0.5)
    assert doctor()["state"] == "ok"
    assert eventually(lambda: not engine.containers())


def test_the_janitor_finds_the_container_of_a_run_whose_flow_and_warden_were_killed(engine, cache):
    with running(argv(cache, GROWS)) as process:
        await_up(process)
        (warden,) = wardens(process.pid)
        assert (doctor()["facts"]["running"], len(engine.containers())) == (1, 1)
        os.kill(warden, signal.SIGSTOP)  # both die before either sees the other's death
        process.kill()
        os.kill(warden, signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert len(engine.containers()) == 1
    cleared = doctor()
    assert "is left over from a run whose guards have died, and was stopped and removed" in cleared["found"]
    assert engine.containers() == []


def test_a_container_of_somebody_else_is_never_touched(engine):
    labels = {"cachewatch.run": "f" * 32, "cachewatch.uid": "4242", "cachewatch.guards": "1:1"}
    options = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    engine.podman("run", "--detach", "--name", "not-ours", *options, SHELL_IMAGE, "sleep", "7777")
    try:
        assert doctor()["state"] == "ok"
        assert engine.containers() == ["not-ours"]
    finally:
        engine.podman("rm", "--force", "--time", "0", "not-ours")


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_an_engine_that_dies_or_hangs_keeps_no_stalled_container_alive(engine, service: Service, cache, fault):
    report = cache.parent / "report.json"
    with running(argv(cache, HANGS, "--stall-after", "2s", "--report", report)) as process:
        await_up(process)
        pid = first_pid(engine)
        service.kill() if fault == "dies" else service.freeze()
        assert process.wait(2 * PATIENCE_S) == 124
    found = json.loads(report.read_text())
    assert found["outcome"] == "stalled"
    assert pid in [who["pid"] for who in found["stop"]["terminated"] + found["stop"]["killed"]]
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    service.kill()
    # Its remains are found as soon as an engine serves the same storage.
    doctor(engine.main.url)
    assert engine.containers() == []


def test_a_generator_that_ends_while_the_engine_is_away_has_failed_in_a_way_nobody_knows(
    engine, service: Service, cache
):
    report = cache.parent / "report.json"
    script = "echo up; sleep 4"
    with running(argv(cache, script, "--report", report)) as process:
        await_up(process)
        service.kill()
        assert process.wait(2 * PATIENCE_S) == 125
    assert "its container has ended, and the engine does not say how" in json.loads(report.read_text())["message"]
    doctor(engine.main.url)


def test_an_engine_that_is_restarted_costs_nothing_but_the_output(engine, service: Service, cache):
    report = cache.parent / "report.json"
    finish = threading.Event()
    with running(argv(cache, GROWS.replace("true; do", "[ $i -lt 80 ]; do"), "--report", report)) as process:
        await_up(process)
        service.kill()
        again = subprocess.Popen(
            service.process.args, env=engine.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            assert process.wait(2 * PATIENCE_S) == 0
        finally:
            finish.set()
            again.terminate()
            again.wait(30)
    assert json.loads(report.read_text())["outcome"] == "completed"


def test_a_second_stop_ends_the_grace_period(engine):
    engine.podman(
        "run", "--detach", "--name", "stubborn", SHELL_IMAGE, "sh", "-c", "trap '' TERM; while true; do sleep 0.1; done"
    )
    try:
        (found,) = json.loads(engine.podman("ps", "--format", "json"))
        container = RunningContainer(engine.main.http, found["Id"], "no-run_token")
        began_s = time.monotonic()
        stopped = container.stop(600.0, lambda seconds: nap(seconds) and time.monotonic())  # a deadline that is now
        assert stopped.gone
        assert time.monotonic() - began_s < 100
        assert any(who["argv"][0] == "sh" for who in stopped.killed)
    finally:
        engine.podman("rm", "--force", "--time", "0", "stubborn")


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return float("inf")
