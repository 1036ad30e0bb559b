"""Random write histories on a fake clock, judged by the real monitor, ledger and rule.

A history is one generator: how it writes (appends, new files, renames, truncations, sparse files), its pauses (up to
a share of the window), what happens to the machine (late scans, SIGSTOP of the watcher, a paused machine, a wall
clock that jumps), all from one seed. At its end it falls silent for good.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.scan_process import AgeClock
from prefect_cachewatch.measure.walk import Part
from prefect_cachewatch.watching.monitor import GrowthMonitor
from prefect_cachewatch.watching.stall import StallRule, Verdict, effective_poll_s

SCANS = 1200  # a history, about
LONGEST_PAUSE = 0.95  # of the window in force
GAPS: dict[str, Callable[[random.Random], float]] = {
    "uniform": lambda r: r.uniform(0, LONGEST_PAUSE),
    "longest": lambda r: LONGEST_PAUSE,
    "busy, then long": lambda r: LONGEST_PAUSE if r.random() < 0.05 else r.uniform(0, 0.02),
    "lognormal": lambda r: min(LONGEST_PAUSE, 0.05 * r.lognormvariate(0, 1.5)),
    "pareto": lambda r: min(LONGEST_PAUSE, 0.02 * r.paretovariate(0.8)),
}
HOWS = ("append", "new files", "rename", "rewrite", "sparse")


class Stat(NamedTuple):
    """What the ledger reads of a file."""

    st_ino: int
    st_nlink: int
    st_size: int
    st_blocks: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_atime_ns: int = 0
    st_dev: int = 0
    st_mode: int = 0o100644


@dataclass(frozen=True)
class History:
    """How one simulated history came out; times in simulated seconds."""

    seed: int
    hours: float
    writes: int
    false_stall: Verdict | None
    #: From the last write to the verdict, over the window; None if it was not run to its end.
    found_after: float | None
    #: Whether the watcher or the machine stood still, so that the verdict may come later.
    stood_still: bool
    window_s: float
    scan_s: float


class World:
    """Clock, files and the generator; the monitor sees it through `site` only."""

    def __init__(self, seed: int, hours: float, troubled: bool) -> None:
        self.random = r = random.Random(seed)
        window_s = r.choice([2.0, 10.0, 60.0, 300.0, 300.0, 900.0])
        self.policy = StallPolicy(
            stall_after_s=window_s,
            first_write_within_s=r.choice([1.0, 4.0]) * window_s,
            poll_s=max(0.05, r.choice([0.02, 0.05, 0.3, 0.5, 2.0]) * window_s) if window_s < 900 else 15.0,
            progress=r.choice(["bytes", "any"]),
        )
        # Bounded by the number of scans, not by hours alone: short windows have many an hour.
        self.end_s = min(hours * 3600, SCANS * effective_poll_s(self.policy))
        self.gap, self.how = r.choice(sorted(GAPS)), r.choice(HOWS)
        self.troubled, self.stood_still = troubled, False
        self.scan_max_s = r.choice([0.0, 0.001, 0.02]) * window_s
        self.now_s, self.wall_offset_s = 0.0, 1.7e9
        self.files: dict[str, Stat] = {}
        self.inode = self.writes = 0
        self.last_write_s = 0.0
        self.next_write_s = GAPS[self.gap](r) * self.policy.first_write_within_s
        self.ledger, self.ages = Ledger(), AgeClock()
        # What is seen of the scanner and of the site:
        self.pending, self.last_scan_s, self.deadline_s, self.on_network = False, 0.0, 10.0, False
        self.scanner = self
        self.paths, self.shared = ["/cache"], []

    def clock(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.next_write_s <= min(until_s, self.end_s):
            self._write(self.next_write_s)
            self.next_write_s += max(1e-4, GAPS[self.gap](self.random)) * self.policy.stall_after_s
        self.now_s = until_s

    def wait(self, seconds: float) -> bool:
        """The monitor's wait: perhaps longer than asked for, perhaps with the whole machine standing still."""
        self.advance(seconds)
        if self.troubled and self.random.random() < 0.03:
            trouble = self.random.choice(["watcher stopped", "machine paused", "clock jumps", "late"])
            length_s = self.random.choice([0.1, 0.5, 1.0, 5.0]) * self.policy.stall_after_s
            if trouble == "watcher stopped":
                self.stood_still = True
                self.advance(length_s)
            elif trouble == "machine paused":
                self.stood_still = True
                self.now_s += length_s
                self.next_write_s += length_s
                self.last_write_s += length_s
            elif trouble == "late":
                self.advance(0.002 * self.policy.stall_after_s)
            else:
                self.wall_offset_s += self.random.choice([-3600.0, 3600.0])
        return False

    def send(self, operation: str) -> None:
        assert operation == "scan"

    def receive(self, timeout_s: float) -> dict[str, Any]:
        scan_s = self.random.uniform(0, self.scan_max_s)
        self.advance(scan_s / 2)
        answer = self.scan()
        self.advance(scan_s / 2)
        self.last_scan_s = answer["scan_s"] = scan_s
        stamps = [answer["growth"][name] for name in ("newest_changed_ns", "touched_ns", "overwriting_ns")]
        wall_ns, monotonic_ns = (round(t * 1e9) for t in (self.now_s + self.wall_offset_s, self.now_s))
        answer["newest_changed_age_s"], answer["touched_age_s"], answer["overwriting_age_s"] = self.ages.ages_s(
            wall_ns, monotonic_ns, monotonic_ns - round(scan_s * 1e9), stamps
        )
        return answer

    def scan(self) -> dict[str, Any]:
        self.ledger.begin()
        self.ledger.take("/cache/", [Part("/cache/", "", list(self.files), list(self.files.values()))])
        growth = self.ledger.end()
        return {
            "roots": [{"path": "/cache", "inode": 1, "missing": False, "error": None}],
            "directories": 1,
            "errors": [],
            "scan": self.ledger.scans - 1,
            "growth": growth._asdict(),
            "scan_s": 0.0,
        }

    def _write(self, at_s: float) -> None:
        self.writes += 1
        self.last_write_s = at_s
        stamp = round((at_s + self.wall_offset_s) * 1e9)
        size = self.random.randrange(4096, 1 << 26)
        number = self.writes % 16
        name = f"layer.{number}"
        old = self.files.get(name)
        if self.how == "append" or old is not None:
            name, old = ("layer.0", self.files.get("layer.0")) if self.how == "append" else (name, old)
            self._put(name, (old.st_size if old else 0) + size, (old.st_blocks if old else 0) + size // 512 + 8, stamp)
            if self.how == "rename" and old is not None:
                self.files[f"layer.{number}.new"] = self.files.pop(name)
                self.files[name] = self.files.pop(f"layer.{number}.new")
        elif self.how == "sparse":  # the whole size at once, then blocks
            self._put(name, 1 << 36, size // 512 + 8, stamp)
        else:
            self._put(name, size, size // 512 + 8, stamp)
        if self.how == "rewrite" and self.random.random() < 0.3:  # written anew under the same inode, and beyond
            now = self.files[name]
            self._put(name, now.st_size + 4096, now.st_blocks + 8, stamp)

    def _put(self, name: str, size: int, blocks: int, stamp: int) -> None:
        old = self.files.get(name)
        if old is None:
            self.inode += 1
        if self.how == "sparse" and old is not None:
            size = old.st_size
        self.files[name] = Stat(old.st_ino if old else self.inode, 1, size, blocks, stamp, stamp)


def run_history(seed: int, hours: float, troubled: bool) -> History:
    """Simulate one history from its seed.

    Args:
        seed: replays it exactly.
        hours: simulated length before the silence.
        troubled: whether the machine misbehaves too.

    Returns:
        How it came out.
    """
    world = World(seed, hours, troubled)
    site: Any = world
    rule = StallRule(world.policy, 0.0)
    monitor = GrowthMonitor(site, rule, world.clock, world.scan())
    verdict = monitor.run(world.wait, lambda: False)
    silent = world.next_write_s > world.end_s
    # A verdict while the generator was to write again within its pause is false.
    is_false = not silent or world.now_s - world.last_write_s < rule.window_s - world.scan_max_s - 0.01
    return History(
        seed,
        world.now_s / 3600,
        world.writes,
        verdict if is_false else None,
        None if is_false else world.now_s - world.last_write_s,
        world.stood_still,
        rule.window_s,
        world.scan_max_s,
    )
