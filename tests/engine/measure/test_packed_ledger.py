"""The packed ledger against the plain one, over any history with whole scans, and what its columns hold."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.engine.measure.plain_ledger import PlainLedger

from prefect_cachewatch.measure.folder import Folder, Seen, read_listing
from prefect_cachewatch.measure.ledger import Ledger

DIRECTORIES = ("/c/", "/c/s/", "/c/t/")


def test_a_record_comes_back_as_it_was_put_in():
    listing = read_listing("/c/", 1, "a/b", [Seen(7, 1, 100, 8, -20, 30), Seen(2**63 + 5, 1, 50, 8, -21, 31)])
    folder = Folder(listing)
    records = list(folder.records())
    assert [(r.path, r.modified_ns, r.changed_ns, r.original) for r in records] == [
        ("/c/a", -20, 30, True),
        ("/c/b", -21, 31, True),
    ]
    assert folder.keys() == [7 | 1 << 64, 2**63 + 5 | 1 << 64]
    changed = records[1]._replace(size_bytes=70, high_bytes=900, written_bytes=4, grown_scan=3, original=False)
    folder.put(1, changed)
    assert list(folder.records()) == [records[0], changed]
    assert (folder.bytes_present, len(folder)) == (170, 2)
    assert list(Folder.of_records(listing, [records[0], changed], False).records()) == [records[0], changed]


def test_a_large_directory_may_come_in_parts_and_be_rearranged():
    def scan(*parts: list[int]):
        ledger.begin()
        for part in parts:
            ledger.see("/c/", 0, [f"f{n}" for n in part], [Seen(n + 1, 1, 10, 1, 1, 1) for n in part])
        return ledger.end()

    ledger = Ledger()
    assert scan([0, 1], [2, 3], [4]).files_present == 5
    again = scan([4, 2], [0, 1], [3, 5])
    assert (again.files_present, again.bytes_present, again.bytes_written) == (6, 60, 10)
    assert scan([5]).files_present == 1
    assert scan().files_present == 0


def test_a_file_that_moves_in_mid_scan_from_where_it_was_seen_is_not_counted_twice():
    ledger, file = Ledger(), Seen(7, 1, 1000, 2, 1, 1)
    for places in ((), ("/c/s/",), ("/c/s/", "/c/t/"), ("/c/t/",)):
        ledger.begin()
        for place in places:
            ledger.see(place, 0, ["a"], [file])
        growth = ledger.end()
        assert growth.bytes_present == growth.bytes_written == growth.bytes_kept == 1000 * bool(places)
        assert ledger.doubtful == ({"/c/s/", "/c/t/"} if len(places) == 2 else set())
    assert ledger.files[7].path == "/c/t/a"


class Twins(RuleBasedStateMachine):
    """Both ledgers see the same whole scans of a tree in which anything happens; their totals are equal each time."""

    PATHS = st.sampled_from([d + n for d in DIRECTORIES for n in "abc"])
    SIZES = st.one_of(st.integers(0, 20_000), st.integers(0, 20 << 20))

    @initialize(births=st.booleans(), start=st.dictionaries(PATHS, SIZES, max_size=4))
    def begin(self, births: bool, start: dict[str, int]) -> None:
        self.births_known, self.clock = births, 1
        self.hidden: set[int] = set()
        self.names: dict[str, int] = {}
        self.inodes: dict[int, Seen] = {}
        self.born: dict[int, int] = {}
        for path, size in start.items():
            self.create(path, size)
        birth = lambda path: self.born[self.names[path]] if self.births_known else None  # noqa: E731
        self.twins = Ledger(birth), PlainLedger(birth)
        self.scan(True)

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _set(self, number: int, **changes: int) -> None:
        self.inodes[number] = self.inodes[number]._replace(**changes)

    def _forget(self, path: str) -> None:
        number = self.names.pop(path)
        left = list(self.names.values()).count(number)
        if left:
            self._set(number, st_nlink=left, st_ctime_ns=self._tick())
        else:
            del self.inodes[number]

    @rule(path=PATHS, size=SIZES)
    def create(self, path: str, size: int) -> None:
        if path in self.names:
            self._forget(path)
        number = next(n for n in itertools.count(1) if n not in self.inodes)
        now = self._tick()
        self.names[path], self.born[number] = number, now
        self.inodes[number] = Seen(number, 1, size, -(-size // 512), now, now)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), size=st.one_of(SIZES, st.integers(-20_000, 0)), blocks=st.integers(-3, 30))
    def write(self, data, size: int, blocks: int) -> None:
        """Append, truncate, fill what was sparse; blocks go their own way."""
        number, now = self.names[data.draw(st.sampled_from(sorted(self.names)))], self._tick()
        file = self.inodes[number]
        if not self.births_known:  # a renamed file that shrank cannot be told from a new one
            size = abs(size)
        size, blocks = max(0, file.st_size + size), max(0, file.st_blocks + blocks)
        self._set(number, st_size=size, st_blocks=blocks, st_mtime_ns=now, st_ctime_ns=now)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), to=PATHS)
    def rename(self, data, to: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.names)))
        if self.names[source] != self.names.get(to):
            if to in self.names:
                self._forget(to)
            self.names[to] = self.names.pop(source)
            self._set(self.names[to], st_ctime_ns=self._tick())

    @precondition(lambda self: self.names)
    @rule(data=st.data(), touch=st.booleans())
    def overwrite(self, data, touch: bool) -> None:
        """In place at the same size; or only the times are set."""
        number, now = self.names[data.draw(st.sampled_from(sorted(self.names)))], self._tick()
        self._set(number, st_mtime_ns=now, st_ctime_ns=now, **({"st_atime_ns": now} if touch else {}))

    @rule()
    def swap_directories(self) -> None:
        swapped = {"/c/s/": "/c/t/", "/c/t/": "/c/s/", "/c/": "/c/"}
        self.names = {swapped[p[: p.rindex("/") + 1]] + p[p.rindex("/") + 1 :]: n for p, n in self.names.items()}

    @precondition(lambda self: self.names)
    @rule(data=st.data(), to=PATHS)
    def link(self, data, to: str) -> None:
        if to not in self.names:
            self.names[to] = number = self.names[data.draw(st.sampled_from(sorted(self.names)))]
            self._set(number, st_nlink=self.inodes[number].st_nlink + 1, st_ctime_ns=self._tick())

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def unlink(self, data) -> None:
        self._forget(data.draw(st.sampled_from(sorted(self.names))))

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def hide(self, data) -> None:
        """The next scan comes to each place when the file is in another one."""
        self.hidden.add(self.names[data.draw(st.sampled_from(sorted(self.names)))])

    @rule(ended=st.booleans())
    def scan(self, ended: bool) -> None:
        hidden, self.hidden = self.hidden, set()
        for ledger in self.twins:
            ledger.begin()
            for directory in DIRECTORIES:
                paths = sorted(
                    p for p in self.names if p[: p.rindex("/") + 1] == directory and self.names[p] not in hidden
                )
                if paths:
                    stats = [self.inodes[self.names[p]] for p in paths]
                    ledger.see(directory, 0, [p[p.rindex("/") + 1 :] for p in paths], stats)
        if ended:
            packed, plain = (ledger.end() for ledger in self.twins)
            # Of two files that changed at once either may be called the last; a linked one has several paths.
            assert packed._replace(last_path=None) == plain._replace(last_path=None)
            assert packed.last_path is None or packed.last_path in self.names
            ours, theirs = (dict(ledger.files) for ledger in self.twins)
            assert {k: r[2:] for k, r in ours.items()} == {k: r[2:] for k, r in theirs.items()}


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
