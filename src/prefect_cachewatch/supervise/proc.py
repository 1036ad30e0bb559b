"""Readings from /proc and signals that cannot hit the wrong process; standard library only.

A process is its pid and its start time; signals go through a pidfd after both were compared.
"""

from __future__ import annotations

import os
import signal
from collections import namedtuple

TYPE_CHECKING = False  # typing costs the guards a megabyte; type checkers take this name for true

__all__ = [
    "COOKIE",
    "ProcessStat",
    "boot_id",
    "children",
    "command_line",
    "descendants",
    "find_by_cookie",
    "is_alive",
    "read_stat",
    "send_signal",
]

COOKIE = "CACHEWATCH_ID"
_DEAD = frozenset("ZXx")


if TYPE_CHECKING:
    from typing import NamedTuple

    class ProcessStat(NamedTuple):
        """State letter, parent and start time (clock ticks since boot) of a process."""

        state: str
        parent: int
        start_ticks: int

else:
    ProcessStat = namedtuple("ProcessStat", ("state", "parent", "start_ticks"))
    ProcessStat.__doc__ = "State letter, parent and start time (clock ticks since boot) of a process."


def read_stat(pid: int) -> ProcessStat | None:
    """Read a process's state, parent and start time.

    Args:
        pid: the process.

    Returns:
        The reading; None if there is no such process.

    Example:
        >>> read_stat(os.getpid()).parent == os.getppid()
        True
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may contain anything, parentheses too: fields begin after the last.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessStat(fields[0].decode(), int(fields[1]), int(fields[19]))


def is_alive(pid: int, start_ticks: int) -> bool:
    """Say whether this very process, not a later one with its pid, still runs (a zombie does not)."""
    now = read_stat(pid)
    return now is not None and now.start_ticks == start_ticks and now.state not in _DEAD


def children(pid: int) -> list[int]:
    """List a process's children, of all its threads."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except OSError:
            continue
    return found


def _parents() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := read_stat(int(name))):
            below.setdefault(found.parent, []).append(int(name))
    return below


def descendants(root: int) -> dict[int, ProcessStat]:
    """List all living descendants of a process (zombies left out), parents before children.

    Args:
        root: the process; not in the answer itself.

    Returns:
        Pid to reading, as it was when it was found.

    Example:
        >>> descendants(os.getpid())
        {}
    """
    seen: dict[int, ProcessStat] = {}
    # Kernels without CONFIG_PROC_CHILDREN, and gVisor, have no `children` files.
    table = None if os.path.exists(f"/proc/self/task/{os.getpid()}/children") else _parents()
    queue = [root]
    while queue:
        pid = queue.pop()
        for child in children(pid) if table is None else table.get(pid, ()):
            if child not in seen and (found := read_stat(child)):
                seen[child] = found
                queue.append(child)
    return {pid: found for pid, found in seen.items() if found.state not in _DEAD}


def send_signal(pid: int, start_ticks: int, signal_number: int) -> bool:
    """Send a signal to this very process.

    Args:
        pid: the process.
        start_ticks: its start time.
        signal_number: the signal.

    Returns:
        Whether it was sent; false if the process has gone or may not be signalled.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        now = read_stat(pid)  # after pidfd_open: from here on the descriptor pins who it is
        if now is None or now.start_ticks != start_ticks or now.state in _DEAD:
            return False
        signal.pidfd_send_signal(fd, signal_number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def command_line(pid: int) -> list[str]:
    """Read a process's argv, or its bracketed name where it has none; empty if it has gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").split(b"\0")
        if words and words[0]:
            return [os.fsdecode(word) for word in words]
        with open(f"/proc/{pid}/comm", "rb") as file:
            return [f"[{os.fsdecode(file.read().strip())}]"]
    except OSError:
        return []


def find_by_cookie(cookie: str) -> dict[int, ProcessStat]:
    """Find living processes that carry a run's cookie in the environment they were started with.

    Args:
        cookie: the run's identifier.

    Returns:
        Pid to reading. A process that wiped its environment, or belongs to another user, is not found.
    """
    mark = f"{COOKIE}={cookie}".encode()
    found: dict[int, ProcessStat] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = mark in file.read().split(b"\0")
        except OSError:
            continue
        if marked and (status := read_stat(int(name))) and status.state not in _DEAD:
            found[int(name)] = status
    return found


def boot_id() -> str:
    """Read the identifier of this boot, without which a pid and start time mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
