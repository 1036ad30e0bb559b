"""`cachewatch fleet` at work: its table, its exit status, Ctrl-C and SIGTERM, with a server and without one."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.orchestration.test_fleet import FAILS, GROWS, POLICY, job, new_tag, until, write_jobs
from tests.prefect_database import fresh_home
from tests.prefect_server import Server
from tests.support import assert_none_left, tagged

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]

FLEET = [sys.executable, "-m", "prefect_cachewatch.cli.main", "fleet"]


def plain(env: dict[str, str], **more: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in ("NO_COLOR", "TERM", "COLUMNS")} | more


def run(server: Server, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FLEET, *map(str, arguments)], env=plain(server.env, **env), capture_output=True, text=True, timeout=300
    )


def test_a_whole_fleet_is_0_and_one_that_failed_in_part_is_1(server: Server, tmp_path: Path) -> None:
    tag = new_tag()
    path = write_jobs(tmp_path, tag, [job("good", tag, tmp_path), job("bad", tag, tmp_path, FAILS)])
    done = run(server, path)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert re.match(r"job +state +cause", lines[0])
    assert re.match(r"bad +GeneratorFailed +\S", lines[1])
    assert [line.split(":")[0] for line in lines[2:-1]] == ["  next", "  run"]
    assert re.match(r"good +Completed +146 KiB ", lines[-1])
    said = done.stderr.splitlines()
    assert sum(line.startswith("cachewatch: good: Completed, 146 KiB") for line in said) == 1
    assert said[-1].startswith(f"Fleet '{tag}': 1 of 2 caches are there; 1 failed. First: bad is GeneratorFailed (")
    assert "\x1b" not in done.stdout + done.stderr
    path = write_jobs(tmp_path, tag, [job("good", tag, tmp_path)])
    done = run(server, path, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    body = json.loads(run(server, path, "--quiet", "--json").stdout)
    assert (body["state"], [(row["name"], row["kind"]) for row in body["jobs"]]) == ("Completed", [("good", "done")])


def test_check_looks_at_limits_and_makes_none(server: Server, tmp_path: Path) -> None:
    tag = new_tag()
    path = write_jobs(tmp_path, tag, [job("a", tag, tmp_path, storage={"name": tag})])
    done = run(server, path, "--check")
    assert done.returncode == 125
    assert done.stderr.startswith(
        f"cachewatch: there is no concurrency limit for the storage {tag} of the job 'a': create it"
    )
    creates = {**POLICY, "missing_limit": "create:2"}
    path = write_jobs(tmp_path, tag, [job("a", tag, tmp_path, storage={"name": tag})], policy=creates)
    done = run(server, path, "--check")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0, f"Storage {tag}: its concurrency limit would be made with 2 slots",
    )  # fmt: skip
    assert tag not in [limit["name"] for limit in server.request("POST", "/v2/concurrency_limits/filter")]


# Ended by SIGTERM, as Prefect has it, which a shell says as 143.
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_signal_ends_the_fleet_and_its_generators(
    server: Server, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    tag = new_tag()
    path = write_jobs(tmp_path, tag, [job(f"m{n}", tag, tmp_path, layers=6000) for n in range(3)])
    process = subprocess.Popen([*FLEET, path], env=plain(server.env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        until(lambda: len(list(tmp_path.glob("m*/layer3.bin"))) == 2)
        process.send_signal(number)
        said = process.communicate(timeout=120)[0].decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == status, said
    assert "Traceback" not in said
    assert_none_left(tag)
    runs = server.request("POST", "/flow_runs/filter", flow_runs={"tags": {"all_": [f"cachewatch-fleet:{tag}"]}})
    assert sorted(found["state_type"] for found in runs if found["name"] != tag) == ["CANCELLED", "CANCELLED"]


def test_a_terminal_has_a_table_of_80_columns_and_no_colour_when_told(server: Server, tmp_path: Path) -> None:
    tag = new_tag()
    path = write_jobs(tmp_path, tag, [job("good", tag, tmp_path, GROWS, 40)])
    ours, theirs = pty.openpty()
    env = plain(server.env, TERM="xterm-256color", NO_COLOR="1", COLUMNS="80", LINES="24")
    process = subprocess.Popen([*FLEET, path], env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, deadline_s = b"", time.monotonic() + 300
    while time.monotonic() < deadline_s:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            shown += os.read(ours, 65536)
        except OSError:
            break
    assert process.wait(60) == 0, shown
    os.close(ours)
    text = shown.decode()
    assert re.search(r"good +Running", text) and re.search(r"good +Completed", text)
    assert not re.search(r"\x1b\[[0-9;]*m", text)
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    table = [line for line in re.split(r"[\r\n]+", frames) if line.startswith(("good ", f"{tag}  "))]
    assert len(table) > 3 and max(map(len, table)) < 80


def test_without_a_server_a_temporary_one_serves_all_jobs(tmp_path: Path, state_directory: Path) -> None:
    tag = new_tag()
    path = write_jobs(tmp_path, tag, [job(f"m{n}", tag, tmp_path) for n in range(2)])
    env: dict[str, Any] = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    env |= {"PREFECT_HOME": str(fresh_home(tmp_path / "home")), "CACHEWATCH_STATE": str(state_directory)}
    done = subprocess.run([*FLEET, path], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "starting a temporary Prefect server" in done.stderr
    assert f"Fleet '{tag}': 2 of 2 caches are there." in done.stderr
    assert not tagged(tag)
