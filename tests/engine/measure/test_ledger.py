"""Growth accounting: literals for each rule, and properties over any history."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefect_cachewatch.measure import ledger as ledger_module
from prefect_cachewatch.measure.ledger import Growth, Ledger
from prefect_cachewatch.measure.walk import Part


@dataclass(frozen=True)
class File:
    """What a scan sees of a file; blocks default to the size, rounded up."""

    st_ino: int
    st_size: int
    blocks: int | None = None
    st_nlink: int = 1
    st_mtime_ns: int = 1
    st_ctime_ns: int = 1
    st_atime_ns: int = 0
    st_dev: int = 0
    st_mode: int = 0o100644

    @property
    def st_blocks(self) -> int:
        return -(-self.st_size // 512) if self.blocks is None else self.blocks


class Disk:
    """Feeds scans to a ledger; each scan is {path: File}, directories by their paths."""

    def __init__(
        self, start: dict[str, File] | None = None, births: dict[str, int] | None = None, by_path: tuple[str, ...] = ()
    ) -> None:
        self.births = births or {}
        self.ledger = Ledger(self.births.get, by_path)
        self.start = self.scan(start or {})

    def scan(self, files: dict[str, File], devices: dict[str, int] | None = None) -> Growth:
        self.ledger.begin()
        self.feed(files, devices)
        return self.ledger.end()

    def paths(self) -> list[str]:
        return [entry["path"] for entry in self.ledger.listing(100)["entries"]]

    def feed(self, files: dict[str, File], devices: dict[str, int] | None = None) -> None:
        for directory, group in itertools.groupby(files, key=lambda path: path.rpartition("/")[0] + "/"):
            paths = list(group)
            names = [path.rpartition("/")[2] for path in paths]
            device = (devices or {}).get(directory)
            stats = [files[path] if device is None else replace(files[path], st_dev=device) for path in paths]
            self.ledger.take(directory, [Part(directory, "", names, stats)])


def counters(growth: Growth) -> tuple[int, int]:
    return growth.bytes_written, growth.bytes_kept


def test_a_large_file_may_be_overwritten_in_place_for_as_long_as_its_size_takes():
    size, second = 10 * ledger_module._OVERWRITE_BYTES_PER_S, 10**9
    disk = Disk({"/c/a": File(1, size)})
    seen = []
    for n in range(1, 15):
        growth = disk.scan({"/c/a": File(1, size, st_mtime_ns=n * second, st_ctime_ns=n * second)})
        assert counters(growth) == (size, size)
        seen.append(growth.overwriting_ns)
    assert seen == [n * second for n in range(1, 12)] + [None] * 3


def test_the_time_to_overwrite_a_large_file_is_the_files_and_not_its_paths():
    size, second = 10 * ledger_module._OVERWRITE_BYTES_PER_S, 10**9

    def at(n: int, number: int) -> File:
        return File(number, size, st_mtime_ns=n * second, st_ctime_ns=n * second)

    disk = Disk({"/c/a": at(0, 1)})
    assert disk.scan({"/c/a": at(1, 1)}).overwriting_ns == second
    assert disk.scan({"/c/b": at(2, 1)}).overwriting_ns == 2 * second
    assert counters(disk.scan({"/c/a": at(3, 2), "/c/b": at(2, 1)})) == (2 * size, 2 * size)
    assert disk.scan({"/c/a": at(4, 2), "/c/b": at(2, 1)}).overwriting_ns is None  # it was counted as it was written
    assert disk.scan({"/c/a": at(4, 2), "/c/b": at(5, 1)}).overwriting_ns == 5 * second


def test_the_listing_goes_by_what_was_seen_and_by_no_date_that_a_generator_gives():
    ahead = 4 * 10**18
    disk = Disk({f"/c/old{n}": File(n, 10, st_mtime_ns=ahead + n, st_ctime_ns=n) for n in range(1, 9)})
    assert disk.paths()[:2] == ["/c/old8", "/c/old7"]
    old = {f"/c/old{n}": File(n, 10, st_mtime_ns=ahead + n, st_ctime_ns=999) for n in range(1, 9)}  # chmod -R
    disk.scan(old | {"/d/one": File(20, 10, st_mtime_ns=-5, st_ctime_ns=100)})
    disk.scan(old | {"/c/two": File(21, 9, st_ctime_ns=200), "/d/one": File(20, 10, st_mtime_ns=-5, st_ctime_ns=100)})
    listing = disk.ledger.listing(2)
    assert [(e["path"], e["grown_scan"], e["written_bytes"]) for e in listing["entries"]] == [
        ("/c/two", 2, 9),
        ("/d/one", 1, 10),
    ]
    assert (listing["total_files"], listing["total_bytes"], listing["rest"]) == (10, 99, [("/c/", 8, 80)])


def test_an_inode_number_that_was_used_again_is_another_file():
    disk = Disk(births={"/c/b": 50})
    disk.scan({"/c/a": File(1, 1000, st_ctime_ns=40)})
    again = disk.scan({"/c/b": File(1, 1500, st_ctime_ns=60)})
    assert counters(again) == (2500, 1500)
    assert again.last_path == "/c/b"


def test_a_renamed_file_born_before_its_last_change_is_the_same_file():
    disk = Disk(births={"/c/b": 30})
    disk.scan({"/c/a": File(1, 1000, st_ctime_ns=40)})
    assert counters(disk.scan({"/c/b": File(1, 1500, st_ctime_ns=60)})) == (1500, 1500)


def test_without_birth_times_a_larger_file_under_a_known_number_counts_what_it_is_larger():
    disk = Disk()
    disk.scan({"/c/a": File(1, 1000)})
    assert counters(disk.scan({"/c/b": File(1, 1500, st_ctime_ns=2)})) == (1500, 1500)


def test_directories_of_two_devices_may_use_the_same_inode_numbers():
    disk = Disk()
    devices = {"/kernels/": 0, "/tensors/": 1}
    grown = disk.scan({"/kernels/a": File(1, 1000), "/tensors/b": File(1, 500)}, devices)
    assert counters(grown) == (1500, 1500)
    assert grown.files_present == 2


def test_what_a_scan_saw_that_never_ended_counts_in_the_next_one_and_what_it_missed_is_not_gone():
    disk = Disk({"/c/a": File(1, 100), "/d/c": File(3, 10)})
    disk.ledger.begin()
    disk.feed({"/c/a": File(1, 5000, st_ctime_ns=2)})
    after = disk.scan({"/c/a": File(1, 5000, st_ctime_ns=2), "/d/c": File(3, 10)})
    assert (counters(after), after.last_path, after.files_present) == ((4900, 4900), "/c/a", 2)


def test_the_last_path_is_that_of_the_file_that_changed_last():
    grown = Disk().scan({"/c/a": File(1, 10, st_ctime_ns=9), "/c/b": File(2, 10, st_ctime_ns=5)})
    assert (grown.last_path, grown.newest_changed_ns) == ("/c/a", 9)


@pytest.mark.parametrize("births", [{}, {"/c/a": 1, "/c/b": 1, "/c/d": 1}])
def test_a_file_that_a_scan_did_not_find_while_it_was_moved_keeps_its_credit(births):
    disk = Disk({"/c/a": File(1, 1000)}, births)
    disk.scan({"/c/a": File(1, 1000), "/c/b": File(2, 500)})
    for n in range(2, 9):
        assert counters(disk.scan({})) == (500, 0)
        assert counters(disk.scan({f"/c/{n}/a": File(1, 1000), "/c/b": File(2, 500)})) == (500, 500)
    assert counters(disk.scan({})) == (500, 0)
    assert counters(disk.scan({"/c/a": File(1, 1000, st_ctime_ns=7), "/c/d": File(2, 500, st_ctime_ns=7)})) == (
        500,
        500,
    )
    assert counters(disk.scan({"/c/a": File(1, 1200, st_ctime_ns=8), "/c/d": File(2, 500, st_ctime_ns=7)})) == (
        700,
        700,
    )


def test_a_number_that_is_used_again_after_its_file_was_missing_is_a_new_file():
    births = {"/c/a": 1, "/c/b": 9}
    for births_known in (births, {}):
        disk = Disk({}, births_known)
        disk.scan({"/c/a": File(1, 1000)})
        disk.scan({})
        assert counters(disk.scan({"/c/b": File(1, 1000, st_mtime_ns=9, st_ctime_ns=9)})) == (2000, 1000)


def test_what_has_been_missing_for_ten_scans_was_deleted_and_takes_no_memory(monkeypatch):
    disk = Disk({"/c/a": File(1, 1000)})
    for _ in range(11):
        disk.scan({})
    assert counters(disk.scan({"/c/b": File(1, 1000)})) == (1000, 1000)
    monkeypatch.setattr(ledger_module, "_LOST_MAX", 3)
    monkeypatch.setattr(ledger_module, "_RETIRED_MAX", 3)
    for n in range(30):
        disk.scan({f"/c/{n}": File(n + 1, 100, st_ctime_ns=n + 1)})
    assert (len(disk.ledger._lost), len(disk.ledger._retired)) == (3, 3)
    assert len(disk.ledger._size) < 10


def test_a_directory_may_come_in_parts_and_be_rearranged():
    def scan(*parts: list[int]):
        disk.ledger.begin()
        stats = [[File(n + 1, 10) for n in part] for part in parts]
        names = [[f"f{n}" for n in part] for part in parts]
        disk.ledger.take("/c/", [Part("/c/", "", *each) for each in zip(names, stats, strict=True)])
        return disk.ledger.end()

    disk = Disk({f"/c/f{n}": File(n + 1, 10) for n in range(5)})
    assert scan([0, 1], [2, 3], [4]).files_present == 5
    again = scan([4, 2], [0, 1], [3, 5])
    assert (again.files_present, again.bytes_present, again.bytes_written) == (6, 60, 10)
    assert scan([5]).files_present == 1
    assert scan().files_present == 0


def test_a_file_that_moves_in_mid_scan_from_where_it_was_seen_is_not_counted_twice():
    disk, file = Disk(), File(7, 1000)
    for places in ((), ("/c/s/a",), ("/c/s/a", "/c/t/a"), ("/c/t/a",)):
        growth = disk.scan(dict.fromkeys(places, file))
        assert growth.bytes_present == growth.bytes_written == growth.bytes_kept == 1000 * bool(places)
    assert disk.paths() == ["/c/t/a"]


def test_a_large_directory_that_was_renamed_under_the_scan_keeps_its_credit():
    many = {f"/c/a/{n}": File(n + 1, 1000) for n in range(60_000)}
    disk = Disk(many)
    disk.scan({})
    assert counters(disk.scan({path.replace("/a/", "/b/"): file for path, file in many.items()})) == (0, 0)


class History(RuleBasedStateMachine):
    """Any history of a directory, scanned now and then; inode numbers are used again, lowest first, as on ext4.

    The oracle is the sum of all bytes by which any file ever grew: whatever the ledger counts must
    have been written once. Some file systems tell no birth times; there the history has no truncation,
    by which a small new file and a renamed shrunk one could not be told apart.
    """

    PATHS = st.sampled_from([f"/c/{d}{n}" for d in ("", "sub/") for n in "abcd"])
    SIZES = st.integers(0, 20_000)

    @initialize(births=st.booleans(), start=st.lists(SIZES, max_size=3))
    def begin(self, births: bool, start: list[int]) -> None:
        self.births_known = births
        self.clock = 1
        self.names: dict[str, int] = {}
        self.inodes: dict[int, File] = {}
        self.born: dict[int, int] = {}
        self.truly_written = 0
        for n, size in enumerate(start):
            self.create(f"/c/{'abc'[n]}", size)
        self.truly_written = 0
        self.originals = set(self.inodes)
        self.at_start = sum(start)
        self.ledger = Ledger(lambda path: self.born[self.names[path]] if self.births_known else None)
        self.last = Growth()
        self.scan()
        assert (self.last.bytes_written, self.last.allocated_written) == (0, 0)

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _forget(self, path: str) -> None:
        number = self.names.pop(path)
        left = list(self.names.values()).count(number)
        if left:
            self.inodes[number] = replace(self.inodes[number], st_nlink=left, st_ctime_ns=self._tick())
        else:
            del self.inodes[number]

    @rule(path=PATHS, size=SIZES)
    def create(self, path: str, size: int) -> None:
        if path in self.names:  # O_TRUNC would be a truncation; a program that replaces a file unlinks it first
            self._forget(path)
        number = next(n for n in itertools.count(1) if n not in self.inodes)
        now = self._tick()
        self.names[path], self.born[number] = number, now
        self.inodes[number] = File(number, size, st_mtime_ns=now, st_ctime_ns=now)
        self.truly_written += size

    @precondition(lambda self: self.names)
    @rule(data=st.data(), size=st.integers(1, 20_000))  # a write of nothing moves no time
    def append(self, data, size: int) -> None:
        number = self.names[data.draw(st.sampled_from(sorted(self.names)))]
        now = self._tick()
        file = self.inodes[number]
        self.inodes[number] = replace(file, st_size=file.st_size + size, st_mtime_ns=now, st_ctime_ns=now)
        self.truly_written += size

    @precondition(lambda self: self.names and self.births_known)
    @rule(data=st.data(), share=st.floats(0, 1))
    def truncate(self, data, share: float) -> None:
        number = self.names[data.draw(st.sampled_from(sorted(self.names)))]
        now = self._tick()
        file = self.inodes[number]
        self.inodes[number] = replace(file, st_size=int(file.st_size * share), st_mtime_ns=now, st_ctime_ns=now)
        if number in self.originals:  # cut off, or written anew: nobody can tell; so it counts, once
            self.truly_written += file.st_size
            self.originals.discard(number)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), to=PATHS)
    def rename(self, data, to: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.names)))
        if self.names[source] == self.names.get(to):
            return
        if to in self.names:
            self._forget(to)
        number = self.names.pop(source)
        self.names[to] = number
        self.inodes[number] = replace(self.inodes[number], st_ctime_ns=self._tick())

    @precondition(lambda self: self.names)
    @rule(data=st.data(), to=PATHS)
    def link(self, data, to: str) -> None:
        if to in self.names:
            return
        number = self.names[data.draw(st.sampled_from(sorted(self.names)))]
        self.names[to] = number
        links = list(self.names.values()).count(number)
        self.inodes[number] = replace(self.inodes[number], st_nlink=links, st_ctime_ns=self._tick())

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def unlink(self, data) -> None:
        self._forget(data.draw(st.sampled_from(sorted(self.names))))

    @rule()
    def scan(self) -> None:
        before = self.last
        self.ledger.begin()
        for directory in ("/c/", "/c/sub/"):
            names = [p.removeprefix(directory) for p in self.names if p.rpartition("/")[0] + "/" == directory]
            stats = [self.inodes[self.names[directory + name]] for name in names]
            self.ledger.take(directory, [Part(directory, "", names, stats)])
        now = self.last = self.ledger.end()
        assert now.bytes_written >= before.bytes_written
        assert now.allocated_written >= before.allocated_written
        assert now.bytes_present == sum(file.st_size for file in self.inodes.values())
        assert now.files_present == len(self.inodes)
        assert (now.last_path is None) == (
            (now.bytes_written, now.allocated_written) == (before.bytes_written, before.allocated_written)
        )

    @invariant()
    def nothing_is_counted_twice_and_what_is_held_at_least_once(self) -> None:
        if hasattr(self, "ledger"):
            assert 0 <= self.last.bytes_kept <= self.last.bytes_written <= self.truly_written
            # A generator whose files hold more than ever before is seen growing, whatever names it gives them.
            assert self.last.bytes_written >= self.last.bytes_present - self.at_start
            assert 0 <= self.last.allocated_kept <= self.last.allocated_written


TestAnyHistory = History.TestCase
TestAnyHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
