"""Readings of the running processes as values; the only module of evidence that a watch keeps in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace

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
    waits for (of a poll, all that are polled); `path` is the file it is opening; `private` says of a futex whether it is one of
    its process alone.
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
    private: bool | None = None


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
    holder_name: str = ""
    holder_in_tree: bool = False
    #: The holder's command line, secrets redacted; empty if it cannot be seen from here.
    holder_command: str = ""
    holder_user: str = ""
    #: When the holder was started, in UTC.
    holder_since: str = ""


@dataclass(frozen=True)
class CgroupFacts:
    """The memory limits of one control group."""

    path: str
    limit_bytes: int | None = None
    current_bytes: int | None = None
    oom_kills: int | None = None
