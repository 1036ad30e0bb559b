"""What the janitor is told, and does not believe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_cachewatch.supervise.janitor import clear_leftovers
from prefect_cachewatch.supervise.proc import boot_id, read_stat
from prefect_cachewatch.supervise.run_files import create_run_file, machine_id, pid_namespace
from tests.faults.harness import NOBODY, Sandbox

RUN_TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def runs(own_sandbox: Sandbox) -> Path:
    path = own_sandbox.mkdir("runs")
    path.chmod(0o700)
    return path


@pytest.fixture
def victim(own_sandbox: Sandbox) -> subprocess.Popen[bytes]:
    """A process that must not be killed."""
    return own_sandbox.popen(["sleep", "60"])


def header(**changes: object) -> dict[str, object]:
    return {
        "schema": 1, "run_token": RUN_TOKEN, "boot_id": boot_id(), "machine": machine_id(), "pid_namespace": pid_namespace(),
        "flow": [os.getpid(), 1], **changes,
    }  # fmt: skip


def put(runs: Path, head: object, tree: list[object], name: str = f"{RUN_TOKEN}.run") -> Path:
    path = runs / name
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *tree]))
    path.chmod(0o600)
    return path


def identity(process: subprocess.Popen[bytes]) -> list[int]:
    stat = read_stat(process.pid)
    assert stat is not None
    return [process.pid, stat.start_ticks]


def test_a_recorded_process_of_a_dead_run_is_killed(runs: Path, own_sandbox: Sandbox) -> None:
    """The control: without it none of the refusals below would show anything."""
    leftover = own_sandbox.popen(["sleep", "60"])
    path = put(runs, header(), [identity(leftover)])
    report = clear_leftovers(str(runs))
    assert [one.pid for one in report.leftovers] == [leftover.pid]
    assert leftover.wait(5) == -9
    assert not path.exists()


def _link(runs: Path, path: Path) -> None:
    path.rename(runs.parent / "elsewhere.run")
    path.symlink_to(runs.parent / "elsewhere.run")


def _own(runs: Path, path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, NOBODY, NOBODY)


BAD: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "symbolic link": (_link, "it is a symbolic link"),
    "other owner": (_own, "it belongs to uid 65534"),
    "access for others": (lambda runs, path: path.chmod(0o644), "others have access to it (mode 0644)"),
    "hard link": (lambda runs, path: os.link(path, runs.parent / "second"), "it has another hard link"),
    "FIFO": (lambda runs, path: (path.unlink(), os.mkfifo(path, 0o600)), "it is not a regular file"),
    "directory": (lambda runs, path: (path.unlink(), path.mkdir()), "it is not a regular file"),
    "too large": (lambda runs, path: os.truncate(path, 2 << 20), "it is too large for a state file"),
    "empty": (lambda runs, path: os.truncate(path, 0), "its first line is not the header of a state file"),
    "not JSON": (lambda runs, path: path.write_bytes(b"\xff{"), "its first line is not the header"),
    "nested 100,000 deep": (lambda runs, path: path.write_bytes(b"[" * 100_000), "its first line is not the header"),
    "other schema": (lambda runs, path: put(runs, header(schema=2), []), "its schema is 2"),
    "other name": (lambda runs, path: path.rename(runs / f"{'f' * 32}.run"), "its name is not that of the run"),
    "empty run_token": (lambda runs, path: put(runs, header(run_token=""), []), "its name is not that of the run"),
    "other machine": (lambda runs, path: put(runs, header(machine="m"), []), "a run on another machine"),
    "other container": (lambda runs, path: put(runs, header(pid_namespace="pid:[1]"), []), "another pid namespace"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_state_file_that_cannot_be_trusted_is_named_and_left_alone(
    what: str, runs: Path, victim: subprocess.Popen[bytes]
) -> None:
    path = put(runs, header(), [identity(victim)])
    spoil, reason = BAD[what]
    spoil(runs, path)
    names = sorted(os.listdir(runs))
    report = clear_leftovers(str(runs))
    assert [reason in refusal.reason for refusal in report.refusals] == [True], report.refusals
    assert report.leftovers == ()
    assert sorted(os.listdir(runs)) == names
    assert victim.poll() is None


@pytest.mark.parametrize("what", ["earlier boot", "pid used again"])
def test_a_stale_state_file_is_removed_and_nobody_signalled(
    what: str, runs: Path, victim: subprocess.Popen[bytes]
) -> None:
    pid, ticks = identity(victim)
    if what == "earlier boot":
        path = put(runs, header(boot_id="00000000-0000-0000-0000-000000000000"), [[pid, ticks]])
    else:
        path = put(runs, header(), [[pid, ticks - 1], [pid, ticks + 1]])
    report = clear_leftovers(str(runs))
    assert (report.removed, report.leftovers, report.refusals) == (1, (), ())
    assert not path.exists()
    assert victim.poll() is None


def test_malformed_process_lines_are_left_out(runs: Path, victim: subprocess.Popen[bytes]) -> None:
    pid, ticks = identity(victim)
    lines: list[object] = [
        [1, 1],
        [-1, ticks],
        [0, 0],
        [pid],
        [str(pid), ticks],
        [pid, True],
        {"pid": pid},
        None,
        "x",
        [2**40, 1],
    ]
    path = put(runs, header(), lines)
    path.write_bytes(path.read_bytes() + f"[{pid}, {ticks}"[:-2].encode())
    report = clear_leftovers(str(runs))
    assert (report.leftovers, report.removed) == ((), 1)
    assert victim.poll() is None


def test_a_running_run_is_left_alone(runs: Path, victim: subprocess.Popen[bytes]) -> None:
    fd, path = create_run_file(RUN_TOKEN, str(runs))
    with open(path, "ab") as file:
        file.write(json.dumps(identity(victim)).encode() + b"\n")
    try:
        report = clear_leftovers(str(runs))
        assert (report.running, report.leftovers) == (1, ())
        assert os.path.exists(path)
        assert victim.poll() is None
    finally:
        os.close(fd)


def test_a_directory_that_others_can_write_to_is_refused(own_sandbox: Sandbox, runs: Path) -> None:
    put(runs, header(), [])
    runs.chmod(0o777)
    assert [r.reason for r in clear_leftovers(str(runs)).refusals] == ["others may write into it"]
    runs.chmod(0o700)
    link = own_sandbox.root / "link"
    link.symlink_to(runs)
    assert [r.reason for r in clear_leftovers(str(link)).refusals] == ["it is a symbolic link"]
    assert len(os.listdir(runs)) == 1


def test_the_janitor_never_kills_itself_or_its_ancestors(runs: Path) -> None:
    """It may run inside the tree of the run whose leftovers it clears."""
    code = (
        "import sys; from prefect_cachewatch.supervise.janitor import clear_leftovers;"
        "print(len(clear_leftovers(sys.argv[1]).leftovers))"
    )
    put(runs, header(), [])
    env = os.environ | {"CACHEWATCH_ID": RUN_TOKEN}
    done = subprocess.run([sys.executable, "-c", code, str(runs)], env=env, capture_output=True, check=True, timeout=30)
    assert done.stdout == b"0\n"
