"""What one look at a process tree saw, as values: its sleeping threads, their descriptors, and who else has those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TreeThread:
    """A living thread: its state letter, its system call with all arguments, and its context switches so far.

    `call` is empty outside a known call. `polled` are the descriptors of a poll or select; None: they could not be read.
    `channel` is the kernel function that it sleeps in.
    """

    tid: int
    state: str
    call: str = ""
    arguments: tuple[int, ...] = ()
    stack_pointer: int = 0
    channel: str = ""
    switches: tuple[int, int] = (0, 0)
    tracer_pid: int = 0
    polled: tuple[int, ...] | None = ()


@dataclass(frozen=True)
class Descriptor:
    """An open descriptor: the link's text, or `eventfd:ID`, `pidfd:PID`, `timerfd` with `armed`.

    `watched` are those of an epoll, each with the inode number of its file; None: they could not be read.
    """

    target: str
    access: str = ""
    inode: int | None = None
    armed: bool = False
    watched: tuple[tuple[int, int], ...] | None = ()


@dataclass(frozen=True)
class TreeProcess:
    """A process of the tree; `caught` has a bit for each signal with a handler, `timers` is None if they are not listed."""

    pid: int
    start_ticks: int
    parent: int
    name: str
    caught: int = 0
    timers: bool | None = False
    threads: tuple[TreeThread, ...] = ()
    files: Mapping[int, Descriptor] = field(default_factory=dict)
    asynchronous_io: bool = False


@dataclass(frozen=True)
class FutexMemory:
    """The mapping that a futex lies in.

    `named`: shared memory that a process outside may open by a name. `others` are processes outside that have it.
    `hidden`: it had a name, and processes that cannot be seen may have opened it.
    """

    shared: bool
    writable: bool = True
    path: str = ""
    named: bool = False
    others: tuple[int, ...] = ()
    hidden: bool = False


@dataclass(frozen=True)
class Blocker:
    """What keeps a process from a file lock.

    `pid` took it, `file` is its device and inode, `outside` a process outside the tree that has its descriptor.
    """

    pid: int
    file: str = ""
    outside: int | None = None


@dataclass(frozen=True)
class Around:
    """What the machine says about the objects that the tree's waits depend on.

    Attributes:
        holders: object (as `Descriptor.target`) to a process outside the tree that has it open.
        peers: inode of a connected unix socket to that of its peer.
        connected: inodes of all unix sockets that are connected, in the network namespaces of the tree.
        limits: (pid, descriptor) to whether that socket has a time limit of its own; None: it could not be asked.
        memory: (pid, address) of a futex that is not private to its mapping.
        blockers: a process that waits for a file lock to what it waits for; None: the kernel does not list it.
        tracees: processes outside the tree that one of the tree traces.
        unknown: why an object of the tree may be open elsewhere unseen; empty if it cannot.
    """

    holders: Mapping[str, int] = field(default_factory=dict)
    peers: Mapping[int, int] = field(default_factory=dict)
    connected: frozenset[int] = frozenset()
    limits: Mapping[tuple[int, int], bool | None] = field(default_factory=dict)
    memory: Mapping[tuple[int, int], FutexMemory] = field(default_factory=dict)
    blockers: Mapping[int, tuple[Blocker, ...]] = field(default_factory=dict)
    tracees: tuple[int, ...] = ()
    unknown: str = ""


@dataclass(frozen=True)
class TreeLook:
    """One look; `refused` says why it is not whole. `around` is None where the tree alone shows that it can go on."""

    processes: tuple[TreeProcess, ...] = ()
    around: Around | None = None
    refused: str = ""
