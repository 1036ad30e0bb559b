"""What becomes of a container when the flow, its warden, the engine or somebody else ends, stops or removes something."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.containers.engine import connect
from prefect_cachewatch.containers.janitor import labels_of_run
from prefect_cachewatch.containers.stopping import RunningContainer
from prefect_cachewatch.supervise.proc import children, command_line
from tests.containers.engine import SHELL_IMAGE, Engine, Service
from tests.support import CACHEWATCH, PATIENCE_S, eventually, exec_argv, run, running

HANGS = "dd if=/dev/zero of=$CACHE/f bs=1M count=1 2>/dev/null; echo up; sleep 7777; true"
GROWS = (
    "echo up; i=0; while [ ! -e $CACHE/end ]; do i=$((i+1)); dd if=/dev/zero of=$CACHE/$i bs=64k count=1 2>/dev/null; "
    "sleep 0.1; done"
)
FUSE = Path(__file__).parents[1] / "contract" / "fuse_daemon.py"


def argv(cache: Path, script: str, *options: object) -> list[str]:
    more = ["--image", SHELL_IMAGE, "--env", f"CACHE={cache}", "--poll", "0.2s", "--grace", "0.3s", *options]
    return exec_argv(cache, *more, command=["sh", "-c", script])


def doctor(engine_url: str | None = None) -> dict[str, Any]:
    """Let `cachewatch doctor` clear up; what it says of that."""
    env = os.environ | ({"DOCKER_HOST": engine_url} if engine_url else {})
    ran = run([*CACHEWATCH, "doctor", "--no-prefect", "--json"], env=env)
    (found,) = [one for one in json.loads(ran.stdout)["checks"] if one["subject"] == "leftover"]
    return dict(found)


@dataclass
class Run:
    """A run whose container is up."""

    engine: Engine
    service: Service
    cache: Path
    process: subprocess.Popen[str]

    @property
    def warden(self) -> int:
        return warden_of(self.process.pid)

    def podman(self, action: str) -> None:
        self.engine.podman(*action.split(), *self.engine.containers())


def warden_of(pid: int) -> int:
    def look() -> list[int]:
        below = (child for engine in children(pid) for child in children(engine))
        return [child for child in below if "cachewatch-guard-container" in command_line(child)]

    (found,) = eventually(look)
    return found


def await_up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "up\n", (line, process.stderr.read() if process.poll() is not None else "still running")


def serves_again(one: Run) -> None:
    one.service.kill()
    process = subprocess.Popen(
        one.service.process.args, env=one.engine.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    one.service.process = process
    assert eventually(one.service.answers)
    (one.cache / "end").touch()


def ends_unseen(one: Run) -> None:
    one.service.kill()
    (one.cache / "end").touch()


def is_removed(one: Run) -> None:
    one.service.freeze()  # so that it is asked only when there is nothing left to tell of
    one.podman("rm --force --time 0")
    one.service.process.send_signal(signal.SIGCONT)


def is_stopped_and_goes_on(one: Run) -> None:
    os.kill(one.warden, signal.SIGSTOP)
    (one.cache / "end").touch()


UNKNOWN = "its container has ended, and the engine does not say how"
# What is done once the container is up, and the script, status, outcome and words of the message.
FAULTS: dict[str, tuple[Callable[[Run], object], str, int, str, str]] = {
    "its warden is killed": (
        lambda one: os.kill(one.warden, signal.SIGKILL), GROWS, 125, "failed", "stopped because its guard process died",
    ),
    "its warden is stopped": (lambda one: os.kill(one.warden, signal.SIGSTOP), HANGS, 124, "stalled", "stalled"),
    "its warden is stopped, and it ends": (is_stopped_and_goes_on, GROWS, 0, "completed", "completed"),
    "it is paused": (lambda one: one.podman("pause"), HANGS, 124, "stalled", "stalled"),
    "it is removed": (is_removed, GROWS, 125, "failed", UNKNOWN),
    "it is killed": (lambda one: one.podman("kill"), GROWS, 137, "failed", "137"),
    "the engine dies": (lambda one: one.service.kill(), HANGS, 124, "stalled", "stalled"),
    "the engine hangs": (lambda one: one.service.freeze(), HANGS, 124, "stalled", "stalled"),
    "the engine dies, and it ends": (ends_unseen, GROWS, 125, "failed", UNKNOWN),
    "the engine is restarted": (serves_again, GROWS, 0, "completed", "completed"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_the_container_is_gone_and_the_run_says_how_it_ended(engine, service: Service, cache, fault):
    act, script, status, outcome, words = FAULTS[fault]
    report = cache.parent / "report.json"
    with running(
        argv(cache, script, "--stall-after", "2s" if script == HANGS else "60s", "--report", report)
    ) as process:
        await_up(process)
        (container,) = json.loads(engine.podman("ps", "--format", "json"))
        act(Run(engine, service, cache, process))
        assert process.wait(2 * PATIENCE_S) == status
    found = json.loads(report.read_text())
    assert (found["outcome"], words in found["message"]) == (outcome, True), found["message"]
    if outcome == "stalled":
        assert container["Pid"] in [who["pid"] for who in found["stop"]["terminated"] + found["stop"]["killed"]]
    assert not Path(f"/proc/{container['Pid']}").exists() or "Z" in Path(f"/proc/{container['Pid']}/stat").read_text()
    if fault.startswith("the engine"):
        # Its remains are found as soon as an engine serves the same storage.
        service.kill()
        doctor(engine.main.url)
        assert engine.containers() == []
    assert eventually(lambda: not engine.containers())


def test_the_container_of_a_flow_that_was_killed_is_gone(engine, cache):
    # TERM is ignored: the warden needs all its steps.
    with running(argv(cache, f"trap '' TERM; {GROWS}")) as process:
        await_up(process)
        process.kill()
        assert eventually(lambda: not engine.containers())


def test_a_flow_that_is_killed_while_its_container_is_being_made_leaves_none(engine, service: Service, cache):
    with running(argv(cache, HANGS)) as process:
        warden = warden_of(process.pid)
        service.freeze()
        process.kill()
    service.process.send_signal(signal.SIGCONT)
    # The warden ends only when nothing is under way any more.
    assert eventually(lambda: not Path(f"/proc/{warden}").exists(), 3 * PATIENCE_S)
    assert engine.containers() == []


@pytest.mark.parametrize("then", ["is stopped", "is killed"])
def test_the_janitor_sees_to_a_container_whose_flow_is_dead_and_whose_warden(engine, cache, then):
    with running(argv(cache, f"trap '' TERM; {GROWS}")) as process:
        await_up(process)
        warden = warden_of(process.pid)
        assert (doctor()["facts"]["running"], len(engine.containers())) == (1, 1)
        os.kill(warden, signal.SIGSTOP)  # it acts on the death of the flow only if it is continued
        if then == "is killed":  # and the engine with it, which would see to the container
            for pid in (*children(process.pid), warden):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(PATIENCE_S)
    found = doctor()
    if then == "is killed":
        assert "is left over from a run whose guards have died, and was stopped and removed" in found["found"]
    assert found["state"] == "ok"
    assert eventually(lambda: not engine.containers())


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("cachewatch-theirs-ffffffff", {"cachewatch.uid": "4242", "cachewatch.guards": "1:1"}),
        ("of-an-image-with-the-labels-of-a-run", {}),
    ],
)
def test_a_container_of_somebody_else_is_never_touched(engine, name, labels):
    labels = labels_of_run("f" * 32, "job", []) | labels
    options = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
    engine.podman("run", "--detach", "--name", name, *options, SHELL_IMAGE, "sleep", "7777")
    try:
        assert doctor()["state"] == "ok"
        assert engine.containers() == [name]
    finally:
        engine.podman("rm", "--force", "--time", "0", name)


def test_a_second_stop_ends_the_grace_period(engine):
    script = "trap '' TERM; while true; do sleep 0.1; done"
    engine.podman("run", "--detach", "--name", "stubborn", SHELL_IMAGE, "sh", "-c", script)
    try:
        (found,) = json.loads(engine.podman("ps", "--format", "json"))
        with contextlib.closing(connect(engine.main.url)) as client:
            container = RunningContainer(client, found["Id"], "no-run-token")
            stopped = container.stop(3600.0, lambda seconds: time.monotonic())  # a deadline that is now
        assert stopped.gone
        assert any(who["argv"][0] == "sh" for who in stopped.killed)
    finally:
        engine.podman("rm", "--force", "--time", "0", "stubborn")


def test_a_secret_is_in_the_containers_environment_and_nowhere_else(engine, cache, monkeypatch):
    monkeypatch.setenv("HUSH", secret := f"hush-{os.urandom(8).hex()}")
    with running(argv(cache, HANGS, "--env", "HUSH")) as process:
        await_up(process)
        (found,) = json.loads(engine.podman("inspect", *engine.containers()))
        assert f"HUSH={secret}" in found["Config"].pop("Env")
        warden = Path(f"/proc/{warden_of(process.pid)}")
        assert secret not in json.dumps(found)
        assert secret.encode() not in (warden / "cmdline").read_bytes() + (warden / "environ").read_bytes()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that hangs on SIGUSR1; the file beside it has the pid that answers."""
    mount, pid_file = tmp_path / "mount", tmp_path / "fuse.pid"
    mount.mkdir()
    subprocess.run([sys.executable, FUSE, mount, "memory", pid_file], check=True)
    assert eventually(pid_file.exists)
    yield mount
    with contextlib.suppress(OSError):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    subprocess.run(["umount", "-l", mount], check=False)


def test_a_process_that_no_signal_ends_is_named_alone_and_its_container_removed_once_it_has_ended(
    engine, cache, hanging
):
    report = cache.parent / "report.json"
    script = "exec 3>/slow/file; echo x >&3; echo up; sleep 7777 3>&-; true"  # its end waits for the file to be closed
    options = ("--volume", f"{hanging}:/slow", "--first-write-within", "2s", "--report", report)
    pid = int(hanging.with_name("fuse.pid").read_text())
    with running(argv(cache, script, *options)) as process:
        await_up(process)
        os.kill(pid, signal.SIGUSR1)
        assert process.wait(3 * PATIENCE_S) == 124
        found = json.loads(report.read_text())
        assert [who["argv"] for who in found["stop"]["survivors"]] == [["[sh]"]]
        assert [who["argv"] for who in found["stop"]["killed"]] == [["sleep", "7777"]]
        assert len(engine.containers()) == 1
        os.kill(pid, signal.SIGUSR2)
    assert eventually(lambda: not engine.containers())
