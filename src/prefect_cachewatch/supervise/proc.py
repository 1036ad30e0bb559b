"""Reads /proc and sends signals that cannot reach the wrong process; standard library only.

A process is identified by pid and start time; a signal goes through a pidfd after both were compared.
"""

from __future__ import annotations

import os
import signal
from collections import namedtuple

from prefect_cachewatch.supervise.turns import is_stuck, read_each

TYPE_CHECKING = False  # importing typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NamedTuple

    class ProcessStat(NamedTuple):
        """State letter (of a living thread, if there is one), parent and start time (clock ticks since boot)."""

        state: str
        parent: int
        start_ticks: int
else:
    ProcessStat = namedtuple("ProcessStat", ("state", "parent", "start_ticks"))
    ProcessStat.__doc__ = "State letter, parent and start time (clock ticks since boot) of a process."

RUN_TOKEN = "CACHEWATCH_ID"
_PR_SET_CHILD_SUBREAPER = 36
_DEAD = frozenset("ZXx")
_ARGV_MAX, _READ_MAX = 1 << 16, 1 << 22
_KNOWN_MAX = 1 << 16

_known: dict[int, int] = {}  # pid -> start time as last read, for when it cannot be read


def read_stat(pid: int) -> ProcessStat | None:
    """Read a process's state, parent and start time, without waiting for a process that hangs.

    Args:
        pid: the process.

    Returns:
        The reading; None if there is no such process.

    Example:
        >>> read_stat(os.getpid()).parent == os.getppid()
        True
    """
    return read_stats((pid,)).get(pid)


def read_stats(pids: Iterable[int]) -> dict[int, ProcessStat]:
    """Read state, parent and start time of several processes, without waiting for one that hangs.

    A process that hangs in exec, on a file system that does not answer, blocks every reader of its /proc/PID/stat
    (Linux 6.18). It is read from files that do not block, and gets the start time that was read before it hung, or -1.

    Args:
        pids: the processes.

    Returns:
        Pid to reading, for those that exist.

    Example:
        >>> sorted(read_stats([os.getpid(), os.getppid()])) == sorted([os.getpid(), os.getppid()])
        True
    """
    asked = list(pids)
    me = os.getpid()
    found = {pid: _read_stat(pid) for pid in asked if pid == me}
    if others := [pid for pid in asked if pid != me]:
        found |= read_each(others, _read_stat, each_s=0.1, total_s=20.0, alone=True)
    if len(_known) > _KNOWN_MAX:
        _known.clear()
    answer = {}
    for pid in asked:
        now = found[pid] if pid in found else _read_status(pid)
        if now is not None:
            answer[pid] = now
            if now.start_ticks != -1:
                _known[pid] = now.start_ticks
        elif not is_stuck(pid):
            _known.pop(pid, None)
    return answer


def _read_stat(pid: int) -> ProcessStat | None:
    fields = stat_fields(f"/proc/{pid}/stat")
    if not fields:
        return None
    state = fields[0].decode()
    if state in _DEAD and int(fields[17]) > 1:  # num_threads: the main thread has ended, but others may run and write
        living = living_thread(pid)
        state = living[1] if living else state
    return ProcessStat(state, int(fields[1]), int(fields[19]))


def _read_status(pid: int) -> ProcessStat | None:
    """Read the same from /proc/PID/status, which takes no lock of the process but has no start time."""
    lines = read_status(f"/proc/{pid}/status")
    return ProcessStat(lines[b"State"][:1].decode(), int(lines[b"PPid"]), _known.get(pid, -1)) if lines else None


def stat_fields(path: str) -> list[bytes]:
    """Read the fields of a process's or thread's `stat` from the state on; none if it has gone. May block.

    The name before them stands in parentheses and may hold anything, parentheses too: the last one counts.

    Example:
        >>> int(stat_fields("/proc/self/stat")[1]) == os.getppid()
        True
    """
    text = read_proc(path)
    return text[text.rfind(b")") + 2 :].split()


def read_status(path: str) -> dict[bytes, bytes]:
    """Read a process's or thread's `status`, which never blocks, even if the process hangs; empty if it has gone.

    Example:
        >>> read_status("/proc/self/status")[b"State"]
        b'R (running)'
    """
    return dict(line.split(b":\t", 1) for line in read_proc(path).splitlines() if b":\t" in line)


def living_thread(pid: int) -> tuple[int, str] | None:
    """Find a thread of a process that has not ended.

    Args:
        pid: the process.

    Returns:
        Its identifier and state letter, of the main thread if that lives; None if all have ended.

    Example:
        >>> living_thread(os.getpid())[0] == os.getpid()
        True
    """
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda thread: thread != pid)
    except OSError:
        return None
    for thread in threads:
        fields = stat_fields(f"/proc/{pid}/task/{thread}/stat")
        if fields and (state := fields[0].decode()) not in _DEAD:
            return thread, state
    return None


def process_name(pid: int) -> str:
    """Read a process's bracketed name, which takes no lock of the process; empty if it has gone."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return f"[{os.fsdecode(file.read().strip())}]"
    except OSError:
        return ""


def read_memory_file(pid: int, name: str, limit: int = _READ_MAX) -> bytes:
    """Read cmdline or environ, from a living thread if the main one has ended; may block (see `reading`).

    Args:
        pid: the process.
        name: of the file.
        limit: the most bytes.

    Returns:
        Its content; empty if there is none.

    Raises:
        OSError: reading is not permitted, or it has gone.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            if data := file.read(limit):
                return data
    except ProcessLookupError:
        pass
    # If the main thread has ended, its memory cannot be read, but other threads still have it.
    thread = living_thread(pid)
    if thread is None or thread[0] == pid:
        return b""
    with open(f"/proc/{pid}/task/{thread[0]}/{name}", "rb") as file:
        return file.read(limit)


def is_alive(pid: int, start_ticks: int) -> bool:
    """Say whether this very process, not a later one with its pid, still runs (a zombie does not)."""
    now = read_stat(pid)
    return now is not None and now.start_ticks in (start_ticks, -1) and now.state not in _DEAD


def is_being_killed(pid: int) -> bool:
    """Say whether a SIGKILL is pending for a process that hangs in the kernel or is frozen.

    Example:
        >>> is_being_killed(os.getpid())
        False
    """
    pending = int(read_status(f"/proc/{pid}/status").get(b"SigPnd", b"0"), 16)
    return bool(pending >> (signal.SIGKILL - 1) & 1)


def children(pid: int) -> list[int]:
    """List the children of all threads of a process."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        found.extend(map(int, read_proc(f"/proc/{pid}/task/{thread}/children").split()))
    return found


def lineage(pid: int) -> list[int]:
    """List a process and its ancestors, up to init.

    Example:
        >>> lineage(os.getpid())[:2] == [os.getpid(), os.getppid()]
        True
    """
    found = []
    while pid > 0:
        found.append(pid)
        above = read_stat(pid)
        pid = above.parent if above is not None else 0
    return found


def _parents() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for pid, found in read_stats(int(name) for name in os.listdir("/proc") if name.isdigit()).items():
        below.setdefault(found.parent, []).append(pid)
    return below


def descendants(*roots: int) -> dict[int, ProcessStat]:
    """List all living descendants of processes (zombies left out), parents before children.

    Args:
        roots: the processes; a root is in the result only as a descendant of another one.

    Returns:
        Pid to reading, as of the moment when it was found.

    Example:
        >>> os.getpid() in descendants(os.getppid())
        True
    """
    # Kernels without CONFIG_PROC_CHILDREN, and gVisor, have no `children` files.
    has_files = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
    asked: set[int] = set()
    living: dict[int, ProcessStat] = {}
    while True:
        table = None if has_files else _parents()
        level, known = list(roots), len(asked)
        while level:
            below = [child for pid in level for child in (children(pid) if table is None else table.get(pid, ()))]
            found = read_stats(child for child in below if child not in asked)
            asked.update(below)
            living |= {pid: stat for pid, stat in found.items() if stat.state not in _DEAD}
            level = [child for child in below if child in living]
        # A process that ends during a walk hides its children from it: they move to a process that was read before.
        # So a tree is empty only when a walk finds no process that is new, dead or alive.
        if living or len(asked) == known:
            return living


def send_signal(pid: int, start_ticks: int, signal_number: int) -> bool:
    """Send a signal to this very process.

    Args:
        pid: the process.
        start_ticks: its start time.
        signal_number: the signal.

    Returns:
        Whether it was sent; false if the process has gone or signalling it is not permitted.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        now = read_stat(pid)  # after pidfd_open: from here on the descriptor pins the process
        if now is None or now.start_ticks != start_ticks or now.state in _DEAD:
            return False
        signal.pidfd_send_signal(fd, signal_number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def command_line(pid: int) -> list[str]:
    """Read a process's argv, or its bracketed name where it has none; empty if it has gone. May block (see `reading`)."""
    try:
        words = read_memory_file(pid, "cmdline", _ARGV_MAX).rstrip(b"\0").split(b"\0")
    except OSError:
        return []
    if words and words[0]:
        return [os.fsdecode(word) for word in words]
    return [name] if (name := process_name(pid)) else []


def carried_run_token(pid: int) -> str | None:
    """Read which run a process belongs to, from the environment it was started with. May block (see `reading`).

    Args:
        pid: the process.

    Returns:
        The run's identifier; empty if its environment has none; None if the environment cannot be read, is wiped or not
        set up yet.
    """
    mark = f"{RUN_TOKEN}=".encode()
    try:
        words = read_memory_file(pid, "environ").split(b"\0")
    except OSError:
        return None
    # The first one counts, as with getenv: a run within a run has its own run_token.
    run_token = next((os.fsdecode(word[len(mark) :]) for word in words if word.startswith(mark)), None)
    return "" if run_token is None and any(words) else run_token


def boot_id() -> str:
    """Read the identifier of this boot, without which a pid and start time mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def namespace_of(pid: int | str, kind: str) -> str:
    """Name a namespace of a process, such as `net`; empty if it has gone or may not be asked. May block (see `reading`).

    Example:
        >>> namespace_of("self", "pid") == namespace_of(os.getpid(), "pid") != ""
        True
    """
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def read_proc(path: str, limit: int = 1 << 20) -> bytes:
    """Read a file of /proc, at most `limit` bytes; empty if it has gone or reading is not permitted.

    Example:
        >>> read_proc("/proc/self/comm") != b"", read_proc("/proc/0/comm")
        (True, b'')
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        out = bytearray()
        while len(out) < limit:
            chunk = os.read(fd, min(65536, limit - len(out)))
            if not chunk:
                break
            out += chunk
        return bytes(out)
    except OSError:  # ESRCH: the process ended between open and read
        return b""
    finally:
        os.close(fd)


def signal_name(number: int) -> str:
    """Name a signal.

    Example:
        >>> signal_name(9)
        'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def take_in_orphans() -> bool:
    """Become the parent of what a dead process below this one leaves behind; returns whether the kernel allows it."""
    import ctypes  # noqa: PLC0415 - half a megabyte, which other readers of this module do without

    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) == 0)
