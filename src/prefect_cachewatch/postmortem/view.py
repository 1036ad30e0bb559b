"""The evidence in the form that rules need: totals over the tree, the leaves, printable names, the log's end; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.postmortem.model import Evidence, ProcessFacts
from prefect_cachewatch.postmortem.report import Diagnosis
from prefect_cachewatch.postmortem.waits import Wait, WaitKind, process_wait, waiting_leaves

__all__ = [
    "DENIED",
    "NO_SPACE",
    "QUOTA",
    "READ_ONLY",
    "LastWords",
    "View",
    "cause",
    "find_last_words",
    "hot_stack",
    "shown",
    "who",
]

# The result of a rule. Its category is the rule's name, which `diagnose` adds.
cause = partial(Diagnosis, "")

NO_SPACE = re.compile(r"No space left on device|ENOSPC|[Ee]rrno[ =:]*28\b")
QUOTA = re.compile(r"[Qq]uota exceeded|EDQUOT|[Ee]rrno[ =:]*122\b")
READ_ONLY = re.compile(r"Read-only file system|EROFS|[Ee]rrno[ =:]*30\b")
DENIED = re.compile(r"Permission denied|EACCES|Operation not permitted|EPERM|[Ee]rrno[ =:]*(?:13|1)\b")
_LINES_MAX = 40
_LINE_MAX = 2000


@dataclass(frozen=True)
class LastWords:
    """The last line that explains an end; `category` is that of the rule which it confirms."""

    line: str
    category: str
    what: str
    resolution: str


@dataclass(frozen=True)
class _Kind:
    pattern: re.Pattern[str]
    what: str
    resolution: str
    category: str = "generator_failed"


# Of the kinds that fit one line the first counts.
_KINDS = (
    _Kind(NO_SPACE, "there was no space left", "Free space, or use a larger file system.", "disk_full"),
    _Kind(QUOTA, "its quota was used up", "Remove old files of this user, or have the quota raised.", "quota_exceeded"),
    _Kind(READ_ONLY, "a file system was read-only", "Read dmesg, check the disk, remount it rw.", "read_only_filesystem"),
    _Kind(
        re.compile(r"Stale file handle|Transport endpoint is not connected|Input/output error|[Ee]rrno[ =:]*(?:5|107|116)\b"),
        "a file system failed",
        "Check the disk, server or daemon behind the path that it names (dmesg, nfsstat).",
        "filesystem_unresponsive",
    ),
    _Kind(
        re.compile(r"ModuleNotFoundError|ImportError|error while loading shared libraries|undefined symbol|DLL load failed"),
        "a module or library that it needs is missing or does not fit",
        "Run it in the environment that it was installed in: check the interpreter, PYTHONPATH and LD_LIBRARY_PATH.",
    ),
    _Kind(
        re.compile(r"(?i)cuda|cublas|cudnn|\bnvml|\bnccl|\bhip(?:error|[a-z]*:)|TT_FATAL|TT_THROW|tenstorrent|\btt-kmd|ttnn\.|\bnpu\b"),
        "its device failed or was not to be had",
        "See whether the device is there and free (nvidia-smi, tt-smi), reset it, and look for another process that holds it.",
    ),
    _Kind(
        re.compile(r"MemoryError|bad_alloc|Cannot allocate memory|(?i:out of memory)"),
        "it ran out of memory",
        "Raise its memory limit, or convert fewer layers at a time.",
    ),
    _Kind(
        re.compile(
            r"(?i)^usage:|unrecognized arguments|arguments are required|invalid choice|unrecognized option|unknown option|"
            r"no such option|invalid option|expected one argument|missing argument|got unexpected extra argument"
        ),
        "its command line is wrong",
        "Check its options: it says itself which of them it does not take.",
    ),
    _Kind(
        re.compile(r"No such file or directory|FileNotFoundError|can't open file|[Ee]rrno[ =:]*2\b|command not found|: not found$"),
        "a file or program that it needs is not there",
        "Check the path that it names, and the working directory if that is relative.",
    ),
    _Kind(
        DENIED,
        "it was refused access",
        "Look at owner and mode of what it names, and as whom it runs.",
        "permission_denied",
    ),
    _Kind(
        re.compile(
            r"(?i)segmentation fault|core dumped|fatal python error|double free|terminate called after|illegal instruction|"
            r"bus error|stack smashing|assertion .{0,500}failed"
        ),
        "it crashed",
        "Look for a core dump (coredumpctl), and run it with python -X faulthandler.",
    ),
    _Kind(
        re.compile(r"^(?:[A-Za-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}(?:Error|Exception|Exit|Interrupt|Warning)(?::|$)"),
        "it raised an exception",
        "Read the end of its log from the last traceback on.",
    ),
)  # fmt: skip


def find_last_words(log_tail: str) -> LastWords | None:
    """Find the last line of a log that explains why the program ended.

    Args:
        log_tail: the end of its output.

    Returns:
        The line and what it says; None where no line of the last forty is one that explains an end.

    Example:
        >>> find_last_words("loading\\npython: can't open file '/x/gen.py': [Errno 2] No such file or directory\\n").what
        'a file or program that it needs is not there'
    """
    lines = [line.strip()[:_LINE_MAX] for line in log_tail.splitlines() if line.strip()]
    for line in reversed(lines[-_LINES_MAX:]):
        for kind in _KINDS:
            if kind.pattern.search(line):
                return LastWords(line, kind.category, kind.what, kind.resolution)
    return None


def shown(name: str, limit: int = 100) -> str:
    """Write a name from outside into a sentence: no control characters, not too long.

    Example:
        >>> shown("a\\nb")
        'a\\\\nb'
    """
    return for_terminal(name, limit)


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
        return not self.alive and bool(self.evidence.exit_code or self.evidence.exit_signal)

    @cached_property
    def last_words(self) -> LastWords | None:
        """The last line by which a generator that ended by itself explains its end."""
        return find_last_words(self.evidence.log_tail) if self.ended_itself else None

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
