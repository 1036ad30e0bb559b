"""The store on several file systems: its promises hold there, or it is refused with one sentence before anything is begun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.harness import LONG_S, WELL, Place, assert_refused
from tests.contract.test_store_kills import REPOSITORY
from tests.support import unavailable

FUSE = Path(__file__).with_name("fuse_daemon.py")
# Each mounts a file system at $0/store.
PLACES = {
    "ext4": 'truncate -s 64M "$0/image"; mkfs.ext4 -q "$0/image"; mount -o loop "$0/image" "$0/store"',
    "tmpfs": 'mount -t tmpfs tmpfs "$0/store"',
    "overlayfs": 'mount -t tmpfs tmpfs "$0/layers"; mkdir "$0/layers/u" "$0/layers/w" "$0/lower"; '
    'mount -t overlay overlay -o "lowerdir=$0/lower,upperdir=$0/layers/u,workdir=$0/layers/w" "$0/store"',
    "FUSE whose inodes change": f'{sys.executable} {FUSE} "$0/store" links "$0/pid"; '
    '(while kill -HUP $(cat "$0/pid"); do sleep 0.2; done) > /dev/null 2>&1 &',
}
# What is mounted, and who serves it, ends with the command.
ALONE = ("unshare", "-m", "-p", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
JUDGE = """
import sys
from pathlib import Path
from tests.contract.test_store_kills import judge
print(judge(Path(sys.argv[1]), sys.argv[2], "SIGKILL", int(sys.argv[3])).total())
"""


def needs_mounts() -> None:
    if os.geteuid() != 0:
        unavailable("needs root to mount a file system")


def killed_there(tmp_path: Path, where: str, scenario: str, stride: int) -> None:
    needs_mounts()
    if "FUSE" in where and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        unavailable("there is no /dev/fuse")
    if where == "ext4" and shutil.which("mkfs.ext4") is None:
        unavailable("there is no mkfs.ext4")
    (tmp_path / "store").mkdir()
    (tmp_path / "layers").mkdir()
    script = f'{{ {PLACES[where]}\n}} || exit 77\nexec "$@"'
    command = [*ALONE, "sh", "-ec", script]
    done = subprocess.run(
        [*command, tmp_path, sys.executable, "-c", JUDGE, tmp_path / "store", scenario, str(stride)],
        capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=3 * LONG_S,
    )  # fmt: skip
    if done.returncode == 77:
        unavailable(f"{where} cannot be mounted here")
    assert done.returncode == 0 and int(done.stdout) >= 1, done.stderr[-3000:]


@pytest.mark.parametrize("where", PLACES)
def test_a_publisher_that_is_killed_leaves_a_whole_cache_on(tmp_path: Path, where: str) -> None:
    killed_there(tmp_path, where, "publish", 13)


@pytest.mark.campaign
@pytest.mark.parametrize("scenario", ["publish", "switch", "clean up"])
@pytest.mark.parametrize("where", PLACES)
def test_whoever_is_killed_at_any_call_leaves_a_whole_cache_on(tmp_path: Path, where: str, scenario: str) -> None:
    killed_there(tmp_path, where, scenario, 1)


STALE = """
import os, signal, sys, time
from pathlib import Path
from prefect_cachewatch import CacheStore
from tests.contract.builds import NAME, active, listed, offer
root, pid = Path(sys.argv[1]), Path(sys.argv[2])
first, done = offer(root), offer(root)
for depth in ("quick", "full"):
    os.kill(int(pid.read_text()), signal.SIGURG)
    mark = pid.with_name(pid.name + ".waits")
    while not mark.exists():
        time.sleep(0.01)
    mark.unlink()
    assert os.stat(done.path / "a.bin").st_size == 0
    assert CacheStore(root).verify(NAME, depth=depth).whole
assert listed(root)[done.build_id].status is None and active(root) == done.build_id
"""


def test_a_size_that_a_client_only_remembers_condemns_no_build(tmp_path: Path) -> None:
    needs_mounts()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        unavailable("there is no /dev/fuse")
    (tmp_path / "store").mkdir()
    script = f'{sys.executable} {FUSE} "$0/store" links "$0/pid"; exec "$@"'
    done = subprocess.run(
        [*ALONE, "sh", "-ec", script, tmp_path, sys.executable, "-c", STALE, tmp_path / "store", tmp_path / "pid"],
        capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=LONG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_file_system_without_symbolic_links_is_refused_at_the_start_and_told_by_doctor(place: Place) -> None:
    needs_mounts()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        unavailable("there is no /dev/fuse")
    place.store.mkdir()
    root = place.store / "caches"
    script = f'rm -f {place.root}/pid; {sys.executable} {FUSE} {place.store} memory {place.root}/pid; mkdir {root}; exec "$@"'
    place.before = [*ALONE, "sh", "-ec", script, "sh"]
    ran = place.run("generate", "--store", root, "--name", "c", *WELL, "--", "true", "{cache_dir}")
    assert_refused(ran, 125, f"{root} cannot be a store", "cannot make symbolic links")
    said = " ".join(place.run("doctor", f"--cache-dir={root}").stdout.split())
    assert "cannot make symbolic links" in said
