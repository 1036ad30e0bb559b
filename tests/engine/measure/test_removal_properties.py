"""Nothing that was there before, or is somebody else's, is ever gone: random trees, writers, replacements and mounts.

It drives what `on_retry: clean` does (`measure.creation.Creation`). Every file that is not the run's has a text of its
own, which must be found somewhere afterwards, unless the run itself has destroyed it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support import unavailable

from prefect_cachewatch.common.removal import remove_path
from prefect_cachewatch.measure.creation import Creation, Refusal

PLACES = st.sampled_from(["a", "b", "c", "d/a", "d/b", "d/e/a", "f/a", "x.tmp", "y.log"])
SPOTS = st.sampled_from(["", "d", "d/e", "f"])
RUN = st.one_of(
    st.tuples(st.just("make"), PLACES),
    st.tuples(st.just("append"), PLACES),
    st.tuples(st.just("rename"), PLACES, PLACES),
    st.tuples(st.just("delete"), PLACES),
    st.tuples(st.just("replace"), PLACES),
    st.tuples(st.just("symlink"), PLACES),
    st.tuples(st.just("hardlink"), PLACES, PLACES),
    st.tuples(st.just("make_directory"), SPOTS),
)
# What others do while the run writes, and what they do after its end.
MEANWHILE = st.one_of(
    st.tuples(st.just("move_in"), PLACES),
    st.tuples(st.just("move_directory_in"), SPOTS),
    st.tuples(st.just("link_in"), PLACES),
    st.tuples(st.just("other_user"), PLACES),
)
LATER = st.one_of(
    MEANWHILE,
    st.tuples(st.just("put"), PLACES),
    st.tuples(st.just("swap_file"), PLACES),
    st.tuples(st.just("swap_directory_for_link"), SPOTS),
    st.tuples(st.just("swap_directory"), SPOTS),
)
MOUNTS = st.one_of(st.tuples(st.just("mount"), SPOTS), st.tuples(st.just("mount_file"), PLACES))


class World:
    """A cache directory, the world around it, and the texts that must not be lost."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="cachewatch-property-"))
        self.cache, self.outside = self.base / "cache", self.base / "outside"
        self.precious: set[str] = set()
        self.made: dict[str, os.stat_result] = {}
        self.mounted: list[Path] = []
        self.count = 0
        self.cache.mkdir()
        for number in range(12):
            (self.outside / f"dir{number}").mkdir(parents=True)
            self.text(self.outside / f"file{number}")
            self.text(self.outside / f"dir{number}" / "inner")

    def text(self, path: Path) -> None:
        self.count += 1
        path.write_text(f"precious {self.count}")
        self.precious.add(f"precious {self.count}")

    def spare(self, kind: str) -> Path:
        self.count += 1
        return self.outside / f"{kind}{self.count % 12}"

    def lose(self, path: Path) -> None:
        """The run itself destroys what has this one name."""
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
                self.precious.discard(path.read_text())

    def do(self, words: tuple[str, ...]) -> None:
        with contextlib.suppress(OSError):  # a name that is not there, or is something else: nothing happens
            getattr(self, words[0])(*(self.cache / word for word in words[1:]))

    # The run

    def make(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            return
        path.write_text("made")
        self.made[str(path)] = path.stat()

    def append(self, path: Path) -> None:
        if path.is_symlink() or path.stat().st_nlink > 1:
            return
        self.lose(path)
        with path.open("a+") as file:
            file.write(" and more")
        if path.read_text().startswith("precious"):
            self.precious.add(path.read_text())

    def rename(self, path: Path, to: Path) -> None:
        if path.is_file() and not to.is_dir():
            to.parent.mkdir(parents=True, exist_ok=True)
            self.lose(to)
            path.rename(to)
            self.made.pop(str(path), None), self.made.pop(str(to), None)

    def delete(self, path: Path) -> None:
        self.lose(path)
        path.unlink()
        self.made.pop(str(path), None)

    def replace(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            self.lose(path)
            (path.parent / "new").write_text("made")
            (path.parent / "new").rename(path)
            self.made.pop(str(path), None)

    def symlink(self, path: Path) -> None:
        path.symlink_to(self.spare("file"))

    def hardlink(self, path: Path, to: Path) -> None:
        os.link(path, to, follow_symlinks=False)
        self.made.pop(str(path), None)

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True)

    # Others

    def move_in(self, path: Path) -> None:
        if not os.path.lexists(path):
            self.spare("file").rename(path)

    def move_directory_in(self, path: Path) -> None:
        self.spare("dir").rename(path / "moved")

    def link_in(self, path: Path) -> None:
        os.link(self.spare("file"), path)

    def other_user(self, path: Path) -> None:
        if os.geteuid() == 0 and not os.path.lexists(path) and path.parent.is_dir():
            self.text(path)
            os.chown(path, 65534, 65534)

    def put(self, path: Path) -> None:
        if not os.path.lexists(path) and path.parent.is_dir():
            self.text(path)

    def swap_file(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            self.lose(path)
            self.made.pop(str(path), None)
            self.spare("file").rename(path)

    def swap_directory_for_link(self, path: Path) -> None:
        if path != self.cache and path.is_dir():
            path.rename(self.outside / f"away{self.count}")
            path.symlink_to(self.spare("dir"))
            self.made.clear()

    def swap_directory(self, path: Path) -> None:
        if path.is_dir():
            path.rename(self.outside / f"away{self.count}")
            self.spare("dir").rename(path)
            self.made.clear()

    def mount(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            self._bind(self.spare("dir"), path)

    def mount_file(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            self._bind(self.spare("file"), path)

    def _bind(self, source: Path, path: Path) -> None:
        if source.exists() and subprocess.run(["mount", "--bind", source, path], check=False).returncode == 0:
            self.mounted.append(path)
            self.made.clear()

    def _unmount(self) -> None:
        """What lies below a mount is seen again. By the kernel's list: the way to one may lead through a link by now."""
        before: list[str] = []
        while (left := self._mounted_below()) and left != before:
            before = left
            for point in reversed(
                left
            ):  # the last that was made lies above the others; one that is hidden waits its turn
                subprocess.run(["umount", "-l", point], check=False, capture_output=True)
        self.mounted.clear()

    def _mounted_below(self) -> list[str]:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [point.removesuffix("//deleted") for point in points if point.startswith(f"{self.base}/")]

    def close(self) -> None:
        self._unmount()
        shutil.rmtree(self.base)

    def assert_nothing_is_lost(self) -> None:
        self._unmount()
        found = {
            p.read_text() for p in self.base.rglob("*") if p.is_file() and not p.is_symlink() and p.suffix != ".json"
        }
        assert self.precious - found == set()


@contextlib.contextmanager
def world(start: list[str]) -> Iterator[World]:
    made = World()
    try:
        for place in start:
            path = made.cache / place
            path.parent.mkdir(parents=True, exist_ok=True)
            made.text(path)
        yield made
    finally:
        made.close()


def clean(start: list[str], first: list[tuple[str, ...]], later: list[tuple[str, ...]]) -> None:
    with world(start) as it:
        creation = Creation([str(it.cache)])
        try:
            creation.remember()
            for words in first:
                it.do(words)
            try:
                creation.sight()
            except OSError:
                return
            made = {path for path, status in it.made.items() if os.path.lexists(path) and os.lstat(path) == status}
            for words in later:
                it.do(words)
            swapped = [words for words in [*first, *later] if words[0].startswith(("swap", "mount"))]
            try:
                done = creation.clean()
            except Refusal:
                assert swapped, "refused without a reason"
            else:
                assert done["problems"] == []
                if not swapped:
                    # It has to remove something too: what the run made at a name of its own, and nobody touched since.
                    assert [
                        path for path in made if path in it.made and os.path.lexists(path) and _is_new(path, start, it)
                    ] == []
        finally:
            creation.close()
        it.assert_nothing_is_lost()


def _is_new(path: str, start: list[str], it: World) -> bool:
    return os.path.relpath(path, it.cache) not in start


many = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate],
    derandomize=False,
)  # fmt: skip
starts = st.lists(PLACES, max_size=5, unique=True)


@many
@given(starts, st.lists(st.one_of(RUN, MEANWHILE), max_size=10), st.lists(LATER, max_size=4))
def test_clean_takes_only_what_the_run_made(start, first, later):
    clean(start, first, later)


def with_mounts() -> None:
    """The same in a mount namespace of its own, with directories and files of others bound into the tree."""
    both = st.lists(st.one_of(RUN, RUN, MEANWHILE, MOUNTS), max_size=10), st.lists(st.one_of(LATER, MOUNTS), max_size=4)
    settings(many, max_examples=30)(given(starts, *both)(clean))()
    with world(["a", "d/a", "d/e/a"]) as it:  # a tree of ours that goes as a whole, with somebody else's bound into it
        it.mount(it.cache / "d/e")
        it.mount_file(it.cache / "a")
        theirs = {path.read_text() for path in it.outside.rglob("*") if path.is_file()}
        done = remove_path(it.cache)
        assert sorted(done.problems)[0].startswith("cache/a: ") and done.failed == 2
        assert theirs == {path.read_text() for path in it.outside.rglob("*") if path.is_file()}
        assert len(it.mounted) == 2


@pytest.mark.campaign
def test_mounts_are_never_crossed():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        unavailable("needs root and unshare, to mount in a namespace of its own")
    code = "from tests.engine.measure.test_removal_properties import with_mounts; with_mounts()"
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("rounds", [20])
def test_a_hostile_swapper_gains_nothing(rounds):
    """Directories become links to somebody else's, and back, all through the removal."""
    for _ in range(rounds):
        with world([]) as it:
            creation = Creation([str(it.cache)])
            creation.remember()
            for number in range(60):
                it.make(it.cache / f"d{number % 3}/e/f{number}")
            creation.sight()
            stop = threading.Event()

            def swap(it: World = it, stop: threading.Event = stop) -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    path, away = it.cache / f"d{number % 3}", it.base / f"away{number % 3}"
                    with contextlib.suppress(OSError):
                        path.rename(away)
                        path.symlink_to(it.outside / "dir1")
                        path.unlink()
                        away.rename(path)

            thread = threading.Thread(target=swap)
            thread.start()
            try:
                creation.clean()
            finally:
                stop.set()
                thread.join()
                creation.close()
            it.assert_nothing_is_lost()
