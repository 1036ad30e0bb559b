"""The janitor: finds the remains of dead runs, by run token and by (pid, start time, boot id), and stops them.

A run is dead when its state file is no longer locked: both guards have gone. A file that is not trusted (foreign,
damaged, a link, of another machine) is reported and never acted on. A process whose start time differs from the
recorded one is a different process, and is never signalled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prefect_cachewatch.common.locks import try_lock
from prefect_cachewatch.common.removal import look, remove_entry
from prefect_cachewatch.common.text import for_terminal, show_process
from prefect_cachewatch.supervise.filelocks import find_holders
from prefect_cachewatch.supervise.proc import (
    ProcessStat,
    boot_id,
    descendants,
    is_alive,
    is_being_killed,
    lineage,
    process_name,
    read_stats,
)
from prefect_cachewatch.supervise.reading import find_by_run_token
from prefect_cachewatch.supervise.run_files import (
    SUFFIX,
    RunFile,
    RunFileRefused,
    machine_id,
    parse_run_file,
    pid_namespace,
    read_each_file,
    runs_directory,
)
from prefect_cachewatch.supervise.stop_tree import KILL_DEADLINE_S, TreeStop
from prefect_cachewatch.supervise.tending import GUARD_NAME, Tended

_HELD_S = 2.0
_KILLED_BEFORE_S = 0.5  # for processes that an earlier SIGKILL has not ended: they hang or are frozen


@dataclass(frozen=True)
class Leftover:
    """A process of a dead run; `killed` is false if it still exists."""

    run_token: str
    pid: int
    start_ticks: int
    state: str
    argv: tuple[str, ...]
    killed: bool


@dataclass(frozen=True)
class Refusal:
    """A file or directory that was left alone, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class JanitorReport:
    """The result of one look.

    `running` runs are guarded and in order; `removed` state files described runs of which nothing is left.
    """

    directory: str
    running: int = 0
    removed: int = 0
    leftovers: tuple[Leftover, ...] = field(default=())
    refusals: tuple[Refusal, ...] = field(default=())

    @property
    def survivors(self) -> tuple[Leftover, ...]:
        """Leftovers that could not be killed."""
        return tuple(one for one in self.leftovers if not one.killed)


def clear_leftovers(directory: str | None = None) -> JanitorReport:
    """Look through this user's state files and stop the remaining processes of dead runs.

    It sends SIGKILL without a grace period: the command itself got SIGKILL when its guard died, and the rest of the
    tree has lost its parent. All runs together have `KILL_DEADLINE_S` to end.

    Args:
        directory: of the state files; default `runs_directory()`.

    Returns:
        What was found and done. A missing directory counts as empty.

    Example:
        >>> clear_leftovers("/nonexistent/runs").leftovers
        ()
    """
    directory = directory or runs_directory()
    give_up_s = time.monotonic() + KILL_DEADLINE_S
    cleared, refused = read_each_file(
        directory, SUFFIX, lambda name, data, fd, here: _clear(name, data, fd, here, give_up_s)
    )
    states = [state for state, _ in cleared]
    leftovers = tuple(one for _, found in cleared for one in found)
    refusals = tuple(Refusal(path, why) for path, why in refused)
    return JanitorReport(directory, states.count("running"), states.count("removed"), leftovers, refusals)


def stop_leftovers(
    run_token: str,
    recorded: Iterable[tuple[int, int]],
    deadline_s: float,
    more: Callable[[], dict[int, ProcessStat]] = dict,
) -> list[Leftover]:
    """Send SIGKILL to every process of a run whose guards are dead, until none is found.

    Args:
        run_token: the run's identifier, searched for in environments.
        recorded: (pid, start time) of processes known to belong to it.
        deadline_s: monotonic time at which to give up.
        more: lists further processes of it.

    Returns:
        What was found; a process that still exists has `killed` false.
    """
    look = follow_run(run_token, set(recorded))
    stop = TreeStop(lambda: look() | more(), longest_nap_s=0.05)
    left = {(who["pid"], who["start_ticks"]): who["state"] for who in stop.sweep(deadline_s)}
    return [leftover_of(run_token, who, left.get((who["pid"], who["start_ticks"]))) for who in stop.killed]


def follow_run(run_token: str, known: set[tuple[int, int]]) -> Callable[[], dict[int, ProcessStat]]:
    """Make a function that lists a run's living processes and remembers those it has seen.

    Args:
        run_token: the run's identifier.
        known: (pid, start time) of processes known to belong to it; grows with each look.

    Returns:
        The function.
    """

    others: set[tuple[int, int]] = set()

    def look() -> dict[int, ProcessStat]:
        living = living_processes(run_token, known, others)
        known.update((pid, found.start_ticks) for pid, found in living.items())
        return living

    return look


def describe_leftovers(report: JanitorReport) -> list[str]:
    """Describe what the janitor found, in one sentence each; what is in order is left out.

    Args:
        report: of one look.

    Returns:
        Lines, harmless for a terminal.

    Example:
        >>> describe_leftovers(JanitorReport("/runs", running=3))
        []
    """
    lines = []
    for one in report.leftovers:
        what = show_process(one.pid, one.argv, 120)
        if one.killed:
            lines.append(f"{what} was left over from a run whose guards had died, and was killed")
        else:
            lines.append(
                f"{what} is left over from a run whose guards have died, and could not be killed (state {one.state}): "
                "look what it waits for"
            )
    return lines + [
        f"state file {for_terminal(refusal.path)} was left alone, since {refusal.reason}: remove it if it is not wanted"
        for refusal in report.refusals
    ]


def _clear(name: str, data: bytes, fd: int, here: int, give_up_s: float) -> tuple[str, list[Leftover]]:
    if not try_lock(fd):
        if not _go_on(name, data, fd, give_up_s):
            return "running", []
        data = os.pread(fd, 1 << 20, 0)  # the guards may have added entries
    if os.fstat(fd).st_nlink == 0:
        raise FileNotFoundError(name)
    run = parse_run_file(data, name)
    if run.machine != machine_id():
        raise RunFileRefused("it describes a run on another machine: look there")
    if run.boot_id != boot_id():
        # Its processes ended with their kernel; their pids now belong to other processes.
        return _remove(name, here, fd), []
    if run.pid_namespace != pid_namespace():
        raise RunFileRefused("it describes a run in another pid namespace (container): look there")
    found = stop_leftovers(run.run_token, run.tree, _deadline(run, give_up_s))
    if all(one.killed for one in found):
        return _remove(name, here, fd), found
    return "kept", found


def _deadline(run: RunFile, give_up_s: float) -> float:
    """Return how long to wait for a run's processes to end: each start of a job waits for that."""
    left = [pid for pid, ticks in run.tree if is_alive(pid, ticks)]
    if left and all(map(is_being_killed, left)):
        return min(give_up_s, time.monotonic() + _KILLED_BEFORE_S)
    return give_up_s


def _remove(name: str, here: int, fd: int) -> str:
    remove_entry(here, name, look(fd))  # the file that was read and is locked, not a later one of that name
    return "removed"


def leftover_of(run_token: str, who: dict[str, Any], state: str | None) -> Leftover:
    """Make the report entry of one process that a stop found.

    Args:
        run_token: the run's identifier.
        who: pid, start_ticks, state and argv.
        state: its state now, if it still exists.

    Returns:
        The entry.
    """
    there = state is not None
    return Leftover(
        run_token,
        who["pid"],
        who["start_ticks"],
        state if state else who["state"],
        tuple(who["argv"]),
        killed=not there,
    )


def _go_on(name: str, data: bytes, fd: int, give_up_s: float) -> bool:
    """Continue the stopped guards of a run whose flow process has died; return whether none is left.

    Their lock shows only that they are alive. Guards that are not stopped are working, however long their grace period
    is.
    """
    try:
        run = parse_run_file(data, name)
    except RunFileRefused:
        return False  # a lock of another program, or of another version's guards
    here = run.boot_id == boot_id() and run.machine == machine_id() and run.pid_namespace == pid_namespace()
    if not here or is_alive(*run.flow):
        return False  # the flow process handles them itself
    pids = [holder.pid for holder in find_holders(os.fstat(fd)) if process_name(holder.pid) == GUARD_NAME]
    guards = [tended for tended in map(Tended, pids) if tended.is_held]
    while guards and time.monotonic() < give_up_s:
        for tended in guards:
            tended.look(_HELD_S)
        time.sleep(0.05)
        if try_lock(fd):
            return True
    return False


def living_processes(
    run_token: str, known: set[tuple[int, int]], others: set[tuple[int, int]] | None = None
) -> dict[int, ProcessStat]:
    """Find the processes of a run: with its run_token or a recorded identity, and all their descendants.

    Args:
        run_token: the run's identifier.
        known: (pid, start time) of processes known to belong to it.
        others: of processes known not to; see `find_by_run_token`.

    Returns:
        Pid to reading; never this process or one above it.
    """
    living = find_by_run_token(run_token, others=others)
    there = read_stats({pid for pid, _ in known})
    living |= {pid: there[pid] for pid, ticks in known if pid in there and there[pid].start_ticks == ticks}
    living = {pid: found for pid, found in living.items() if found.state not in "ZXx"}
    living |= descendants(*living)
    for pid in lineage(os.getpid()):
        living.pop(pid, None)
    return living
