"""Containers without an engine: what people write, the request it becomes, and engines that do not answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_cachewatch.config import CacheJob, ContainerMount, ContainerSpec
from prefect_cachewatch.containers import stopping
from prefect_cachewatch.containers.creation import container_request
from prefect_cachewatch.containers.engine import engine_candidates, failures, find_engine, ping, reason_of
from prefect_cachewatch.containers.janitor import clear_containers, clear_run
from prefect_cachewatch.containers.preflight import ContainerPlan
from prefect_cachewatch.containers.stopping import RunningContainer, start_ticks_of
from prefect_cachewatch.errors import CacheDirectoryError, InputError
from prefect_cachewatch.supervise.proc import read_stat
from support import CACHEWATCH, run


def why(**spec: object) -> str:
    with pytest.raises(ValidationError) as caught:
        ContainerSpec(**({"image": "i"} | spec))
    return caught.value.errors()[0]["msg"].removeprefix("Value error, ")


def test_what_does_not_fit_together_is_refused_in_one_sentence():
    assert why(image="-v") == "'-v' is not the name of an image: write it like registry/name:tag"
    assert why(mounts=["data"]) == "'data' is not SOURCE:TARGET or SOURCE:TARGET:ro"
    assert why(mounts=["/a:/b:rx"]) == "'/a:/b:rx' is not SOURCE:TARGET or SOURCE:TARGET:ro"
    assert why(mounts=["../a:/b"]) == "'../a' is neither an absolute path nor the name of a volume"
    assert why(mounts=["a:/"]) == "mount target '/' is not an absolute path below /"
    assert why(mounts=["a:/x", "/b:/x/"]) == "two mounts have the target /x: leave one out"
    assert why(devices=["/etc/passwd"]).startswith("device '/etc/passwd' is not a path below /dev")
    assert why(gpus="some") == "'some' is not all, a number, or device=0,1"
    assert why(ulimits={"memlock": "a lot"}).startswith("memlock=a lot is not a limit")
    assert why(workdir="here") == "'here' is not an absolute path in the container"


def test_privileged_and_the_hosts_pid_namespace_are_not_offered():
    assert why(privileged=True) == "Extra inputs are not permitted"
    assert why(pid="host") == "Extra inputs are not permitted"


def test_a_job_needs_a_command_or_a_container_and_a_volume_needs_a_container():
    with pytest.raises(ValidationError, match="the job has no command"):
        CacheJob(name="x", cache_dirs=["/c"])
    with pytest.raises(ValidationError, match="the job has no container"):
        CacheJob(name="x", command=["true"], cache_dirs=["volume:v/c"])
    with pytest.raises(ValidationError, match=r"set container\.workdir"):
        CacheJob(name="x", cache_dirs=["/c"], cwd="/tmp", container={"image": "i"})
    assert CacheJob(name="x", cache_dirs=["volume:v/c"], container={"image": "i"}).command == []


def test_the_request_says_all_that_was_asked_for_and_nothing_else():
    spec = ContainerSpec(
        image="ghcr.io/o/s:1", entrypoint=["/e"], mounts=["/w:/weights:ro", "vol:/cache"],
        devices=["/dev/tenstorrent", {"host": "/dev/by-path/0000:01", "container": "/dev/a:b", "permissions": "r"}],
        gpus="device=0,1", shm_size_bytes=1 << 30, ulimits={"memlock": -1, "nofile": "10:20"}, user="1000:1000",
        network="none", workdir="/w", memory_bytes=1 << 33, init=True,
    )  # fmt: skip
    request = container_request(
        spec, ["gen", "-v"], {"A": "1"}, {"cachewatch.run": "c"}, [ContainerMount(source="/m", target="/m")]
    )
    host = request.pop("HostConfig")
    assert {name: value for name, value in request.items() if value} == {
        "Image": "ghcr.io/o/s:1",
        "Entrypoint": ["/e"],
        "Cmd": ["gen", "-v"],
        "Env": ["A=1"],
        "Labels": {"cachewatch.run": "c"},
        "User": "1000:1000",
        "WorkingDir": "/w",
        "AttachStdout": True,
        "AttachStderr": True,
    }
    (gpus,) = host.pop("DeviceRequests")
    assert {name: value for name, value in gpus.items() if value} == {
        "Driver": "nvidia", "Capabilities": [["gpu"]], "DeviceIDs": ["0", "1"]
    }  # fmt: skip
    assert host == {
        "Mounts": [
            {"Type": "bind", "Source": "/w", "Target": "/weights", "ReadOnly": True},
            {"Type": "volume", "Source": "vol", "Target": "/cache", "ReadOnly": False},
            {"Type": "bind", "Source": "/m", "Target": "/m", "ReadOnly": False},
        ],
        "Devices": [
            {"PathOnHost": "/dev/tenstorrent", "PathInContainer": "/dev/tenstorrent", "CgroupPermissions": "rwm"},
            {"PathOnHost": "/dev/by-path/0000:01", "PathInContainer": "/dev/a:b", "CgroupPermissions": "r"},
        ],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "16m"}},
        "ShmSize": 1 << 30,
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}, {"Name": "nofile", "Soft": 10, "Hard": 20}],
        "NetworkMode": "none",
        "Memory": 1 << 33,
        "MemorySwap": 1 << 33,
        "Init": True,
    }
    plain = container_request(ContainerSpec(image="i"), [], {}, {})
    assert not plain["Cmd"] and not plain["Entrypoint"] and "DeviceRequests" not in plain["HostConfig"]


def test_a_port_is_published_on_the_loopback_address_unless_told_otherwise():
    request = container_request(ContainerSpec(image="i", ports=["8000:80", "0.0.0.0:1:2", "[::1]:3:4"]), [], {}, {})
    assert request["HostConfig"]["PortBindings"] == {
        "80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}],
        "2/tcp": [{"HostIp": "0.0.0.0", "HostPort": "1"}],
        "4/tcp": [{"HostIp": "::1", "HostPort": "3"}],
    }
    assert request["ExposedPorts"] == {"80/tcp": {}, "2/tcp": {}, "4/tcp": {}}
    assert why(ports=["80"]) == "'80' is not [ADDRESS:]HOST:CONTAINER, as in 8000:8000"
    assert why(ports=["0:80"]) == "'0:80' is not [ADDRESS:]HOST:CONTAINER, as in 8000:8000"
    assert why(ports=["1:2"], network="host").startswith("ports are published on a network of the container's own")


def plan(*mounts: str, volumes: dict[str, str] | None = None) -> ContainerPlan:
    return ContainerPlan("job", ContainerSpec(image="i", mounts=list(mounts)), "unix:///e", "sha256:0", volumes or {})


def located(plan: ContainerPlan, *dirs: str) -> list[str]:
    job = CacheJob(name="x", cache_dirs=list(dirs), container=plan.spec)
    return [str(path) for path in plan.locate(job).cache_dirs]


def test_a_cache_directory_is_a_path_of_the_host_or_lies_in_a_volume_that_is_mounted():
    volumes = {"v": "/var/lib/volumes/v/_data"}
    assert located(plan("v:/cache", volumes=volumes), "volume:v/a/b", "/mnt/x") == [
        "/var/lib/volumes/v/_data/a/b",
        "/mnt/x",
    ]
    with pytest.raises(
        CacheDirectoryError, match="in a volume that is not mounted into the container: add --volume w:/PATH"
    ):
        located(plan("v:/cache", volumes=volumes), "volume:w")
    with pytest.raises(CacheDirectoryError, match="in a volume that is mounted read-only"):
        located(plan("v:/cache:ro", volumes=volumes), "volume:v")
    with pytest.raises(CacheDirectoryError, match=r"has \.\. in it"):
        located(plan("v:/cache", volumes=volumes), "volume:v/a/../../x")
    with pytest.raises(CacheDirectoryError, match=r"is mounted read-only \(at /in\)"):
        located(plan("/mnt:/in:ro"), "/mnt/cache")


def test_a_cache_directory_that_no_mount_covers_is_mounted_at_its_own_path():
    volumes = {"v": "/var/lib/volumes/v/_data"}
    mounts = plan("v:/cache", "/mnt/a:/a", volumes=volumes).mounts_for(
        ["/var/lib/volumes/v/_data/x", "/mnt/a/b", "/mnt/ab", "/mnt/ab"]
    )
    assert [(mount.source, mount.target) for mount in mounts] == [("/mnt/ab", "/mnt/ab")]


@pytest.mark.parametrize(
    ("environ", "uid", "urls"),
    [
        ({"DOCKER_HOST": "unix:///d", "CONTAINER_HOST": "unix:///c"}, 0, ["unix:///d"]),
        ({"CONTAINER_HOST": "unix:///c"}, 0, ["unix:///c"]),
        ({}, 0, ["unix:///var/run/docker.sock", "unix:///run/podman/podman.sock"]),
        (
            {"XDG_RUNTIME_DIR": "/run/user/7"},
            7,
            [
                "unix:///var/run/docker.sock",
                "unix:///run/user/7/docker.sock",
                "unix:///run/user/7/podman/podman.sock",
                "unix:///run/podman/podman.sock",
            ],
        ),
    ],
)
def test_engines_are_looked_for_where_they_usually_are_and_what_is_named_is_the_only_one(
    monkeypatch, environ, uid, urls
):
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert engine_candidates() == urls


@pytest.mark.parametrize("host", ["ssh://me@host", "tcp://h:2375"])
def test_an_engine_of_another_host_is_refused(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(InputError, match="name an engine of this host by its socket"):
        find_engine()


def test_the_command_refuses_what_is_missing_before_it_touches_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    cache = tmp_path / "cache"

    def refused(*options: str, command: tuple[str, ...] = ("true",)) -> str:
        ran = run([*CACHEWATCH, "exec", "--cache-dir", str(cache), *options, "--", *command])
        assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1), ran.stderr
        assert not cache.exists()
        return ran.stderr

    assert "no container engine answers" in refused("--image", "i")
    assert "--volume is for a container: name its image with --image" in refused("--volume", "a:/b")
    assert "--volume: 'a' is not SOURCE:TARGET" in refused("--image", "i", "--volume", "a")
    assert "--env UNSET_HERE is not set in this environment" in refused("--image", "i", "--env", "UNSET_HERE")


def test_a_job_with_a_container_says_what_to_install_where_the_sdk_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setitem(sys.modules, "docker.errors", None)
    with pytest.raises(InputError, match=r"pip install 'prefect-cachewatch\[docker\]'"):
        find_engine()


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of an engine that accepts and never answers."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{directory}/engine.sock")
        server.listen(16)
        yield f"unix://{directory}/engine.sock"


def test_an_engine_that_never_answers_costs_the_deadline_and_no_more(silent):
    with pytest.raises(failures()) as caught:
        ping(silent, 0.3)
    assert reason_of(caught.value) == "it does not answer"
    assert clear_containers(silent).leftovers == []


def test_an_engine_that_does_not_answer_does_not_say_that_nothing_is_left(tmp_path):
    assert not clear_run(f"unix://{tmp_path}/none.sock", "f" * 32)


class LateEngine:
    """Answers late once, and then kills what this user may not signal."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.late = process, True

    def inspect_container(self, container: str) -> dict[str, Any]:
        running = self.process.poll() is None
        return {"State": {"Running": running, "Pid": self.process.pid if running else 0, "ExitCode": 137}}

    def kill(self, container: str, which: int | str) -> None:
        if self.late:
            self.late = False
            raise TimeoutError
        self.process.kill()
        self.process.wait()


def test_an_engine_that_answers_late_once_is_asked_again_to_kill(monkeypatch):
    monkeypatch.setattr(stopping, "send_signal", lambda *_: False)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            found = read_stat(process.pid)
            assert found is not None
            container = RunningContainer(LateEngine(process), "f" * 64, "0" * 32, process.pid, found.start_ticks)
            stopped = container.stop(0.0)
        finally:
            process.kill()
    assert (stopped.gone, stopped.survivors, [who["pid"] for who in stopped.killed]) == (True, [], [process.pid])


def test_a_pid_of_somebody_else_is_not_believed():
    assert start_ticks_of(os.getpid(), "f" * 64, "0" * 32) is None
    assert start_ticks_of(0, "f" * 64, "0" * 32) is None
    assert RunningContainer(None, "f" * 64, "0" * 32, os.getpid(), 1).tree() == {}
