"""The evidence in the form that rules need: totals over the tree, the leaves, printable names, the log's end; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.evidence import crash_table
from prefect_cachewatch.evidence.last_words import LastWords, find_last_words
from prefect_cachewatch.evidence.model import Evidence, ProcessFacts
from prefect_cachewatch.evidence.readings import LockWait
from prefect_cachewatch.evidence.waits import Wait, WaitKind, process_wait, waiting_leaves

_TURNS, _TURNS_PER_S = 3, 0.15
_ANY_EXCEPTION = 20

NO_SPACE, QUOTA, READ_ONLY, DENIED = map(
    re.compile, (crash_table.NO_SPACE, crash_table.QUOTA, crash_table.READ_ONLY, crash_table.DENIED)
)


def shown(name: str, limit: int = 100) -> str:
    """Write a name from outside into a sentence: no control characters, not too long.

    Example:
        >>> shown("a\\nb")
        'a\\\\nb'
    """
    return for_terminal(name, limit)


def quoted(*lines: str) -> tuple[str, ...]:
    """Write lines of an output, without those that are empty, as a cause's `said`."""
    return tuple(shown(line.strip(), 240) for line in lines if line.strip())


def who(process: ProcessFacts) -> str:
    """Name a process in a sentence.

    Example:
        >>> who(ProcessFacts(7, 1, "python"))
        'pid 7 (python)'
    """
    return f"pid {process.pid} ({shown(process.name, 40)})"


def hot_stack(process: ProcessFacts) -> tuple[str, ...]:
    """Pick the Python stack that explains a process best: of a running thread, else of the main one."""
    running = {thread.tid for thread in process.threads if thread.state == "R"}
    threads = [thread for thread in process.python_threads if thread.frames]
    for thread in threads:
        if thread.tid in running:
            return thread.frames
    for thread in threads:
        if thread.tid == process.pid or thread.name == "MainThread":
            return thread.frames
    return threads[0].frames if threads else ()


@dataclass(frozen=True)
class View:
    """Totals and leaves of one evidence; rates need an earlier sample and are None without one."""

    evidence: Evidence

    @cached_property
    def window_s(self) -> float:
        """Seconds that the deltas cover."""
        return self.evidence.window_s

    @cached_property
    def alive(self) -> list[ProcessFacts]:
        """The processes that have not ended."""
        return [process for process in self.evidence.processes if process.state not in "ZX"]

    @cached_property
    def ended_itself(self) -> bool:
        """Whether the generator failed by itself, rather than being stopped."""
        return not self.alive and (self.evidence.exit_code is not None or bool(self.evidence.exit_signal))

    @cached_property
    def reports_error(self) -> bool:
        """Whether the generator ended by a signal or with an exit code other than 0."""
        return bool(self.evidence.exit_code or self.evidence.exit_signal)

    @cached_property
    def last_words(self) -> LastWords | None:
        """The last line of the output that explains an end: of the generator, or of a process that the others wait for."""
        last = find_last_words(self.evidence.log_tail)
        if last is not None and last.rule.weight >= _ANY_EXCEPTION:
            return last
        kept = find_last_words(self.evidence.log_kept)
        return kept if kept is not None and (last is None or kept.rule.weight > last.rule.weight) else last

    @cached_property
    def leaves(self) -> list[Wait]:
        """The waits of the processes that the others wait for."""
        return waiting_leaves(self.evidence)

    @cached_property
    def waits(self) -> list[Wait]:
        """The wait of every process."""
        locked = {lock.waiter_pid for lock in self.evidence.locks}
        found = (process_wait(process, process.pid in locked) for process in self.alive)
        return [wait for wait in found if wait]

    @cached_property
    def cpu_cores(self) -> float | None:
        """CPU used in the window, in cores."""
        return self._rate([process.cpu_in_window_s for process in self.alive])

    @cached_property
    def wanted_cores(self) -> float | None:
        """CPU used and waited for in the window, in cores: the use on an idle machine."""
        wanted = self._rate([process.runnable_in_window_s for process in self.alive])
        return wanted if wanted is None or self.cpu_cores is None else max(wanted, self.cpu_cores)

    @cached_property
    def written_bytes(self) -> int | None:
        """Bytes written in the window, by calls or to the device, whichever is more."""
        io = [process.io_in_window for process in self.alive if process.io_in_window]
        return sum(max(one.write_chars, one.write_bytes) for one in io) if io else None

    @cached_property
    def read_bytes_per_s(self) -> float | None:
        """Bytes read a second in the window, by calls or from the device, whichever is more."""
        io = [process.io_in_window for process in self.alive if process.io_in_window]
        return self._rate([float(max(one.read_chars, one.read_bytes)) for one in io])

    @cached_property
    def major_faults_per_s(self) -> float | None:
        """Page faults that needed a disk, a second."""
        return self._rate([process.major_faults_in_window for process in self.alive])

    @cached_property
    def polls(self) -> bool:
        """Whether a process wakes up again and again."""
        return any(
            (process.turns_in_window or 0) >= max(_TURNS, _TURNS_PER_S * self.window_s) for process in self.alive
        )

    def leaf(self, *kinds: WaitKind) -> Wait | None:
        """Find the first leaf of one of these kinds."""
        return next((wait for wait in self.leaves if wait.kind in kinds), None)

    def log_line(self, pattern: re.Pattern[str]) -> str:
        """Find the last of the log's last 200 lines that matches; empty if none does."""
        lines = self.evidence.log_tail.splitlines()[-200:]
        return next((line.strip() for line in reversed(lines) if pattern.search(line)), "")

    def names_cache(self, text: str) -> bool:
        """Say whether a text names a path in one of the cache directories."""
        return any(facts.path in text for facts in self.evidence.filesystems)

    def _rate(self, values: list[float | None] | list[int | None] | list[float]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / self.window_s if known and self.window_s > 1e-3 else None


def describe_holder(lock: LockWait) -> str:
    """Say who holds a lock: pid, user, start, command line.

    Example:
        >>> describe_holder(LockWait(7, 9, "FLOCK", holder_command="convert /c", holder_user="ml", holder_since="2026-11-23 02:13 UTC"))
        'pid 9 of ml, since 2026-11-23 02:13 UTC: convert /c'
    """
    user = f" of {shown(lock.holder_user, 40)}" if lock.holder_user else ""
    since = f", since {lock.holder_since}" if lock.holder_since else ""
    return f"pid {lock.holder_pid}{user}{since}: {shown(lock.holder_command, 200)}"
