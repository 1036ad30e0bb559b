"""The board of the runs of one machine, and a state directory that is no help: another user's, full of other things, hung."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.common.aside import Aside
from prefect_cachewatch.common.directories import state_directory
from prefect_cachewatch.common.mounts import parse_mountinfo
from prefect_cachewatch.run.host_board import HostBoard
from prefect_cachewatch.watching import neighbours
from prefect_cachewatch.watching.neighbours import storage_of
from support import CACHEWATCH, needs_root, run_exec, unavailable

OPTIONS = ["--stall-after", "8s", "--poll", "0.2s"]
# The board is looked at from half a window on.
WRITES = [sys.executable, "-c", """
import sys, time
for n in range(14):
    open(f"{sys.argv[1]}/{n}", "wb").write(b"x" * 9000)
    time.sleep(0.5)
"""]  # fmt: skip


@pytest.fixture
def files() -> Iterator[Aside]:
    made = Aside.spawn(["prefect_cachewatch.run.host_board"])
    yield made
    made.close()


def test_runs_on_one_storage_see_each_other_whatever_its_name_and_whatever_else_lies_there(files: Aside) -> None:
    name = "Größe\udcff/" + "x" * 300
    first, second, elsewhere = (HostBoard(files, storage, storage[:5]) for storage in (name, name, "other"))
    first.say(None)
    second.say(7.0)
    elsewhere.say(7.0)
    directory = Path(state_directory("storages"))
    os.mkfifo(directory / "pipe.standing")
    (directory / "link.standing").symlink_to("/dev/zero")
    for number, text in enumerate(('"text"', "{}", "[" * 100_000, '{"pid": 1e999}', "")):
        leaf = directory / f"{number}.standing"
        leaf.write_text(text)
        leaf.chmod(0o600)
    standings = {one.run: one.silent_since_s for one in first.read()}
    assert set(standings) == {first.me, second.me}
    assert standings[first.me] is None and standings[second.me] is not None
    second.leave()
    assert [one.run for one in first.read()] == [first.me]


@pytest.mark.campaign
def test_a_state_directory_of_another_user_is_not_used_and_hurts_no_run(tmp_path: Path) -> None:
    needs_root("a directory of another user")
    directory = Path(state_directory("storages"))
    directory.mkdir(parents=True)
    os.chown(directory, 65534, 65534)
    cache = tmp_path / "cache"
    ran = run_exec(cache, *OPTIONS, command=[*WRITES, str(cache)])
    assert ran.status == 0 and "Traceback" not in ran.stderr, ran.stderr
    assert list(directory.iterdir()) == []


@pytest.mark.campaign
def test_a_board_that_hangs_hurts_no_run(tmp_path: Path) -> None:
    needs_root("mounting")
    if not os.path.exists("/dev/fuse"):
        unavailable("there is no /dev/fuse")
    directory = Path(state_directory("storages"))
    directory.mkdir(parents=True, mode=0o700)
    (mount := tmp_path / "mount").mkdir()
    flag, server = tmp_path / "flag", Path(__file__).with_name("fuse_cache.py")
    script = f'{sys.executable} {server} {mount} {flag} && mount --bind {mount}/cache {directory} && touch {flag} && exec "$@"'
    before = ["unshare", "-m", "-p", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"]
    cache = tmp_path / "cache"
    ran = run_exec(cache, *OPTIONS, command=[*WRITES, str(cache)], cachewatch=[*before, *CACHEWATCH])
    assert ran.status == 0 and "Traceback" not in ran.stderr, ran.stderr  # the file system ends with its namespace


@pytest.mark.parametrize(
    "table",
    [
        ("filer:/vol1 nfs4", "filer:/vol1 nfs4"),
        ("filer:/vol1/ nfs4", "FILER:/vol1 nfs"),
        ("//Filer/Share cifs", "//filer/Share/ cifs"),
        ("/dev/sda1 ext4", "/dev/sda1 ext4"),
    ],
)
def test_a_storage_that_is_mounted_at_two_paths_is_one(table: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    for number, (mount, path) in enumerate(zip(table, ("/mnt/a", "/srv/b c"), strict=True), 36):
        source, kind = mount.split()
        escaped = path.replace(" ", "\\040")
        lines.append(f"{number} 35 8:1 / {escaped} rw - {kind} {source} rw")
    monkeypatch.setattr(neighbours, "read_mounts", lambda: parse_mountinfo("\n".join(lines)))
    found = [storage_of(f"{path}/cache", "host")[0] for path in ("/mnt/a", "/srv/b c")]
    assert found[0] == found[1]
    assert storage_of("/mnt/a/cache", "host")[1].startswith("/mnt/a (")
