"""Reads data of other processes that may never arrive, each with a deadline.

A process that unmaps a file on a file system that hangs holds the lock of its memory map while it waits; a process that
hangs in exec holds another lock. Reads of /proc/PID/cmdline, environ, maps, mem, io, syscall and stack wait for these
locks, and in newer kernels (6.18) so do stat, wchan and all links (cwd, exe, root, fd/N, ns/*). So these files are read
in a thread that is abandoned when it is stuck (`turns`); `read_stat` does so by itself. Standard library only, without
`threading`.
"""

from __future__ import annotations

import os

from prefect_cachewatch.supervise.proc import (
    ProcessStat,
    carried_run_token,
    command_line,
    process_name,
    read_stats,
)
from prefect_cachewatch.supervise.turns import read_each

TYPE_CHECKING = False  # importing typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any

_WORDS_MAX, _WORD_MAX = 32, 4096


def argv_within(pid: int, timeout_s: float = 1.0) -> list[str]:
    """Read a process's argv with a deadline.

    Args:
        pid: the process.
        timeout_s: the longest wait.

    Returns:
        Its argv; its bracketed name if the argv does not arrive in time; empty if it has gone.

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
        most: the most processes described.
        total_s: the longest time for all argvs together; a process without one by then has its bracketed name.

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


def find_by_run_token(
    run_token: str, since_ticks: int = 0, total_s: float = 3.0, others: set[tuple[int, int]] | None = None
) -> dict[int, ProcessStat]:
    """Find living processes that carry a run's token in the environment they were started with.

    Args:
        run_token: the run's identifier.
        since_ticks: processes started before this (clock ticks since boot) do not belong to the run.
        total_s: the longest time, in seconds.
        others: (pid, start time) of processes without a run token, which are not read again; grows. That makes a further
            look quick, so that a program which keeps moving to a new process cannot stay ahead of it.

    Returns:
        Pid to reading. A process that wiped its environment, belongs to another user or cannot be read is not found.
    """
    born = read_stats(int(name) for name in os.listdir("/proc") if name.isdigit())
    others = set() if others is None else others
    others &= {(pid, found.start_ticks) for pid, found in born.items()}
    asked = [
        pid
        for pid, found in born.items()
        if found.start_ticks >= since_ticks and found.state not in "ZXx" and (pid, found.start_ticks) not in others
    ]
    run_tokens = read_each(asked, carried_run_token, each_s=0.25, total_s=total_s)
    others.update((pid, born[pid].start_ticks) for pid, carried in run_tokens.items() if carried == "")
    marked = read_stats(pid for pid in asked if run_tokens.get(pid) == run_token)
    return {
        pid: found
        for pid, found in marked.items()
        if found.start_ticks == born[pid].start_ticks and found.state not in "ZXx"
    }
