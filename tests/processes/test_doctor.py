"""`cachewatch doctor` as it is typed, on real directories: good, missing, read-only, a FIFO, a file, full, hung."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from support import CACHEWATCH, needs_root, run, unavailable

# Root is refused by a directory's mode only without these.
_AS_A_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def environment(place: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PREFECT_", "CACHEWATCH_"))}
    kept.pop("COLUMNS", None)
    return kept | {
        "HOME": str(place / "home"),
        "CACHEWATCH_STATE": str(place / "st"),
        "DOCKER_HOST": "unix:///dev/null",
    }


def doctor(place: Path, *options: object, before: list[str] | None = None):
    words = [*CACHEWATCH, "doctor", "--no-prefect", *map(str, options)]
    return run([*(before or []), *words], env=environment(place), cwd=place)


def test_each_kind_of_directory(tmp_path):
    good, fifo, file, closed = (tmp_path / name for name in ("good", "fifo", "file", "closed"))
    good.mkdir()
    file.touch()
    os.mkfifo(fifo)
    closed.mkdir(mode=0o500)
    named = [good, tmp_path / "missing" / "below", fifo, file, closed, closed / "below"]
    before = _AS_A_USER if os.geteuid() == 0 else []
    ran = doctor(tmp_path, "--json", *(f"--cache-dir={path}" for path in [*named, good]), before=before)
    assert (ran.status, ran.stderr) == (1, "")
    found = json.loads(ran.stdout)
    assert set(found) == {"version", "works", "checks"}
    assert found["works"] is False
    assert all(set(one) == {"subject", "state", "found", "costs", "advice", "facts"} for one in found["checks"])
    assert {"kernel", "limits", "state", "ptrace", "py-spy", "engine"} <= {one["subject"] for one in found["checks"]}
    caches = {one["facts"]["path"]: one for one in found["checks"] if one["subject"] == "cache"}
    assert [(path, caches[str(path)]["state"]) for path in named] == [
        (good, "ok"), (named[1], "ok"), (fifo, "missing"), (file, "missing"), (closed, "missing"), (named[5], "missing"),
    ]  # fmt: skip
    assert "is not a directory" in caches[str(fifo)]["found"]
    assert "Permission denied" in caches[str(closed)]["found"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed", "fifo", "file", "good"]
    assert os.listdir(good) == os.listdir(closed) == []


def test_the_screen_of_a_run_that_would_work(tmp_path):
    ran = doctor(tmp_path, "--profile", f"openvino,cache_dir={tmp_path}/{'long/' * 30}ov")
    assert (ran.status, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert lines[-1].startswith("A run would work")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named(tmp_path):
    needs_root("mounting")
    (tmp_path / "disk").mkdir()
    script = f'mount -t tmpfs -o size=64k none {tmp_path}/disk && mkdir {tmp_path}/disk/c && ! cat /dev/zero > {tmp_path}/disk/x 2>&- && exec "$@"'
    ran = doctor(
        tmp_path, "--cache-dir", tmp_path / "disk" / "c", before=["unshare", "-m", "sh", "-c", script, "sh"]
    )  # fmt: skip
    if "mount:" in ran.stderr:
        unavailable(ran.stderr)
    assert ran.status == 1
    assert "is full (0 B" in " ".join(ran.stdout.split())


@pytest.mark.campaign
def test_a_hung_mount_is_named_and_holds_nothing_up(tmp_path):
    needs_root("mounting")
    if not os.path.exists("/dev/fuse"):
        unavailable("there is no /dev/fuse")
    (mount := tmp_path / "mount").mkdir()
    server = Path(__file__).parents[1] / "contract" / "fuse_daemon.py"
    script = f'{sys.executable} {server} {mount} memory {tmp_path}/pid && kill -USR1 $(cat {tmp_path}/pid) && exec "$@"'
    before = ["unshare", "-m", "-p", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"]
    ran = doctor(tmp_path, f"--cache-dir={mount}/cache", before=before)  # the server ends with its namespace
    assert (ran.status, ran.stderr) == (1, "")
    assert "does not answer within 10 s: its file system hangs" in " ".join(ran.stdout.split())
    assert ran.stdout.splitlines()[-1] == "A run would not work: cache."
