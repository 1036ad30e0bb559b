"""The evidence of one stall as values, before any judgement.

Nothing here reads the machine (`collector` does) and nothing here decides (`rules` does).
A missing part is None or empty, and `Evidence.missing` has the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect_cachewatch.evidence.readings import (
    CgroupFacts,
    EndedProcess,
    IoCounters,
    LockWait,
    SocketFacts,
    ThreadFacts,
)
from prefect_cachewatch.supervise.lockfiles import LockFile
from prefect_cachewatch.supervise.open_files import OpenFile


@dataclass(frozen=True)
class PythonThread:
    """One Python thread's stack, innermost frame first, each `function (file:line)`."""

    tid: int | None
    name: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class ProcessFacts:
    """One process of the tree; `argv` is redacted, `_in_window` is the change since the earlier sample."""

    pid: int
    parent_pid: int
    name: str
    argv: tuple[str, ...] = ()
    state: str = "S"
    age_s: float = 0.0
    cpu_s: float = 0.0
    cpu_in_window_s: float | None = None
    runnable_in_window_s: float | None = None
    turns_in_window: int | None = None
    """How often its threads got a CPU: a process that polls wakes up again and again."""
    resident_bytes: int | None = None
    swap_bytes: int | None = None
    nice: int = 0
    uid: int | None = None
    may_override_permissions: bool | None = None
    tracer_pid: int = 0
    can_be_woken: bool | None = None
    """Whether it has a timer, or handles a signal that another program or a timer may send; None if that is not known."""
    major_faults_in_window: int | None = None
    threads: tuple[ThreadFacts, ...] = ()
    thread_count: int = 1
    io: IoCounters | None = None
    io_in_window: IoCounters | None = None
    files: tuple[OpenFile, ...] = ()
    file_count: int | None = None
    sockets: tuple[SocketFacts, ...] = ()
    cwd: str = ""
    cgroup: str = ""
    python_threads: tuple[PythonThread, ...] = ()


@dataclass(frozen=True)
class FilesystemFacts:
    """The file system of one cache directory; `responded` is False when it did not answer in time.

    `changed_age_s` is the time since an entry was made, renamed or removed in the directory itself.
    """

    path: str
    type: str = ""
    source: str = ""
    mount_point: str = ""
    options: tuple[str, ...] = ()
    responded: bool = True
    error: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None
    total_inodes: int | None = None
    block_bytes: int | None = None
    owner_uid: int | None = None
    owner_gid: int | None = None
    mode: int | None = None
    changed_age_s: float | None = None

    @property
    def read_only(self) -> bool:
        """Whether the mount or the file system below it is read-only."""
        return "ro" in self.options


@dataclass(frozen=True)
class PressureFacts:
    """One line of /proc/pressure: the share of time stalled on a resource, per cent."""

    resource: str
    some_avg10: float = 0.0
    some_avg60: float = 0.0
    full_avg10: float = 0.0
    full_avg60: float = 0.0


@dataclass(frozen=True)
class GrowthFacts:
    """What the watch measured; the report has the whole curve.

    `touched` are cache files whose modification time moved in the window while their size did
    not (`changed_in_place`: some did, names unknown); `discarded_bytes` were written in the window and are gone again;
    `unready` says which sign of readiness did not come.
    """

    kind: str = "no_growth"
    window_s: float = 0.0
    pause_s: float = 0.0
    bytes_written: int = 0
    first_write_s: float | None = None
    last_growth_s: float | None = None
    touched: tuple[str, ...] = ()
    changed_in_place: bool = False
    discarded_bytes: int = 0
    unready: str = ""
    last_path: str = ""


@dataclass(frozen=True)
class Missing:
    """A part of the evidence that could not be had, and why."""

    part: str
    why: str


@dataclass(frozen=True)
class Evidence:
    """Everything the rules look at; deltas are over `window_s` seconds."""

    window_s: float = 0.0
    growth: GrowthFacts = field(default_factory=GrowthFacts)
    processes: tuple[ProcessFacts, ...] = ()
    filesystems: tuple[FilesystemFacts, ...] = ()
    other_filesystems: tuple[FilesystemFacts, ...] = ()
    """Those that the tree uses besides, by their mount points: of its temporary files, its home, what its log names."""
    locks: tuple[LockWait, ...] = ()
    lock_files: tuple[LockFile, ...] = ()
    cgroups: tuple[CgroupFacts, ...] = ()
    pressure: tuple[PressureFacts, ...] = ()
    oom_kills_in_window: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    out_of_memory: str = ""
    log_tail: str = ""
    log_kept: str = ""
    """All of the output that is kept, each kind of line once: what was said before much that is alike."""
    ended: tuple[EndedProcess, ...] = ()
    output_seen: bool = True
    """Whether the generator's output is read: not that of a process that another program started."""
    process_count: int = 0
    collected_at: str = ""
    took_s: float = 0.0
    missing: tuple[Missing, ...] = ()
