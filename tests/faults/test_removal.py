"""Nothing that was there before, or is somebody else's, is ever removed by `on_retry: clean`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.harness import Sandbox
from tests.prefect_server import Server
from tests.support import unavailable

pytestmark = pytest.mark.timeout(400)

# In the generator: what the first attempt does is the case's; the second one says that it was made, and what it found.
BEGIN = """
import ctypes, os, shutil, signal, subprocess, sys, time
root = os.path.dirname(sys.argv[1])
cache = sys.argv[1]
if os.path.exists(root + "/out/first"):
    open(root + "/out/second", "w").write(repr(sorted(os.listdir(cache))))
    sys.exit(5)
open(root + "/out/first", "w").close()
"""
WRITE = "for n in range(3): open(f'{cache}/new{n}.bin', 'wb').write(b'x' * 50000)\ntime.sleep(.5)\n"


@pytest.fixture
def prefect_env(server: Server) -> dict[str, str]:
    return {name: value for name, value in server.env.items() if name.startswith("PREFECT") and name != "PREFECT_HOME"}


class Run:
    """`cachewatch generate` on a generator of this sandbox."""

    def __init__(self, box: Sandbox, env: dict[str, str]) -> None:
        self.box = box
        self.env = box.env(PREFECT_HOME=str(box.root / "home/prefect"), PYTHONPATH=os.pathsep.join(sys.path[:1]), **env)
        self.log = box.root / "out/log.txt"

    def start(self, code: str, *options: str) -> subprocess.Popen[bytes]:
        argv = self.box.cachewatch(
            "generate", "--cache-dir", str(self.box.cache), "--stall-after", "20s", "--poll", "200ms"
        )
        argv += ["--grace", "500ms", "--name", "removal", "--report", str(self.box.report_path), *options, "--"]
        with self.log.open("ab") as log:
            return self.box.popen([*argv, sys.executable, "-I", "-c", code, str(self.box.cache)], stdout=log, stderr=log, env=self.env)  # fmt: skip

    def __call__(self, code: str, *options: str) -> int:
        return self.start(code, *options).wait(200)

    def clean(self, first: str) -> int:
        """Two attempts, of which the first does this and fails."""
        return self(BEGIN + first + "\nsys.exit(3)\n", *CLEANING)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def second(self) -> str | None:
        path = self.box.root / "out/second"
        return path.read_text() if path.exists() else None


@pytest.fixture
def run(own_sandbox: Sandbox, prefect_env: dict[str, str]) -> Run:
    if os.geteuid() != 0:
        unavailable("needs root to mount")
    own_sandbox.mounts += ["--bind", str(own_sandbox.root / "home")]  # a mount namespace of its own
    return Run(own_sandbox, prefect_env)


CLEANING = ("--attempts", "2", "--backoff", "0s", "--on-retry", "clean")
# The cache lies one directory deeper.
BELOW = BEGIN.replace("root = os.path.dirname(sys.argv[1])", "root = os.path.dirname(os.path.dirname(sys.argv[1]))")


def cleaning(box: Sandbox, first: str) -> list[str]:
    argv = box.cachewatch("generate", "--cache-dir", str(box.cache), "--name", "removal", "--poll", "200ms")
    return [*argv, *CLEANING, "--", sys.executable, "-I", "-c", first, str(box.cache)]


def found(directory: Path) -> list[str]:
    names = [str(p.relative_to(directory)) for p in directory.rglob("*") if not p.is_dir() or p.is_symlink()]
    return sorted(name for name in names if not name.startswith(".cachewatch"))


def test_clean_on_a_layered_file_system(run: Run) -> None:
    box = run.box
    for name in ("lower", "upper"):
        box.mounts += ["--tmpfs", str(box.mkdir(name)), "size=8m,mode=777"]
    box.cache_name = "merged/cache"
    box.mkdir("merged")
    # The layers are mounted by the command's own parent in the namespace, since only there the small disks are.
    script = (
        'set -e; R="$1"; shift; mkdir -p "$R/lower/cache" "$R/upper/u" "$R/upper/w"; for i in 1 2 3; do echo old > "$R/lower/cache/old$i"; '
        'done; mount -t overlay -o "lowerdir=$R/lower,upperdir=$R/upper/u,workdir=$R/upper/w" none "$R/merged"; '
        'sleep 0.1; S=0; "$@" || S=$?; ls "$R/merged/cache" > "$R/out/after"; exit $S'
    )
    first = (
        BELOW
        + WRITE
        + "open(cache + '/old1', 'a').write('more'); os.rename(cache + '/old2', cache + '/renamed')\nsys.exit(3)\n"
    )
    argv = cleaning(box, first)
    with run.log.open("wb") as log:
        process = box.popen(["sh", "-c", script, "sh", str(box.root), *argv], stdout=log, stderr=log, env=run.env)
    assert process.wait(200) == 5, run.said
    assert (box.root / "out/after").read_text().split() == ["old1", "old3", "renamed"]


def test_clean_is_refused_where_inode_numbers_do_not_last(run: Run) -> None:
    box = run.box
    if not os.path.exists("/dev/fuse"):
        unavailable("needs /dev/fuse")
    mount, pid_file = box.mkdir("mount"), box.root / "out/server.pid"
    box.mounts += ["--fuse", str(mount), str(pid_file)]
    box.cache_name = "mount/cache"
    script = (
        'C="$1"; shift; mkdir "$C"; for i in $(seq 50); do echo old > "$C/old$i"; done; S=0; "$@" || S=$?; '
        'ls "$C" | grep -c old > "$C.count" 2>/dev/null; ls "$C" | grep -c old > "$OUT"; exit $S'
    )
    first = BELOW + WRITE + f"os.kill(int(open({str(pid_file)!r}).read()), signal.SIGHUP)\nsys.exit(3)\n"
    argv = cleaning(box, first)
    try:
        with run.log.open("wb") as log:
            env = run.env | {"OUT": str(box.root / "out/count")}
            process = box.popen(["sh", "-c", script, "sh", str(box.cache), *argv], stdout=log, stderr=log, env=env)
        assert process.wait(200) == 3, run.said
    finally:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert "inode numbers do not last on this file system" in run.said
    assert "nothing was removed" in run.said
    assert (box.root / "out/count").read_text().strip() == "50"


# As root and as somebody else
