"""A volume that this user may not read, measured from a read-only helper container; here the engine is one over TCP."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.containers.engine import find_engine
from prefect_cachewatch.containers.volume_scanner import VolumeScanner
from prefect_cachewatch.errors import ScanError, ScanTimeout
from prefect_cachewatch.watching.site import CacheDirectories
from tests.containers.engine import PYTHON_IMAGE, SHELL_IMAGE, Engine, Service
from tests.support import CACHEWATCH, eventually, exec_argv, run, run_exec, running


@pytest.fixture
def remote(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    service = engine.start_service(port)
    monkeypatch.setenv("DOCKER_HOST", service.url)
    yield service
    if service.process.poll() is None:
        service.process.send_signal(signal.SIGCONT)
        service.process.terminate()
        service.process.wait(30)


@pytest.fixture
def volume(engine: Engine) -> Iterator[tuple[str, Path]]:
    engine.podman("volume", "create", "far")
    where = Path(engine.podman("volume", "inspect", "far", "--format", "{{.Mountpoint}}"))
    (where / "llama").mkdir()
    yield "far", where
    engine.remove_volume("far")


ASKED = ("--image", SHELL_IMAGE, "--measure-image", PYTHON_IMAGE, "--volume", "far:/cache", "--poll", "0.5s")


def test_a_container_is_measured_on_an_engine_whose_files_are_not_to_be_read_from_here(remote, volume, tmp_path):
    script = "for i in 1 2 3; do dd if=/dev/zero of=/cache/llama/f$i bs=1M count=2 2>/dev/null; sleep 1; done"
    ran = run_exec(
        None, "--cache-dir", "volume:far/llama", *ASKED, command=["sh", "-c", script], report_dir=tmp_path
    )  # fmt: skip
    assert ran.status == 0, ran.stderr
    assert ran.report["growth"]["bytes_written"] == 6 << 20
    assert ran.report["growth"]["files_present"] == 3


def test_a_stall_is_seen_through_the_helper_and_the_container_is_stopped(remote, volume, tmp_path):
    script = "dd if=/dev/zero of=/cache/llama/f bs=1M count=2 2>/dev/null; sleep 7777; true"
    ran = run_exec(
        None, "--cache-dir", "volume:far/llama", *ASKED, "--stall-after", "3s", "--grace", "0.3s",
        command=["sh", "-c", script], report_dir=tmp_path,
    )  # fmt: skip
    assert ran.status == 124, ran.stderr
    assert ran.report["stall"]["kind"] == "no_growth"
    assert ran.report["growth"]["bytes_written"] == 2 << 20


def test_an_engine_that_hangs_is_blindness_and_neither_zero_bytes_nor_a_hang(remote, volume, tmp_path):
    report = tmp_path / "report.json"
    script = "dd if=/dev/zero of=/cache/llama/f bs=1M count=2 2>/dev/null; echo up; sleep 7777; true"
    argv = exec_argv(
        None, "--cache-dir", "volume:far/llama", *ASKED, "--stall-after", "3s", "--grace", "0.3s", "--report", report,
        command=["sh", "-c", script],
    )  # fmt: skip
    with running(argv) as process:
        assert process.stdout.readline() == "up\n"
        time.sleep(1)
        remote.freeze()
        assert process.wait(150) == 124
    found = json.loads(report.read_text())
    assert found["growth"]["bytes_present"] >= found["growth"]["bytes_written"] >= 0
    assert found["stall"]["kind"] in ("filesystem_unresponsive", "no_growth")
    remote.kill()


def test_what_cannot_be_measured_is_refused_before_anything_is_started(engine, remote, volume, cache):
    def refusal(*options: object) -> str:
        ran = run([*CACHEWATCH, "exec", *map(str, options), "--volume", "far:/cache", "--", "true"])
        assert (ran.status, ran.stderr.count("\n")) == (125, 1), ran.stderr
        return ran.stderr

    assert "would be on the host of the engine at" in refusal("--image", SHELL_IMAGE, "--cache-dir", cache)
    no_python = refusal("--image", SHELL_IMAGE, "--cache-dir", "volume:far/llama")
    assert "python3" in no_python and "--measure-image" in no_python
    missing = refusal("--image", SHELL_IMAGE, "--measure-image", PYTHON_IMAGE, "--cache-dir", "volume:far/none")
    assert "does not exist: create it" in missing
    assert eventually(lambda: not engine.containers())
    assert not cache.exists()


def test_a_helper_that_is_killed_is_a_failed_scan_and_the_next_one_is_a_new_helper(engine, remote, volume):
    _, where = volume
    (where / "llama" / "f").write_bytes(b"x" * 10)
    address = find_engine(None)
    with CacheDirectories(
        [where / "llama"], create=False, lock=False,
        scanner=lambda deadline_s: VolumeScanner(address, PYTHON_IMAGE, {"far": str(where)}, deadline_s),
    ) as site:  # fmt: skip
        assert site.begin()["growth"]["bytes_present"] == 10
        (helper,) = json.loads(engine.podman("ps", "--format", "json"))
        os.kill(int(helper["Pid"]), signal.SIGKILL)
        with pytest.raises(ScanError) as caught:
            site.scanner.request("scan", 60.0)
        assert not isinstance(caught.value, ScanTimeout)
        site.restart_scanner()
        assert site.begin()["growth"]["bytes_present"] == 10


def test_a_flow_that_is_killed_leaves_no_helper_behind(engine, remote, volume, tmp_path):
    script = "echo up; sleep 7777; true"
    argv = exec_argv(None, "--cache-dir", "volume:far/llama", *ASKED, "--grace", "0s", command=["sh", "-c", script])
    with running(argv) as process:
        assert process.stdout.readline() == "up\n"
        assert len(engine.containers()) == 2
        process.kill()
    assert eventually(lambda: not engine.containers())
