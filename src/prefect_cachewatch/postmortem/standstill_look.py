"""Looks at a process tree, to prove that it stands still: from /proc alone, each reading with a deadline.

Neither command lines nor environments are read. A tree that can go on is mostly known as such by its first threads, and
then nothing more is read. `standstill` judges.
"""

from __future__ import annotations

import _pickle as pickle  # as in common.aside: the Python version would cost memory in two processes
import os
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from prefect_cachewatch.common.mounts import Mount, read_mounts
from prefect_cachewatch.postmortem.proctree import call_name, read_memory
from prefect_cachewatch.postmortem.standstill import Proof, objection_to, prove, wanted_around
from prefect_cachewatch.postmortem.standstill_around import look_around
from prefect_cachewatch.postmortem.standstill_model import Descriptor, TreeLook, TreeProcess, TreeThread
from prefect_cachewatch.postmortem.standstill_tables import home_of, other_tables
from prefect_cachewatch.supervise.proc import descendants, read_proc, read_stat, read_status
from prefect_cachewatch.supervise.turns import read_each
from prefect_cachewatch.watching.proving import Seen

_MAX_PROCESSES, _MAX_THREADS, _MAX_FILES, _MAX_POLLED, _MAX_MAPS = 1000, 4096, 20000, 1024, 1 << 26
_EACH_S = 0.1
# What may set an eventfd from within the kernel and needs no descriptor: asynchronous I/O, a driver.
_SETS_EVENTFDS = re.compile(rb"/\[aio\]| /dev/(?!shm/|zero\b)")
_IO_URING = b"anon_inode:[io_uring]"  # works on without a descriptor, as long as its memory is mapped
_KINDS = {"[eventfd]": "eventfd", "[eventpoll]": "eventpoll", "[pidfd]": "pidfd", "[timerfd]": "timerfd"}


def look_for_standstill(roots: Sequence[int], include_roots: bool, earlier: bytes, budget_s: float = 2.0) -> Seen:
    """Look at a tree, and compare it with an earlier look.

    Args:
        roots: pids whose trees are looked at.
        include_roots: whether the roots belong to the tree (guards do not).
        earlier: `seen` of the look before; empty for a first one.
        budget_s: the longest time for the readings of /proc.

    Returns:
        What was seen, for the next look; the waits, if both looks together are a proof; or why there can be none.
    """
    look = look_at_tree(roots, include_roots, budget_s)
    first = pickle.loads(earlier) if earlier else look  # a first look is judged too: most trees can go on
    judged = prove(first, look)
    if not isinstance(judged, Proof):
        return Seen(why=judged)
    return Seen(pickle.dumps(look), judged.waits if earlier else ())


def look_at_tree(roots: Sequence[int], include_roots: bool, budget_s: float = 2.0) -> TreeLook:
    """Look at a tree once.

    Args:
        roots: pids whose trees are looked at.
        include_roots: whether the roots belong to the tree.
        budget_s: the longest time for all of it.

    Returns:
        What was seen; `refused`, if it could not be read as a whole.

    Example:
        >>> look_at_tree([os.getpid()], True).refused != ""  # this thread runs
        True
    """
    end_s = time.monotonic() + budget_s
    if _hides_processes(read_mounts()):
        return TreeLook(refused="/proc is mounted with hidepid, and may hide processes of the tree")
    members = _members(roots, include_roots)
    if len(members) > _MAX_PROCESSES:
        return TreeLook(refused=f"the tree has more than {_MAX_PROCESSES} processes")
    tree = _Tree()
    left = _unread(members, tree.read_process, end_s)
    look = TreeLook(tuple(tree.processes), refused=tree.refused)
    if not look.refused and left:
        look = replace(look, refused=f"pid {left[0]} could not be read in time")
    if objection_to(look):
        return look
    if left := _unread(members, tree.read_files, end_s):
        return replace(look, refused=f"the descriptors of pid {left[0]} could not be read")
    if tree.refused:
        return replace(look, refused=tree.refused)
    look = replace(look, processes=tuple(replace(each, files=tree.files[each.pid]) for each in look.processes))
    if objection_to(look):
        return look
    if left := _unread(members, tree.read_maps, end_s):
        return replace(look, refused=f"the memory map of pid {left[0]} could not be read")
    if tree.refused:
        return replace(look, refused=tree.refused)
    look = replace(
        look, processes=tuple(replace(each, asynchronous_io=tree.aio[each.pid]) for each in look.processes)
    )  # fmt: skip
    wanted = wanted_around(look)
    # A tree below a guard has nothing open from before that this program has not open too.
    look = replace(look, around=look_around(look, wanted, inherits=include_roots, end_s=end_s))
    if _members(roots, include_roots) != members:
        return replace(look, refused="a process came or went during the look")
    return look


def _hides_processes(mounts: Sequence[Mount]) -> bool:
    on_proc = [mount.options for mount in mounts if mount.mount_point == "/proc"]
    hidden = {option for option in (on_proc[-1] if on_proc else ()) if option.startswith("hidepid=")}
    return not on_proc or bool(hidden - {"hidepid=0", "hidepid=off"})


def _members(roots: Sequence[int], include_roots: bool) -> dict[int, tuple[int, int]]:
    """The processes of a tree by pid, each with start time and parent."""
    found = {pid: stat for pid, stat in descendants(*roots).items() if pid not in roots}
    if include_roots:
        found |= {pid: stat for pid in roots if (stat := read_stat(pid)) is not None}
    return {pid: (stat.start_ticks, stat.parent) for pid, stat in found.items() if stat.state not in "ZXx"}


def _unread(members: Mapping[int, tuple[int, int]], read: Callable[[int, int, int], bool], end_s: float) -> list[int]:
    """Read something of each process, and list those of which it could not be read in time."""
    done = read_each(
        members, lambda pid: read(pid, *members[pid]), each_s=_EACH_S, total_s=max(0.0, end_s - time.monotonic())
    )
    return [pid for pid in members if not done.get(pid)]


class _Tree:
    """What has been read of a tree; the methods are called in a thread that may be left behind."""

    def __init__(self) -> None:
        self.processes: list[TreeProcess] = []
        self.files: dict[int, dict[int, Descriptor]] = {}
        self.aio: dict[int, bool] = {}
        self.refused = ""
        self._threads, self._files = 0, 0

    def read_process(self, pid: int, start_ticks: int, parent: int) -> bool:
        """Read its threads, unless an earlier one has shown that the tree can go on."""
        if not self.refused and (found := _read_process(pid, start_ticks, parent)) is not None:
            self._threads += len(found.threads)
            if self._threads > _MAX_THREADS:
                self.refused = f"the tree has more than {_MAX_THREADS} threads"
            elif found.threads:
                self.refused = objection_to(TreeLook((found,)))
            self.processes.append(found)
        return True

    def read_files(self, pid: int, start_ticks: int, parent: int) -> bool:
        """Read its descriptors; false if they may not be read, or are too many."""
        try:
            self.files[pid] = _read_files(home_of(pid), _MAX_FILES - self._files)
            if other_tables(pid):
                self.refused = f"pid {pid} has a thread that has descriptors of its own"
        except OSError:
            return False
        self._files += len(self.files[pid])
        return self._files < _MAX_FILES

    def read_maps(self, pid: int, start_ticks: int, parent: int) -> bool:
        """Read whether it has set up asynchronous I/O or the like, which need no descriptor."""
        text = read_proc(f"{home_of(pid)}/maps", _MAX_MAPS)
        self.aio[pid] = _SETS_EVENTFDS.search(text) is not None
        if _IO_URING in text:
            self.refused = f"pid {pid} has an io_uring"
        return bool(text)


def _read_process(pid: int, start_ticks: int, parent: int) -> TreeProcess | None:
    status = read_status(f"/proc/{pid}/status")
    if not status:
        return None
    try:
        tids = [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return None
    threads = []
    for tid in tids:
        thread = _read_thread(pid, tid)
        if thread is not None and thread.state not in "ZX":
            threads.append(thread)
            if thread.state != "S" or len(threads) > _MAX_THREADS:
                break
    return TreeProcess(
        pid,
        start_ticks,
        parent,
        os.fsdecode(status[b"Name"]),
        int(status[b"SigCgt"], 16),
        _has_timers(pid),
        tuple(threads),
    )


def _has_timers(pid: int) -> bool | None:
    """Say whether a process has a POSIX timer; None if that cannot be read."""
    try:
        with open(f"/proc/{pid}/timers", "rb") as file:
            return bool(file.read(1))
    except OSError:
        return None


def _read_thread(pid: int, tid: int) -> TreeThread | None:
    here = f"/proc/{pid}/task/{tid}"
    status = read_status(f"{here}/status")
    if not status:
        return None
    state = status[b"State"][:1].decode()
    if state != "S":
        return TreeThread(tid, state)
    words = read_proc(f"{here}/syscall").split()
    call, stack_pointer = "", 0
    arguments: tuple[int, ...] = ()
    if len(words) == 9:
        call = call_name(int(words[0]))
        arguments, stack_pointer = tuple(int(word, 16) for word in words[1:7]), int(words[7], 16)
    return TreeThread(
        tid,
        state,
        call,
        arguments,
        stack_pointer,
        os.fsdecode(read_proc(f"{here}/wchan")),
        (int(status[b"voluntary_ctxt_switches"]), int(status[b"nonvoluntary_ctxt_switches"])),
        int(status[b"TracerPid"]),
        _read_polled(pid, call, arguments),
    )


def _read_polled(pid: int, call: str, arguments: tuple[int, ...]) -> tuple[int, ...] | None:
    """The descriptors of a poll or select; empty for another call, None if they cannot be read or are too many."""
    if call in ("poll", "ppoll"):
        count = arguments[1] & 0xFFFFFFFF
        if count > _MAX_POLLED:
            return None
        raw = read_memory(pid, arguments[0], 8 * count) if count else b""
        return tuple(fd for fd, _, _ in struct.iter_unpack("=ihh", raw) if fd >= 0) if len(raw) == 8 * count else None
    if call in ("select", "pselect6"):
        highest = arguments[0] & 0xFFFFFFFF
        if highest > _MAX_POLLED:
            return None
        size, chosen = (highest + 63) // 64 * 8, set[int]()
        for address in filter(None, arguments[1:4]):
            raw = read_memory(pid, address, size)
            if len(raw) != size:
                return None
            chosen.update(bit for bit in range(highest) if raw[bit // 8] >> bit % 8 & 1)
        return tuple(sorted(chosen))
    return ()


def _read_files(home: str, most: int) -> dict[int, Descriptor]:
    found = {}
    for number in os.listdir(f"{home}/fd")[: most + 1]:
        try:
            target = os.readlink(f"{home}/fd/{number}")
        except FileNotFoundError:  # closed meanwhile: the second look will show that a thread has run
            continue
        found[int(number)] = _describe(home, int(number), target)
    return found


def _describe(home: str, fd: int, target: str) -> Descriptor:
    kind = _KINDS.get(target.removeprefix("anon_inode:")) or ("pidfd" if target.startswith("pidfd:") else "")
    prefix, bracket, rest = target.partition(":[")
    inode = int(rest.rstrip("]")) if bracket and rest.rstrip("]").isdigit() else None
    if not kind and prefix != "pipe":
        return Descriptor(target, inode=inode)
    info = os.fsdecode(read_proc(f"{home}/fdinfo/{fd}", 1 << 22))
    lines = dict(re.findall(r"^([\w-]+):\s*(.*)$", info, re.M))
    flags = int(lines.get("flags", "0"), 8) & os.O_ACCMODE
    access = {os.O_RDONLY: "r", os.O_WRONLY: "w"}.get(flags, "rw")
    inode = inode or int(lines.get("ino", -1))
    if kind == "eventfd":
        return Descriptor(f"eventfd:{lines['eventfd-id']}" if "eventfd-id" in lines else target, access, inode)
    if kind == "pidfd":
        return Descriptor(f"pidfd:{lines.get('Pid', '-1')}", access, inode)
    if kind == "timerfd":
        return Descriptor("timerfd", access, inode, armed=lines.get("it_value") != "(0, 0)")
    if kind == "eventpoll":
        pairs = re.findall(r"^tfd:\s*(\d+) .*\bino:([0-9a-f]+)", info, re.M)
        whole = len(pairs) == info.count("tfd:") and len(pairs) <= _MAX_POLLED
        return Descriptor(
            "eventpoll", access, inode, watched=tuple((int(n), int(i, 16)) for n, i in pairs) if whole else None
        )
    return Descriptor(target, access, inode)
