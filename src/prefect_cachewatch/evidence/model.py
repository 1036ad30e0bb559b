"""The evidence of one stall as values, before any judgement.

Nothing here reads the machine (`collector` does) and nothing here decides (`rules` does).
A missing part is None or empty, and `Evidence.missing` has the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace

from prefect_cachewatch.supervise.lockfiles import LockFile
from prefect_cachewatch.supervise.open_files import OpenFile

#: A tree that writes at least this much into files of a fixed size fills them; a heartbeat or a log writes less.
FILLING_BYTES_PER_S = 1 << 17


@dataclass(frozen=True)
class IoCounters:
    """The counters of /proc/PID/io, in bytes."""

    read_chars: int = 0
    write_chars: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    def since(self, earlier: IoCounters) -> IoCounters:
        """Subtract an earlier reading; a counter never falls below zero."""
        return IoCounters(*(max(0, now - then) for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    @property
    def read(self) -> int:
        """Bytes read, by calls or from the device, whichever is more."""
        return max(self.read_chars, self.read_bytes)

    @property
    def written(self) -> int:
        """Bytes written, by calls or to the device, whichever is more."""
        return max(self.write_chars, self.write_bytes)


@dataclass(frozen=True)
class ProcessReading:
    """One process in a cheap sample: its identity (pid and start time) and its running totals.

    `runnable_s` is CPU used and waited for, `turns` how often they got one, over all threads that are alive.
    """

    pid: int
    start_ticks: int
    cpu_s: float
    major_faults: int
    io: IoCounters | None
    runnable_s: float | None = None
    turns: int = 0
    state: str = ""

    def since(self, earlier: ProcessReading | None) -> ProcessReading:
        """Subtract an earlier reading; of a process that was not there then, or another one of that pid, all of it counts."""
        if earlier is None or earlier.start_ticks != self.start_ticks:
            earlier = replace(self, cpu_s=0.0, major_faults=0, io=IoCounters(), runnable_s=0.0, turns=0)
        cpu_s, wanted_s = self.cpu_s - earlier.cpu_s, None
        if self.runnable_s is not None and earlier.runnable_s is not None:
            # Threads that ended took their share with them; what was used is never more than what was wanted.
            wanted_s = max(self.runnable_s - earlier.runnable_s, cpu_s)
        return replace(
            self,
            cpu_s=cpu_s,
            major_faults=self.major_faults - earlier.major_faults,
            io=self.io.since(earlier.io) if self.io and earlier.io else None,
            runnable_s=wanted_s,
            turns=self.turns - earlier.turns,
        )


@dataclass(frozen=True)
class EndedProcess:
    """A process of the tree that ended while others went on.

    `ago_s` is since it was first missed, `lived_s` how long it was seen before; `status` is its wait status (wait(2)), None
    where only its parent knows it.
    """

    pid: int
    name: str
    ago_s: float
    lived_s: float
    status: int | None = None


@dataclass(frozen=True)
class ProcessSample:
    """The process tree at one moment, cheap enough to take at each poll."""

    monotonic_s: float
    readings: Mapping[int, ProcessReading] = field(default_factory=dict)
    oom_kills: int | None = None

    def since(self, before: ProcessSample) -> dict[int, ProcessReading]:
        """Subtract an earlier sample of the same tree, for each process that is there now."""
        return {pid: reading.since(before.readings.get(pid)) for pid, reading in self.readings.items()}


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
class LockWait:
    """A process of the tree that waits for a file lock, and who holds it."""

    waiter_pid: int
    holder_pid: int
    kind: str
    path: str = ""
    #: Pid, name and start of the holder.
    holder: str = ""
    #: Its user and command line, secrets redacted; empty if it cannot be seen from here.
    holder_command: str = ""
    holder_in_tree: bool = False


@dataclass(frozen=True)
class CgroupFacts:
    """The memory limits of one control group."""

    path: str
    limit_bytes: int | None = None
    current_bytes: int | None = None
    oom_kills: int | None = None


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
    mode: int | None = None
    changed_age_s: float | None = None

    @property
    def read_only(self) -> bool:
        """Whether the mount or the file system below it is read-only."""
        return "ro" in self.options

    @property
    def has_no_space(self) -> bool:
        """Whether the generator's user has no space in it."""
        return bool(self.total_bytes) and self.free_bytes is not None and self.free_bytes < 1 << 20

    @property
    def has_no_inode(self) -> bool:
        """Whether no file can be made in it, whatever space is left."""
        return bool(self.total_inodes) and self.free_inodes is not None and self.free_inodes < 2


@dataclass(frozen=True)
class PressureFacts:
    """One line of /proc/pressure: the share of time stalled on a resource, per cent."""

    resource: str
    some_avg10: float = 0.0
    full_avg10: float = 0.0


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
