"""Partial scans of real directories against full ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from prefect_cachewatch.measure import tree as tree_module
from prefect_cachewatch.measure.ledger import Growth, Ledger
from prefect_cachewatch.measure.scan_process import birth_ns
from prefect_cachewatch.measure.tree import Tree
from support import needs_root, unavailable

LATER_NS = 2**62  # by this clock every directory was listed long after it changed: its date alone is believed


@pytest.fixture(autouse=True)
def _back_to_where_we_were(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a scan leaves its process in /


def put(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"x" * size)
    return path


def begun(*roots: Path, ignore: tuple[str, ...] = ()) -> Tree:
    """A tree of which one full scan was made, and a pause after which directory dates differ."""
    tree = Tree([str(root) for root in roots], ignore, Ledger(birth_ns), lambda: LATER_NS)
    assert tree.full_scan().growth is not None
    time.sleep(0.02)
    return tree


def partial(tree: Tree) -> Growth:
    scan = tree.partial_scan(60)
    assert scan.growth is not None
    assert not scan.full
    time.sleep(0.02)
    return scan.growth


def truth(root: Path) -> dict[str, int]:
    return {str(p): p.lstat().st_size for p in root.rglob("*") if p.is_file() and not p.is_symlink()}


def test_a_directory_that_did_not_change_is_not_listed(tmp_path):
    for n in range(5):
        put(tmp_path / f"c/d{n}/f", 10)
    tree = begun(tmp_path / "c")
    put(tmp_path / "c/d3/g", 10)
    assert tree.partial_scan(60).walk.directories == 1
    assert tree.partial_scan(60).walk.directories == 0


def test_a_directory_that_changed_just_before_it_was_listed_is_listed_again(tmp_path):
    put(tmp_path / "c/f", 10)
    tree = Tree([str(tmp_path / "c")], [], Ledger(), time.time_ns)
    tree.full_scan()
    assert tree.partial_scan(60).walk.directories == 1


def test_an_append_to_a_file_that_was_quiet_waits_for_the_full_scan(tmp_path, monkeypatch):
    monkeypatch.setattr(tree_module, "HOT_NEWEST", 0)
    monkeypatch.setattr(tree_module, "HOT_SCANS", 2)
    quiet = put(tmp_path / "c/a", 10)
    tree = begun(tmp_path / "c")
    for _ in range(3):
        partial(tree)
    put(quiet, 90)
    assert partial(tree).bytes_written == 0
    found = tree.full_scan().growth
    assert (found.bytes_written, found.last_path) == (90, str(quiet))
    put(quiet, 5)
    assert partial(tree).bytes_written == 95


def test_the_newest_files_are_looked_at_though_they_were_quiet(tmp_path):
    last = put(tmp_path / "c/a", 10)
    tree = begun(tmp_path / "c")
    for _ in range(15):
        partial(tree)
    put(last, 90)
    assert partial(tree).bytes_written == 90


def test_a_directory_replaced_by_a_link_is_not_followed(tmp_path):
    put(tmp_path / "elsewhere/deep/secret", 1000), put(tmp_path / "c/a/deep/f", 10)
    tree = begun(tmp_path / "c")
    shutil.rmtree(tmp_path / "c/a")
    (tmp_path / "c/a").symlink_to(tmp_path / "elsewhere")
    growth = partial(tree)
    assert (growth.bytes_written, growth.files_present) == (0, 0)


def test_a_missing_or_replaced_root_makes_the_scan_a_full_one(tmp_path):
    put(tmp_path / "c/f", 10)
    tree = begun(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / "away")
    gone = tree.partial_scan(60)
    assert (gone.full, gone.growth, gone.walk.roots[0].missing) == (True, None, True)
    put(tmp_path / "c/g", 20)
    assert tree.partial_scan(60).full


def test_hot_files_come_first_when_there_is_no_time(tmp_path):
    for n in range(50):
        put(tmp_path / f"c/d{n}/f", 10)
    tree = begun(tmp_path / "c")
    hot = put(tmp_path / "c/d7/f", 1)
    partial(tree)
    # The files that moved lately are few; the clock has run out when the directories' turn comes.
    monotonic = iter([0.0] * 52 + [1e9] * 1000)
    put(hot, 100), put(tmp_path / "c/d9/new", 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_module.time, "monotonic", lambda: next(monotonic))
        scan = tree.partial_scan(60)
    assert scan.growth.bytes_written == 101
    assert partial(tree).bytes_written == 201


def test_ignored_files_do_not_count_in_a_partial_scan_either(tmp_path):
    tree = begun(put(tmp_path / "c/x", 1).parent, ignore=("*.log", "logs/*"))
    put(tmp_path / "c/a.log", 100), put(tmp_path / "c/logs/b", 100), put(tmp_path / "c/deep/c", 5)
    assert partial(tree).bytes_written == 5


def test_what_lies_too_deep_is_said_and_not_measured(tmp_path):
    put(tmp_path / "c/a", 1)
    tree = begun(tmp_path / "c")
    os.chdir(tmp_path / "c")
    for _ in range(30):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    put(Path("deep"), 100)
    os.chdir("/")
    said = [[error.rpartition(": ")[2] for error in tree.full_scan().walk.errors] for _ in range(2)]
    assert said == [["File name too long"]] * 2
    assert tree.partial_scan(60).growth.bytes_written == 0


class AnyHistory(RuleBasedStateMachine):
    """Two watch one real tree: one with full scans only, one with partial scans and some full ones.

    Nothing is ever counted that was not written; after a full scan both know the same files of the same sizes;
    and what a partial scan counted, a full one right after it does not take back.
    """

    NAMES = st.sampled_from([d + n for d in ("", "s/", "t/", "s/u/") for n in "ab"])
    SIZES = st.integers(1, 20_000)

    @initialize(
        coarse=st.booleans(), start=st.lists(st.tuples(NAMES, SIZES), max_size=4), newest=st.sampled_from([0, 2])
    )
    def begin(self, coarse: bool, start: list[tuple[str, int]], newest: int) -> None:
        self.base = Path(tempfile.mkdtemp())
        self.root = self.base / "c"
        self.root.mkdir()
        self.written = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tree_module, "HOT_NEWEST", newest)
        self.patch.setattr(tree_module, "HOT_SCANS", 2)
        for name, size in start:
            put(self.root / name, size)
        self.originals = {Path(path).stat().st_ino for path in truth(self.root)}
        # By the true clock all that changed within two seconds is listed anew; by the late one dates alone are believed.
        wall_ns = time.time_ns if coarse else lambda: LATER_NS
        self.partly, self.fully = (Tree([str(self.root)], [], Ledger(birth_ns), wall_ns) for _ in range(2))
        self.growth = self.partly.full_scan().growth
        self.fully.full_scan()

    def teardown(self) -> None:
        if hasattr(self, "base"):
            self.patch.undo()
            shutil.rmtree(self.base)

    def _files(self) -> list[Path]:
        return sorted(Path(path) for path in truth(self.root))

    @rule(name=NAMES, size=SIZES)
    def append_or_create(self, name: str, size: int) -> None:
        put(self.root / name, size)
        self.written += size

    @rule(name=NAMES, size=SIZES)
    def replace(self, name: str, size: int) -> None:
        put(self.base / "new", size)
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.base / "new").rename(self.root / name)
        self.written += size

    @precondition(lambda self: self._files())
    @rule(data=st.data(), name=NAMES)
    def rename(self, data, name: str) -> None:
        source = data.draw(st.sampled_from(self._files()))
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        source.rename(self.root / name)

    @rule(swap=st.sampled_from([("s", "t"), ("s/u", "t"), ("t", "s/u"), ("s", "v"), ("v", "s")]))
    def rename_directory(self, swap: tuple[str, str]) -> None:
        source, target = (self.root / name for name in swap)
        if source.is_dir() and target.parent.is_dir():
            if target.exists():
                target.rename(self.base / "aside")
            source.rename(target)
            if (self.base / "aside").exists():
                (self.base / "aside").rename(source) if source.parent.is_dir() else shutil.rmtree(self.base / "aside")

    @precondition(lambda self: self._files())
    @rule(data=st.data())
    def delete(self, data) -> None:
        data.draw(st.sampled_from(self._files())).unlink()

    @rule(name=st.sampled_from(["s", "t", "s/u"]))
    def delete_directory(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)

    @precondition(lambda self: self._files())
    @rule(data=st.data(), name=NAMES)
    def link(self, data, name: str) -> None:
        target = self.root / name
        if not target.exists():
            source = data.draw(st.sampled_from(self._files()))
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)

    @precondition(lambda self: self._files() and birth_ns(str(self.base)) is not None)
    @rule(data=st.data(), share=st.floats(0, 1))
    def truncate(self, data, share: float) -> None:
        path = data.draw(st.sampled_from(self._files()))
        status = path.stat()
        os.truncate(path, int(status.st_size * share))
        if status.st_ino in self.originals:  # cut off, or written anew: nobody can tell; so it counts, once
            self.written += status.st_size
            self.originals.discard(status.st_ino)

    @precondition(lambda self: self._files())
    @rule(data=st.data(), at=st.integers(0, 10))
    def fill_a_sparse_file(self, data, at: int) -> None:
        path = data.draw(st.sampled_from(self._files()))
        size = path.stat().st_size
        if size < 65536:
            os.truncate(path, 65536)
            self.written += 65536 - size
        with path.open("r+b") as file:
            file.seek(at * 4096)
            file.write(b"y" * 4096)

    @rule()
    def wait_a_tick(self) -> None:
        time.sleep(0.005)

    @rule(budget_s=st.sampled_from([0.0, 60.0, 60.0]))
    def partial_scan(self, budget_s: float) -> None:
        self._take(self.partly.partial_scan(budget_s).growth)
        self.fully.full_scan()

    @rule()
    def full_scan(self) -> None:
        self._take(self.partly.full_scan().growth)
        full = self.fully.full_scan().growth
        assert (self.growth.bytes_present, self.growth.files_present) == (full.bytes_present, full.files_present)
        ours, theirs = (dict(tree.ledger.files) for tree in (self.partly, self.fully))
        assert {k: (r.size_bytes, r.changed_ns) for k, r in ours.items()} == {
            k: (r.size_bytes, r.changed_ns) for k, r in theirs.items()
        }
        assert {r.path for r in ours.values()} <= set(truth(self.root))

    def _take(self, growth: Growth) -> None:
        assert growth.bytes_written >= self.growth.bytes_written
        assert growth.allocated_written >= self.growth.allocated_written
        assert growth.bytes_kept <= growth.bytes_written <= self.written
        assert growth.bytes_present == sum(r.size_bytes for r in self.partly.ledger.files.values())
        assert growth.files_present == len(self.partly.ledger.files)
        self.growth = growth


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


MOUNTED_MEANWHILE = """
import os, subprocess, sys
from pathlib import Path
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.scan_process import birth_ns
from prefect_cachewatch.measure.tree import Tree

cache, theirs = Path(sys.argv[1], "c"), Path(sys.argv[1], "theirs")
for place in (cache / "d", theirs):
    place.mkdir(parents=True)
    (place / "f").write_bytes(b"x" * 10)
tree = Tree([str(cache)], [], Ledger(birth_ns))
tree.full_scan()
subprocess.run(["mount", "--bind", theirs, cache / "d"], check=True)
(theirs / "f").write_bytes(b"x" * 5000)
held = open(cache / "d/g", "ab")
held.write(b"x" * 7000)
held.flush()
os.unlink(held.name)
scans = [tree.partial_scan(60), tree.partial_scan(60), tree.full_scan()]
print(*(scan.growth.bytes_written for scan in scans))
"""


def test_what_is_mounted_below_in_mid_run_is_no_growth(tmp_path):
    needs_root("mounting")
    words = ["unshare", "-m", sys.executable, "-c", MOUNTED_MEANWHILE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "mount:" in done.stderr:
        unavailable(done.stderr)
    assert done.stdout == "0 0 0\n", done.stderr
