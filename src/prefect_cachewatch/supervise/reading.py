"""Readings of other processes that may never return, each with a deadline; standard library only, no import of threading.

Whoever unmaps a file on a file system that hangs holds the lock of its memory map while it waits, and who replaces its
program in that state holds another one: /proc/PID/cmdline, environ, maps, mem, io, syscall, stack, and from some kernel
on (6.18) stat, wchan and all links too (cwd, exe, root, fd/N, ns/*) wait for these. So they are read in a thread that is left behind when it is stuck (`turns`); `read_stat`
does so by itself.
"""

from __future__ import annotations

import os

from prefect_cachewatch.supervise.proc import (
    ProcessStat,
    carried_cookie,
    command_line,
    process_name,
    read_stats,
)
from prefect_cachewatch.supervise.turns import is_stuck, read_each

TYPE_CHECKING = False  # typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any

__all__ = ["argv_within", "find_by_cookie", "is_stuck", "name_processes", "read_each"]

_WORDS_MAX, _WORD_MAX = 32, 4096


def argv_within(pid: int, timeout_s: float = 1.0) -> list[str]:
    """Read a process's argv without waiting for longer.

    Args:
        pid: the process.
        timeout_s: the longest wait.

    Returns:
        Its argv; its bracketed name where there is none in time; empty if it has gone.

    Example:
        >>> argv_within(os.getpid()) == command_line(os.getpid())
        True
    """
    found = read_each([pid], command_line, each_s=timeout_s, total_s=timeout_s)
    return found[pid] if pid in found else _name_alone(pid)


def _name_alone(pid: int) -> list[str]:
    name = process_name(pid)
    return [name] if name else []


def name_processes(tree: dict[int, ProcessStat], most: int = 256, total_s: float = 0.1) -> list[dict[str, Any]]:
    """Describe processes for a report: pid, start time, state letter, argv.

    Args:
        tree: pid to reading.
        most: so many are described.
        total_s: how long all their argvs may take; those that are not there by then have their bracketed name.

    Returns:
        One entry a process.
    """
    chosen = dict(list(tree.items())[:most])
    argv = read_each(chosen, command_line, each_s=min(0.05, total_s), total_s=total_s) if chosen else {}
    return [
        {
            "pid": pid,
            "start_ticks": found.start_ticks,
            "state": found.state,
            "argv": [word[:_WORD_MAX] for word in argv.get(pid, [])[:_WORDS_MAX]] or _name_alone(pid),
        }
        for pid, found in chosen.items()
    ]


def find_by_cookie(
    cookie: str, since_ticks: int = 0, total_s: float = 3.0, others: set[tuple[int, int]] | None = None
) -> dict[int, ProcessStat]:
    """Find living processes that carry a run's cookie in the environment they were started with.

    Args:
        cookie: the run's identifier.
        since_ticks: those that were started before it (clock ticks since boot) are none of the run's.
        total_s: the longest time it may take.
        others: (pid, start time) of processes that carry none, which are not asked again; grows. A further look is soon
            done then, and whoever goes on in a new process every moment does not stay ahead of it.

    Returns:
        Pid to reading. A process that wiped its environment, that belongs to another user or does not let itself be
        read is not found.
    """
    born = read_stats(int(name) for name in os.listdir("/proc") if name.isdigit())
    others = set() if others is None else others
    others &= {(pid, found.start_ticks) for pid, found in born.items()}
    asked = [
        pid
        for pid, found in born.items()
        if found.start_ticks >= since_ticks and found.state not in "ZXx" and (pid, found.start_ticks) not in others
    ]
    cookies = read_each(asked, carried_cookie, each_s=0.25, total_s=total_s)
    others.update((pid, born[pid].start_ticks) for pid, carried in cookies.items() if carried == "")
    marked = read_stats(pid for pid in asked if cookies.get(pid) == cookie)
    return {
        pid: found
        for pid, found in marked.items()
        if found.start_ticks == born[pid].start_ticks and found.state not in "ZXx"
    }
