"""What cannot be run is one sentence, with nothing started; volumes and images that are there are used."""

from __future__ import annotations

import os

import pytest

from tests.containers.engine import SHELL_IMAGE, Engine
from tests.support import CACHEWATCH, exec_argv, run, run_exec, running

WRITES = "for i in 1 2 3; do dd if=/dev/zero of=/cache/$SUB/f$i bs=1M count=2 2>/dev/null; done"


@pytest.fixture
def volume(engine: Engine):
    engine.podman("volume", "create", "models")
    yield "models"
    engine.remove_volume("models")


def refusal(*options: object, command: tuple[str, ...] = ("true",)) -> str:
    ran = run([*CACHEWATCH, "exec", *map(str, options), "--", *command])
    assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1), ran.stderr
    return ran.last_line.removeprefix("cachewatch: ")


def test_what_is_not_there_is_named_and_nothing_is_made(engine, cache, tmp_path):
    asked = ("--image", SHELL_IMAGE, "--cache-dir", cache)
    assert refusal(*asked, "--volume", "no-such:/x") == (
        "volume no-such does not exist: create it with `docker volume create no-such` (podman volume create no-such)"
    )
    assert refusal(*asked, "--volume", f"{tmp_path}/none:/x") == (
        f"mount source {tmp_path}/none does not exist: create it, or name a volume"
    )
    assert refusal(*asked, "--device", "/dev/tenstorrent-none").startswith(
        "device /dev/tenstorrent-none does not exist on this host"
    )
    assert refusal(*asked, "--network", "no-such") == (
        "network no-such does not exist: create it with `docker network create no-such` (podman network create no-such)"
    )
    assert "podman's API does not act on gpus" in refusal(*asked, "--gpus", "all")
    assert refusal("--image", "localhost:1/none:1", "--cache-dir", cache).startswith(
        "image localhost:1/none:1 cannot be pulled: "
    )
    assert refusal("--image", SHELL_IMAGE, "--volume", f"{tmp_path}:/t:ro", "--cache-dir", cache).startswith(
        f"cache directory {cache} is mounted read-only (at /t)"
    )
    assert not cache.exists()
    assert engine.containers() == []
    assert "no-such" not in engine.podman("volume", "ls", "--quiet")


def test_growth_in_a_named_volume_is_measured_where_it_lies_on_this_host(engine, volume, tmp_path):
    where = engine.podman("volume", "inspect", volume, "--format", "{{.Mountpoint}}")
    os.mkdir(f"{where}/llama")
    ran = run_exec(
        None, "--image", SHELL_IMAGE, "--volume", f"{volume}:/cache", "--cache-dir", f"volume:{volume}/llama", "--env",
        "SUB=llama", command=["sh", "-c", WRITES], report_dir=tmp_path,
    )  # fmt: skip
    assert ran.status == 0, ran.stderr
    assert ran.report["growth"]["bytes_written"] == 6 << 20
    assert ran.report["cache_dirs"] == [f"{where}/llama"]


def test_a_volume_that_another_run_writes_into_is_busy(engine, volume, cache):
    asked = ("--image", SHELL_IMAGE, "--volume", f"{volume}:/cache", "--grace", "0s")
    first = exec_argv(
        None, "--cache-dir", f"volume:{volume}/a", *asked, command=["sh", "-c", "echo up; sleep 999; true"]
    )
    with running(first) as process:
        assert process.stdout.readline() == "up\n"
        assert refusal("--cache-dir", f"volume:{volume}/b", *asked).startswith(
            f"volume {volume} is in use by another run's container (cachewatch-a-"
        )


def test_an_image_of_another_name_is_found_without_a_tag(engine, cache):
    engine.podman("tag", SHELL_IMAGE, "localhost/cachewatch-test/untagged:latest")
    ran = run_exec(cache, "--image", "localhost/cachewatch-test/untagged", "--allow-empty", command=["true"])
    assert ran.status == 0, ran.stderr
