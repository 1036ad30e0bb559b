"""What a post-mortem knows: the evidence of one stall as values, before anybody judges it.

Nothing here reads the machine (`evidence` does) and nothing here decides (`diagnosis` does).
A part that could not be had is None or empty, and `Evidence.missing` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "CgroupFacts",
    "Evidence",
    "FilesystemFacts",
    "GrowthFacts",
    "IoCounters",
    "LockWait",
    "Missing",
    "OpenFile",
    "PressureFacts",
    "ProcessFacts",
    "ProcessReading",
    "ProcessSample",
    "PythonThread",
    "SocketFacts",
    "ThreadFacts",
]

FileKind = Literal["file", "directory", "pipe", "socket", "tty", "device", "anon"]
Access = Literal["r", "w", "rw", ""]


@dataclass(frozen=True)
class IoCounters:
    """The counters of /proc/PID/io, in bytes."""

    read_chars: int = 0
    write_chars: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    def since(self, earlier: IoCounters) -> IoCounters:
        """Subtract an earlier reading; a counter never falls below zero."""
        return IoCounters(
            max(0, self.read_chars - earlier.read_chars),
            max(0, self.write_chars - earlier.write_chars),
            max(0, self.read_bytes - earlier.read_bytes),
            max(0, self.write_bytes - earlier.write_bytes),
        )


@dataclass(frozen=True)
class ProcessReading:
    """One process in a cheap sample: who it is (pid and start time) and its running totals.

    `runnable_s` is CPU used and waited for, over all threads that are alive.
    """

    pid: int
    start_ticks: int
    cpu_s: float
    major_faults: int
    io: IoCounters | None
    runnable_s: float | None = None


@dataclass(frozen=True)
class ProcessSample:
    """The process tree at one moment, cheap enough to take at each poll."""

    monotonic_s: float
    readings: Mapping[int, ProcessReading] = field(default_factory=dict)
    oom_kills: int | None = None


@dataclass(frozen=True)
class ThreadFacts:
    """One thread: its state and what the kernel says it waits in.

    `syscall` is the system call's name, `fault` for a thread blocked outside a call (a page
    fault), empty where it runs or may not be read. `waits_on` are the descriptors that it
    waits for (of a poll, all that are polled); `path` is the file it is opening.
    """

    tid: int
    name: str = ""
    state: str = "S"
    wait_channel: str = ""
    syscall: str = ""
    waits_on: tuple[int, ...] = ()
    timed: bool | None = None
    path: str = ""
    kernel_stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenFile:
    """One open descriptor; a FIFO counts as a pipe, a size and an age come from the file system, if it answered."""

    fd: int
    target: str
    kind: FileKind
    access: Access = ""
    position_bytes: int | None = None
    in_cache: bool = False
    inode: int | None = None
    size_bytes: int | None = None
    modified_age_s: float | None = None


@dataclass(frozen=True)
class SocketFacts:
    """One socket: family (`tcp`, `tcp6`, `udp`, `udp6`, `unix`), both ends, state, queues."""

    fd: int
    family: str
    local: str
    remote: str
    state: str
    receive_queue_bytes: int = 0
    send_queue_bytes: int = 0


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
    resident_bytes: int | None = None
    swap_bytes: int | None = None
    nice: int = 0
    uid: int | None = None
    may_override_permissions: bool | None = None
    tracer_pid: int = 0
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
class LockWait:
    """A process of the tree that waits for a file lock, and who holds it."""

    waiter_pid: int
    holder_pid: int
    kind: str
    path: str = ""
    holder_name: str = ""
    holder_in_tree: bool = False


@dataclass(frozen=True)
class CgroupFacts:
    """The memory limits of one control group."""

    path: str
    limit_bytes: int | None = None
    current_bytes: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True)
class FilesystemFacts:
    """The file system of one cache directory; `responded` is False when it did not answer in time.

    `modified_age_s` is the time since an entry was made, renamed or removed in the directory itself.
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
    modified_age_s: float | None = None
    quota_limit_bytes: int | None = None
    quota_used_bytes: int | None = None

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
    """What the watch measured; `samples` are (seconds, bytes written, allocated bytes written).

    `touched` are cache files whose modification time moved in the window while their size did
    not (`changed_in_place`: some did, names unknown); `discarded_bytes` were written in the window and are gone again;
    `unready` says what a server's readiness was waited for in vain.
    """

    kind: str = "no_growth"
    window_s: float = 0.0
    pause_s: float = 0.0
    bytes_written: int = 0
    bytes_present: int = 0
    files_present: int = 0
    first_write_s: float | None = None
    last_growth_s: float | None = None
    touched: tuple[str, ...] = ()
    changed_in_place: bool = False
    discarded_bytes: int = 0
    min_growth_bytes: int = 4096
    samples: tuple[tuple[float, int, int], ...] = ()
    unready: str = ""


@dataclass(frozen=True)
class Missing:
    """A part of the evidence that could not be had, and why."""

    part: str
    why: str


@dataclass(frozen=True)
class Evidence:
    """Everything the diagnosis looks at; deltas are over `window_s` seconds."""

    window_s: float = 0.0
    growth: GrowthFacts = field(default_factory=GrowthFacts)
    processes: tuple[ProcessFacts, ...] = ()
    filesystems: tuple[FilesystemFacts, ...] = ()
    locks: tuple[LockWait, ...] = ()
    cgroups: tuple[CgroupFacts, ...] = ()
    pressure: tuple[PressureFacts, ...] = ()
    oom_kills_in_window: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    log_tail: str = ""
    process_count: int = 0
    collected_at: str = ""
    took_s: float = 0.0
    missing: tuple[Missing, ...] = ()
