"""Looks up who else could end the waits of a tree: other processes with the same pipes, sockets, memory and locks.

It reads /proc, asks the kernel for unix sockets (`sock_diag`, as `ss -xp` does), and borrows a descriptor of a socket
for a moment to ask for its time limit. Whatever is not found out in time makes the tree's waits unproven.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from prefect_cachewatch.common.parked import MARK
from prefect_cachewatch.common.proc_locks import lock_waits
from prefect_cachewatch.postmortem.standstill import Wanted
from prefect_cachewatch.postmortem.standstill_model import Around, Blocker, FutexMemory, TreeLook
from prefect_cachewatch.postmortem.standstill_tables import other_tables, read_links
from prefect_cachewatch.supervise.proc import living_thread, namespace_of, read_proc, read_status
from prefect_cachewatch.supervise.turns import read_each

T = TypeVar("T")

_MAX_MAPS = 1 << 26
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in linux/proc_ns.h
_EACH_S, _SOCKETS_S = 0.1, 0.5
_PIDFD_GETFD = 438  # the same number on every machine that this package knows
# linux/sock_diag.h and linux/unix_diag.h
_SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, _DONE, _ERROR = 20, 0x301, 3, 2
_SHOWN, _PEER, _MEMORY, _SHUTDOWN, _SHUT_BOTH = 0x4 | 0x20, 2, 5, 6, 3  # shown: the peer, sizes of the buffers
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ (\S+) (\d+) *(.*)$", re.M)
_NO_SOCKETS = "the kernel did not list all unix sockets, and the tree may have one to a process outside"
_NO_TIME = "who else has the objects that the tree waits on could not be read in time"
_HIDDEN = "processes of others may have the objects that the tree waits on, and may not be looked at"


def look_around(look: TreeLook, wanted: Wanted, *, inherits: bool, end_s: float) -> Around:
    """Look up what the waits of a tree depend on.

    Args:
        look: the tree, with its descriptors.
        wanted: from `wanted_around`.
        inherits: whether the tree may have from its parents what this program has not.
        end_s: monotonic time by which it must be done.

    Returns:
        What was found; `unknown` says what could not be looked at.
    """
    inside = {process.pid for process in look.processes}
    needs_sockets = bool(wanted.objects or wanted.futexes or wanted.lockers)
    sockets = _unix_sockets(inside) if needs_sockets else _UnixSockets()
    objects = set(wanted.objects) | {f"socket:[{sockets.peers.get(n)}]" for n in _inodes(wanted.objects)}
    waits = {pid: _lock_waits(pid) for pid in wanted.lockers}
    marks = {mark for each in waits.values() for _, mark in each}
    memory, backing = _futex_memory(wanted.futexes)
    others = _Others(
        inside, objects, marks if waits else set(), set(backing.values()), sockets.parked, children=wanted.children
    )  # fmt: skip
    whole = True
    if objects or marks or backing or wanted.children:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in inside]
        total_s = max(0.0, end_s - time.monotonic())
        whole = len(read_each(pids, others.look, each_s=_EACH_S, total_s=total_s)) == len(pids)
    sees_all = os.geteuid() == 0 and not others.hidden and _in_first_pid_namespace()
    return Around(
        holders=others.holders,
        peers=sockets.peers,
        connected=sockets.connected,
        limits={(pid, fd): _has_limit(pid, fd) for pid, fd in wanted.sockets},
        memory={
            place: FutexMemory(
                found.shared,
                found.writable,
                found.path,
                found.named,
                tuple(others.mappers.get(backing.get(place, b""), ())),
                hidden=found.shared and _had_name(found.path) and not sees_all,
            )
            for place, found in memory.items()
        },
        blockers={
            pid: tuple(Blocker(holder, mark, others.lockers.get(mark)) for holder, mark in found)
            for pid, found in waits.items()
        },
        tracees=tuple(others.tracees),
        unknown=_NO_SOCKETS
        if not sockets.whole
        else _NO_TIME
        if not whole
        else _HIDDEN
        if inherits and not sees_all
        else others.passing,
    )


class _Others:
    """What processes outside the tree have; `look` is called in a thread that may be left behind."""

    def __init__(
        self,
        inside: set[int],
        objects: set[str],
        marks: set[str],
        backing: set[bytes],
        parked: frozenset[str],
        *,
        children: bool,
    ) -> None:
        self.holders: dict[str, int] = {}
        self.lockers: dict[str, int] = {}
        self.mappers: dict[bytes, list[int]] = {}
        self.tracees: list[int] = []
        self.hidden = 0  # files that may not be read
        self.passing = ""  # why a descriptor may be on its way to one of them
        self._inside, self._objects, self._marks, self._backing = inside, objects, marks, backing
        self._parked, self._children = parked, children
        self._eventfds = any(each.startswith("eventfd:") for each in objects)

    def look(self, pid: int) -> bool:
        """Read one process; a kernel thread has nothing, one that has ended counts as read."""
        if self._children and any(int(tracer) in self._inside for tracer in _tracers(pid)):
            self.tracees.append(pid)
        if self._objects or self._marks or self._backing:
            for home in ("", *self._other_tables(pid)):
                self._look_at_files(pid, home)
        if self._backing:
            text = self._read(pid, _read_maps) or b""
            for each in self._backing:
                if each in text:
                    self.mappers.setdefault(each, []).append(pid)
        return True

    def _other_tables(self, pid: int) -> list[str]:
        try:
            return other_tables(pid)
        except OSError:  # it has ended, or nothing of it may be read, which counts below
            return []

    def _read(self, pid: int, read: Callable[[str], T | None]) -> T | None:
        """Read something of a process; if its main thread has ended, which empties it, from another thread."""
        try:
            if found := read(f"/proc/{pid}"):
                return found
        except PermissionError:
            # The machine's init has of what it starts one end of a stream at most, which is not all ends of anything.
            self.hidden += pid != 1 or not _in_first_pid_namespace()
            return None
        except OSError:
            pass
        living = living_thread(pid)
        try:
            return read(f"/proc/{pid}/task/{living[0]}") if living is not None and living[0] != pid else None
        except OSError:
            self.hidden += 1
            return None

    def _look_at_files(self, pid: int, home: str) -> None:
        """Look at the descriptors that a thread has; an empty `home` is the process's own place."""
        place, links = self._read(pid, _read_links) or ("", {}) if not home else (home, read_links(home))
        for number, link in links.items():
            info = f"{place}/fdinfo/{number}"
            held = link
            if link == "anon_inode:[eventfd]" and self._eventfds:
                found = re.search(rb"^eventfd-id:\s*(\d+)", read_proc(info), re.M)
                self.hidden += found is None
                held = f"eventfd:{int(found[1])}" if found else link
            if held in self._objects:
                self.holders.setdefault(held, pid)
            if link.startswith("socket:") and link not in self._parked:
                self._look_at_queue(pid, info)
            elif self._backing and link.endswith(" (deleted)"):  # of a file that still has a name, `named` says so
                self._look_at_memory(pid, info)
            if self._marks and held.startswith("/"):
                text = os.fsdecode(read_proc(info))
                for mark in self._marks:
                    if "lock:" in text and f" {mark} " in text:
                        self.lockers.setdefault(mark, pid)

    def _look_at_queue(self, pid: int, info: str) -> None:
        """A descriptor that was passed and not yet received is open nowhere, and its sender may have gone."""
        found = re.search(rb"^scm_fds:\s*(\d+)", read_proc(info), re.M)  # since Linux 5.6; of unix sockets alone
        if found and int(found[1]):
            self.passing = f"descriptors are on their way to pid {pid} outside, maybe those that the tree waits on"

    def _look_at_memory(self, pid: int, info: str) -> None:
        """Who has memory open may map it, and wake who waits in it, at any time."""
        inode = re.search(rb"^ino:\s*(\d+)", read_proc(info), re.M)  # since Linux 5.14
        for each in self._backing:
            if inode is None or each.split()[1] == inode[1]:
                self.mappers.setdefault(each, []).append(pid)


def _tracers(pid: int) -> list[bytes]:
    """The tracer of each thread, "0" without; each is traced for itself."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [read_status(f"/proc/{pid}/task/{tid}/status").get(b"TracerPid", b"0") for tid in tids]


def _read_links(home: str) -> tuple[str, dict[str, str]] | None:
    """Read what each descriptor is; None without any, as where the main thread has ended."""
    links = read_links(home)
    return (home, links) if links else None


def _read_maps(home: str) -> bytes:
    with open(f"{home}/maps", "rb") as file:
        return file.read(_MAX_MAPS)


def _in_first_pid_namespace() -> bool:
    """Say whether this program sees the processes of all namespaces, rather than those of a container."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _inodes(objects: Iterable[str]) -> list[int]:
    return [int(each[8:-1]) for each in objects if each.startswith("socket:[")]


def _lock_waits(pid: int) -> list[tuple[int, str]]:
    """List what a process waits for in /proc/locks: the pid of each holder, and the lock's device and inode."""
    waits = lock_waits(os.fsdecode(read_proc("/proc/locks")))
    return [(lock.pid, lock.mark) for wait, lock in waits if wait.pid == pid and lock is not None]


def _futex_memory(
    futexes: Iterable[tuple[int, int]],
) -> tuple[dict[tuple[int, int], FutexMemory], dict[tuple[int, int], bytes]]:
    """Find the mapping of each futex, and of shared ones the device and inode, as maps has them."""
    memory, backing = dict[tuple[int, int], FutexMemory](), dict[tuple[int, int], bytes]()
    addresses = dict[int, list[int]]()
    for pid, address in futexes:
        addresses.setdefault(pid, []).append(address)

    def read(pid: int) -> None:
        for begin, end, mode, device, inode, path in _MAPPING.findall(read_proc(f"/proc/{pid}/maps", _MAX_MAPS)):
            for address in addresses[pid]:
                if int(begin, 16) <= address < int(end, 16):
                    shared, place = mode[3:] == b"s", f"{begin.decode()}-{end.decode()}"
                    named = shared and _has_name(pid, place, os.fsdecode(path))
                    memory[pid, address] = FutexMemory(shared, mode[1:2] == b"w", os.fsdecode(path), named)
                    if shared:
                        backing[pid, address] = b" %b %b " % (device, inode)

    read_each(addresses, read, each_s=_EACH_S)
    return dict(memory), dict(backing)


def _had_name(path: str) -> bool:
    """Say whether shared memory ever had a name, by which others may have opened it."""
    return path != "/dev/zero (deleted)" and not (path.startswith("/memfd:") and path.endswith(" (deleted)"))


def _has_name(pid: int, place: str, path: str) -> bool:
    """Say whether shared memory has, or may have, a name by which others can open it.

    A path that counts as deleted proves nothing: `sem_open` makes a file, links its name to it and removes the first.
    """
    if not _had_name(path):
        return False
    if path[:9] != "/dev/shm/" or not path.endswith(" (deleted)"):  # noqa: S108 - read only
        return True
    try:
        return os.stat(f"/proc/{pid}/map_files/{place}").st_nlink > 0  # in memory: it does not hang
    except OSError:  # these links are for root
        return True


@dataclass(frozen=True)
class _UnixSockets:
    """The unix sockets of our network namespace: the peer of each, and connected ones with none to be known.

    Those are of other namespaces, or their other end has not been accepted yet. `parked` are those that hold a file of
    cachewatch's own, each by its link's text; `whole` says whether all were listed.
    """

    peers: Mapping[int, int] = field(default_factory=dict)
    connected: frozenset[int] = frozenset()
    parked: frozenset[str] = frozenset()
    whole: bool = True


def _unix_sockets(pids: Iterable[int]) -> _UnixSockets:
    peers, connected, parked, asked = dict[int, int](), set[int](), set[str](), list(pids)
    try:
        for inode, peer, closed, ours in _dump_unix_sockets():
            if ours:
                parked.add(f"socket:[{inode}]")
            if peer:
                peers[inode] = peer
            elif peer == 0 and not closed:
                connected.add(inode)
    except OSError:  # what was listed so far may lack the one that matters
        return _UnixSockets(whole=False)
    here, found = os.readlink("/proc/self/ns/net"), read_each(asked, partial(namespace_of, kind="net"), each_s=_EACH_S)
    for pid in {network: pid for pid, network in found.items() if network != here}.values():  # one of each
        lines = [line.split() for line in read_proc(f"/proc/{pid}/net/unix", _MAX_MAPS).splitlines()]
        connected.update(int(words[6]) for words in lines[1:] if len(words) > 6 and words[5] == b"03")
        if not lines:  # its first line is always there
            found.pop(pid)
    return _UnixSockets(peers, frozenset(connected - peers.keys()), frozenset(parked), whole=len(found) == len(asked))


def _dump_unix_sockets() -> Iterable[tuple[int, int | None, bool, bool]]:
    """Yield inode, the peer's inode (0: it has none, None: not connected), whether the other end was closed, and whether
    it is one of ours that holds a parked file."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asking:
        asking.settimeout(_SOCKETS_S)
        asking.send(
            struct.pack("=IHHII", 40, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
            + struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOWN, 0, 0)
        )
        while True:
            data = asking.recv(1 << 18)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == _ERROR:
                    raise OSError(errno.EIO, "the kernel does not list unix sockets")
                if kind == _DONE:
                    return
                inode, attributes = struct.unpack_from("=I", data, 20)[0], dict(_attributes(data[32:length]))
                peer = attributes.get(_PEER)
                shut = attributes.get(_SHUTDOWN, b"\0")[0]
                parked = struct.unpack_from("=II", attributes.get(_MEMORY, b"").ljust(8, b"\0"))[1] == MARK
                yield inode, None if peer is None else struct.unpack_from("=I", peer)[0], shut == _SHUT_BOTH, parked
                data = data[length + 3 & ~3 :]


def _attributes(data: bytes) -> Iterable[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:size]
        data = data[max(4, size + 3 & ~3) :]


def _has_limit(pid: int, fd: int) -> bool | None:
    """Say whether a socket has a time limit of its own (SO_RCVTIMEO, SO_SNDTIMEO), which no file of /proc has."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        borrowed = libc.syscall(ctypes.c_long(_PIDFD_GETFD), process, fd, 0)
        if borrowed < 0:
            return None
        with socket.socket(fileno=borrowed) as found:
            limits = (
                found.getsockopt(socket.SOL_SOCKET, which, 16) for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
            )
            return any(any(limit) for limit in limits)
    except OSError:
        return None
    finally:
        os.close(process)
