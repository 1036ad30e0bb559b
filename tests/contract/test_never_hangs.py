"""What never answers holds up nothing: file systems, readers, pipes, an API; each run is decided and ends, through the command."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import LONG_S, QUICK, WELL, Place, Ran, eventually
from tests.contract.terminal import full_pipe, stopped_terminal
from tests.support import unavailable

FUSE = Path(__file__).with_name("fuse_daemon.py")
SHORT = (*QUICK, "--stall-after", "2s", "--first-write-within", "60s", "--no-bundle")
WRITES = "n = 0\nwhile True:\n    (PLACE / f'mount/cache/{n}').write_bytes(os.urandom(9000)); n += 1; time.sleep(0.1)\n"
HANGS = "(PLACE / 'cache/a').write_bytes(os.urandom(9000))\ntime.sleep(600)\n"


class Mount:
    """A file system in the mount namespace of the place's commands that hangs on request, with a directory `cache`."""

    def __init__(self, place: Place) -> None:
        if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
            unavailable("needs root and /dev/fuse")
        self.path, self.pid_file = place.root / "mount", place.root / "fuse.pid"
        self.path.mkdir()
        place.cache = self.path / "cache"
        self.script = (
            f"{sys.executable} {FUSE} {self.path} memory {self.pid_file}; mkdir {self.path}/cache {self.path}/home"
        )
        place.mounts(self.script)

    def signal(self, number: int) -> None:
        assert eventually(self.pid_file.exists)
        os.kill(int(self.pid_file.read_text()), number)

    def hang(self) -> None:
        self.signal(signal.SIGUSR1)
        assert eventually(Path(f"{self.pid_file}.waits").exists), "nobody asks it for anything"

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(int(self.pid_file.read_text()), signal.SIGKILL)


@pytest.fixture
def mount(place: Place) -> Iterator[Mount]:
    made = Mount(place)
    yield made
    made.end()


def hung_in_mid_run(place: Place, mount: Mount, *options: str, act: Callable[[Any], object] = bool, **how: Any) -> Ran:
    """Run a writing generator; once it has written, the file system hangs, and then something is done."""
    report = place.root / "report.json"
    argv = ["exec", "--cache-dir", place.cache, *options, "--report", report, "--", *place.program(WRITES)]
    with place.start(*argv, stdout=subprocess.DEVNULL, **{"stderr": subprocess.DEVNULL, **how}) as process:
        try:
            inside = Path(f"/proc/{process.pid}/root{place.cache}")
            assert eventually(lambda: inside.is_dir() and len(os.listdir(inside)) >= 3)
            mount.hang()
            act(process)
            process.wait(LONG_S)
        finally:
            process.kill()
            mount.end()
    place.assert_nobody()
    return Ran(process.returncode, "", "", read(report))


def read(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.read_text())
    return found


Unread = Callable[[], AbstractContextManager[int]]
# What lies on the file system beside the cache, and where standard error goes.
BESIDE: dict[str, tuple[tuple[str, ...], Unread | None]] = {
    "the cache": ((), None),
    "cache, home and state": (("HOME", "CACHEWATCH_STATE", "XDG_STATE_HOME", "TMPDIR"), None),
    "cache, home and state, and a full pipe": (("HOME", "CACHEWATCH_STATE", "XDG_STATE_HOME"), full_pipe),
    "cache, home and state, and a stopped terminal": (("HOME", "CACHEWATCH_STATE", "XDG_STATE_HOME"), stopped_terminal),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_a_file_system_that_hangs_is_a_stall_of_its_own(place: Place, mount: Mount, beside: str) -> None:
    names, unread = BESIDE[beside]
    place.env |= {name: str(mount.path / "home") for name in names}
    with unread() if unread else contextlib.nullcontext(subprocess.DEVNULL) as stderr:
        ran = hung_in_mid_run(place, mount, *SHORT, stderr=stderr)
    assert (ran.status, ran.report["outcome"]) == (124, "stalled")
    assert (ran.report["stall"]["kind"], ran.report["listing"]) == ("filesystem_unresponsive", None)
    assert all(one["state"] == "D" for one in ran.report["stop"]["survivors"])


def test_a_lock_of_the_caller_is_free_when_the_command_has_ended(place: Place, mount: Mount) -> None:
    freed: list[bool] = []

    def is_free(process: Any) -> None:
        assert process.wait(LONG_S) == 124
        with lock.open() as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            freed.append(True)

    lock = place.root / "lock"
    place.mounts(f"{mount.script}; exec 9>{lock}; flock 9")
    hung_in_mid_run(place, mount, *QUICK, "--stall-after", "2s", "--first-write-within", "60s", act=is_free)
    assert freed == [True]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_run_whose_file_system_hangs(place: Place, mount: Mount, name: str) -> None:
    number = getattr(signal, name)
    ran = hung_in_mid_run(place, mount, *WELL, act=lambda process: process.send_signal(number))
    assert (ran.status, ran.report["outcome"]) == (128 + number, "cancelled")


def test_a_file_system_that_answers_again_is_forgiven(place: Place, mount: Mount) -> None:
    ends = "for n in range(30):\n    (PLACE / f'mount/cache/{n}').write_bytes(os.urandom(9000)); time.sleep(0.1)\n"
    report = place.root / "report.json"
    command = ["exec", "--cache-dir", place.cache, *WELL, "--report", report, "--", *place.program(ends)]
    with place.started(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        inside = Path(f"/proc/{process.pid}/root{place.cache}")
        assert eventually(lambda: inside.is_dir() and len(os.listdir(inside)) >= 3)
        mount.hang()
        mount.signal(signal.SIGUSR2)
        assert process.wait(LONG_S) == 0
        mount.end()
    assert (read(report)["outcome"], read(report)["growth"]["files_present"]) == ("completed", 30)


# What lies on a file system that hangs before the start -> variable or option, exit status, whether the command was run.
AT_THE_START = {
    "the cache": (None, 125, False),
    "the state directory": ("CACHEWATCH_STATE", 3, True),
    "the home": ("HOME", 3, True),
    "the temporary directory": ("TMPDIR", 3, True),
}


@pytest.mark.parametrize("what", AT_THE_START)
def test_a_file_system_that_hangs_before_the_start(place: Place, mount: Mount, what: str) -> None:
    variable, status, runs = AT_THE_START[what]
    place.mounts(f"{mount.script}; kill -USR1 $(cat {mount.pid_file}); cd /")
    if variable is not None:
        place.env[variable] = str(mount.path / "home")
        place.cache = place.root / "cache"
    ran = place.exec(*WELL, "--no-bundle", command=["sh", "-c", f"touch {place.root}/ran; exit 3"])
    mount.end()
    assert ran.status == status, ran.stderr
    assert (place.root / "ran").exists() == runs
    assert "Traceback" not in ran.stderr
    if not runs:
        assert ran.stderr.count("\n") == 1
        assert str(place.cache) in ran.stderr


# A generator that waits for ever on something that whoever looks at it must not wait for.
WAITS = {
    "on a FIFO in the cache": "os.mkfifo(PLACE / 'cache/fifo'); os.symlink('fifo', PLACE / 'cache/link'); open(PLACE / 'cache/fifo')",
    "stopped": "os.kill(os.getpid(), 19)",
    "on a peer that never answers": "import socket; a, b = socket.socketpair(); a.recv(1)",
    "on its standard input": "sys.stdin.read()",
}


@pytest.mark.parametrize("how", WAITS)
def test_a_generator_that_waits_for_ever_is_a_stall(place: Place, how: str) -> None:
    place.cache.mkdir()
    read_end, write_end = os.pipe()
    place.stdin = read_end
    ran = place.exec(*SHORT, command=place.program(HANGS.replace("time.sleep(600)", WAITS[how])))
    os.close(read_end)
    os.close(write_end)
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth"), ran.stderr
    assert ran.report["listing"]["total_files"] == 1
    place.assert_nobody()


def test_an_api_that_takes_connections_and_never_answers_is_one_sentence(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place.env["PREFECT_API_URL"] = f"http://127.0.0.1:{mute.getsockname()[1]}/api"
        ran = place.run(
            "generate", "--cache-dir", place.cache, "--api-patience", "3s", "--", "touch", place.root / "ran"
        )
    assert (ran.status, ran.stderr.count("\n")) == (125, 1), ran.stderr
    assert place.env["PREFECT_API_URL"] in ran.stderr
    assert not (place.root / "ran").exists()
