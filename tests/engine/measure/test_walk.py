"""One scan over real directories: what is counted, what is not, and what happens meanwhile."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from prefect_cachewatch.measure import walk as walk_module
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.walk import IgnoreTest, StatCalls, Walk, sort_entries
from support import needs_root, unavailable


@pytest.fixture(autouse=True)
def _back_to_where_we_were(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # the walk leaves its process in /


class Sizes:
    """Takes in every directory; `seen` is {path: size}, `after` is called with the names of each part."""

    def __init__(self, after=lambda names: None):
        self.seen: dict[str, int] = {}
        self.after = after

    def take(self, directory, parts):
        below = []
        for part in parts:
            kinds = sort_entries(part, IgnoreTest([]))
            self.seen.update((directory + name, s.st_size) for name, s in zip(kinds.names, kinds.stats, strict=True))
            below += [(part.names[at], part.stats[at]) for at in kinds.below]
            self.after(part.names)
        return below


def look(*roots: Path, after=lambda names: None) -> tuple[dict[str, int], Walk]:
    """Walk and return {path: size} of what was shown to the visitor."""
    sizes = Sizes(after)
    walk = Walk([str(root) for root in roots], sizes)
    return sizes.seen, walk


def put(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_a_missing_directory_is_said_and_is_no_exception(tmp_path):
    _, walk = look(tmp_path / "nowhere")
    assert [(r.missing, r.error) for r in walk.roots] == [(True, "No such file or directory")]


def test_a_directory_replaced_by_a_link_is_not_followed(tmp_path):
    put(tmp_path / "elsewhere/secret", 9)
    (tmp_path / "c").symlink_to(tmp_path / "elsewhere")
    seen, walk = look(tmp_path / "c")
    assert seen == {}
    assert walk.roots[0].missing
    assert walk.roots[0].error


def test_what_vanishes_or_turns_into_a_link_between_list_and_open_is_left_out(tmp_path):
    put(tmp_path / "elsewhere/secret", 9)
    (
        put(tmp_path / "c/trigger"),
        put(tmp_path / "c/gone/f", 2),
        put(tmp_path / "c/link/f", 2),
        put(tmp_path / "c/file/f"),
    )

    def after(names):
        if "trigger" in names:  # the names below have been listed, none has been opened
            for name in ("gone", "link", "file"):
                shutil.rmtree(tmp_path / "c" / name)
            (tmp_path / "c/link").symlink_to(tmp_path / "elsewhere")
            (tmp_path / "c/file").touch()

    seen, walk = look(tmp_path / "c", after=after)
    assert list(seen) == [str(tmp_path / "c/trigger")]
    assert walk.errors == []
    assert walk.roots[0].error is None


def test_no_descriptor_is_left_open_and_none_is_kept_on_the_tree(tmp_path):
    put(tmp_path / "c" / "/".join("d" * 60) / "f")
    before, here = os.listdir("/proc/self/fd"), Path.cwd()
    seen, walk = look(tmp_path / "c", tmp_path / "missing")
    assert len(seen) == 1
    assert walk.directories == 61
    assert os.listdir("/proc/self/fd") == before
    assert Path.cwd() == here


@pytest.fixture
def deep(tmp_path):
    """A directory with 1,500 levels, more than a path can name and more than there are descriptors; a file in each 100th."""
    top = tmp_path / "c"
    top.mkdir()
    os.chdir(top)
    for n in range(1500):
        os.mkdir("directory")
        if n % 100 == 0:
            Path("file").write_bytes(b"123")
            os.mkdir("beside")
            Path("beside/file").write_bytes(b"45")
        os.chdir("directory")
    os.chdir("/")
    yield top
    subprocess.run(["rm", "-rf", top], check=True)


def test_what_lies_deeper_than_a_hundred_levels_is_named_and_the_rest_is_counted(deep):
    before = os.listdir("/proc/self/fd")
    seen, walk = look(deep)
    assert [error.rpartition(": ")[2] for error in walk.errors] == ["File name too long"]
    assert (walk.directories, sorted(seen.values())) == (101, [2, 3])
    assert os.listdir("/proc/self/fd") == before


def test_a_mount_that_a_later_one_hides_is_no_border(tmp_path):
    needs_root("mounting a file system")
    put(tmp_path / "c/sub/hidden", 3), put(tmp_path / "new/sub/ours", 70)
    measured = in_namespace_measured(tmp_path, "mount --bind c/sub c/sub && mount --bind new c")
    assert (measured["bytes"], measured["files"], measured["directories"]) == (70, 1, 2)


def in_namespace_measured(place: Path, mounting: str, name: str = "c") -> dict:
    measures = "import json, sys\nfrom prefect_cachewatch.measure.scan_process import measure\n"
    measures += "print(json.dumps(measure([sys.argv[1]], [])))"
    script = f'cd {place} && {mounting} && exec "$@"'
    words = [sys.executable, "-c", measures, f"{place}/{name}"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *words], capture_output=True, text=True, check=False
    )
    if done.returncode and "mount" in done.stderr:
        unavailable(done.stderr.strip())
    return json.loads(done.stdout)


def test_a_directory_that_may_not_be_read_is_named_and_the_rest_is_counted():
    base = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own are closed to other users
    try:
        put(base / "c/open", 3), put(base / "c/closed/f", 5), put(base / "c/listable/f", 5)
        base.chmod(0o755)
        (base / "c/closed").chmod(0)
        (base / "c/listable").chmod(0o444)
        seen, errors, root_error = _as_nobody(base / "c")
        assert seen == {f"{base}/c/open": 3}
        assert errors == [f"{base}/c/closed: Permission denied", f"{base}/c/listable: Permission denied"]
        assert root_error is None
        (base / "c").chmod(0)
        assert _as_nobody(base / "c") == [{}, [], "Permission denied"]
    finally:
        for path in (base / "c", base / "c/closed", base / "c/listable"):
            path.chmod(0o755)
        shutil.rmtree(base)


def _as_nobody(root: Path):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            seen, walk = look(root)
            os.write(write, json.dumps([seen, sorted(walk.errors), walk.roots[0].error]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.load(pipe)
    os.waitpid(pid, 0)
    return answer


@pytest.mark.parametrize(
    ("glob", "name", "directory", "ignored"),
    [
        ("*.log", "run.log", "a/", True),
        ("*.log", "run.log.1", "", False),
        ("tmp?", "tmpx", "", True),
        ("[ab]*", "bx", "", True),
        ("exact", "inexact", "", False),
        ("logs/*", "x", "logs/", True),
        ("logs/*", "x", "deep/logs/", False),
        ("/logs/*", "x", "logs/", True),
        ("*/logs/*", "x", "deep/logs/", True),
    ],
)
def test_a_glob_ignores_what_it_says(glob, name, directory, ignored):
    assert IgnoreTest([glob])(name, directory) is ignored


def test_calls_that_take_long_because_the_host_is_busy_are_made_by_no_threads(monkeypatch):
    monkeypatch.setattr(
        walk_module, "_WAITING_S", -1.0
    )  # whatever they take is long, but none of them waits for anybody
    calls = StatCalls()
    assert len(calls.each(-1, ["/"] * 200)) == 200
    assert (calls.threaded, calls.settled) == (False, True)
    calls.close()


def test_a_walk_leaves_the_working_directory_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Walk([str(tmp_path)], Ledger()).directories == 2
    assert os.getcwd() == str(tmp_path)


MOUNTED_MEANWHILE = """
import os, subprocess, sys
from pathlib import Path
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.scan_process import birth_ns
from prefect_cachewatch.measure.walk import Walk

cache, theirs = Path(sys.argv[1], "c"), Path(sys.argv[1], "theirs")
for place in (cache / "d", theirs):
    place.mkdir(parents=True)
    (place / "f").write_bytes(b"x" * 10)
ledger = Ledger(birth_ns)
def scan():
    ledger.begin()
    Walk([str(cache)], ledger)
    return ledger.end().bytes_written
scan()
subprocess.run(["mount", "--bind", theirs, cache / "d"], check=True)
(theirs / "f").write_bytes(b"x" * 5000)
held = open(cache / "d/g", "ab")
held.write(b"x" * 7000)
held.flush()
os.unlink(held.name)
print(scan(), scan())
"""


def test_what_is_mounted_below_in_mid_run_is_no_growth(tmp_path):
    needs_root("mounting")
    words = ["unshare", "-m", sys.executable, "-c", MOUNTED_MEANWHILE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "mount:" in done.stderr:
        unavailable(done.stderr)
    assert done.stdout == "0 0\n", done.stderr
