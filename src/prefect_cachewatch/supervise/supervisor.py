"""What a watch needs of whoever runs the generator: a guard, an engine's container, an adopted process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.errors import GuardError

__all__ = ["Launch", "RunningServer", "StopReport", "Supervisor", "exit_of", "wait_for_report"]


@dataclass(frozen=True)
class Launch:
    """What is to be started, and how.

    Attributes:
        argv: the command, found through PATH of `env`.
        env: its whole environment.
        cwd: its working directory, None for `/`.
        stdio: descriptors for its standard input, output and error; the caller closes them after `start`.
        grace_s: seconds between SIGTERM and SIGKILL whenever the tree has to be stopped.
        cookie: identifier of the run, put into the environment as CACHEWATCH_ID.
        wait_for: `tree` or `leader` (see `CacheJob.wait_for`).
        hold: descriptors (locks) that stay open until the tree is gone.
        may_release: whether it may be handed over (`Supervisor.release`) when it is ready.
        foreground: whether it stays in this process's session and process group, with its terminal.
        files: who removes and reads state files in this process's stead.
        has_state: whether there is to be a state file; not where its directory does not answer.
        tell: told in a sentence of each step of a guard, orphans that it reaps among them; in a thread of its own.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None
    stdio: tuple[int, int, int]
    grace_s: float
    cookie: str
    wait_for: str = "tree"
    hold: Sequence[int] = ()
    may_release: bool = False
    foreground: bool = False
    files: Files = field(default_factory=InPlace, repr=False)
    has_state: bool = True
    tell: Callable[[str], None] | None = None


@dataclass(frozen=True)
class StopReport:
    """How the tree ended.

    `why` is exited, stop, flow_died, control_closed, guard_signalled, outer_guard_died, inner_guard_died,
    guards_died, or released: it was handed over and goes on. `terminated` ended after SIGTERM, `killed` needed SIGKILL, `survivors` could not be
    killed; each entry has pid, start_ticks, state and argv.
    """

    why: str
    exit_code: int | None
    signal: int | None
    gone_after_s: float
    terminated: list[dict[str, Any]] = field(default_factory=list)
    killed: list[dict[str, Any]] = field(default_factory=list)
    survivors: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class RunningServer:
    """Who goes on after a hand-over, by what identifies it for good.

    Attributes:
        kind: a process tree of this host, or a container.
        pid: of the first process on this host; None if it is not known.
        start_ticks: its start time, in clock ticks since boot.
        tree: (pid, start time) of every process of it, the first one included.
        container_id: of a container.
        engine_url: of the engine that runs it.
    """

    kind: Literal["process", "container"]
    pid: int | None
    start_ticks: int | None = None
    tree: tuple[tuple[int, int], ...] = ()
    container_id: str | None = None
    engine_url: str | None = None


class Supervisor(Protocol):
    """Starts the generator, knows when nothing of it is left, and stops it; no method blocks longer than it is told.

    Attributes:
        pid: of the generator's first process on this host; None before `start`, or where it is not known.
        root_pids: processes at the top of the generator's tree, for evidence.
        includes_roots: whether these are the generator's own, rather than their parents.
        leader_exit: exit code and signal of the first process, once it has ended while others went on.
        gone: set when nothing is left, or when no report can be had any more.
        report: how it ended.
        notes: what else is worth saying in the report.
    """

    pid: int | None
    root_pids: list[int]
    includes_roots: bool
    leader_exit: tuple[int | None, int | None] | None
    gone: threading.Event
    report: StopReport | None
    notes: list[str]

    def start(self) -> None:
        """Start it; raises CachewatchError, and then nothing is left running."""

    def wait(self, timeout_s: float) -> StopReport | None:
        """Wait until nothing is left, at most so long; None if something still is."""

    def stop(self, grace_s: float | None = None) -> None:
        """Ask for it to be stopped; returns at once."""

    def freeze(self, timeout_s: float) -> list[int]:
        """Keep its processes from running until `stop`; returns their pids, empty if that did not work in time."""
        ...

    def running(self) -> RunningServer | None:
        """Say who would go on after a release; None if nothing is left."""

    def release(self, timeout_s: float) -> str | None:
        """Let go of what runs, so that it outlives this process and its guard; the only way to it.

        Returns None when it was let go: `report` says `released`, and `gone` is set. Otherwise why it was not;
        then it is still guarded, or has ended.
        """

    def close(self) -> None:
        """Let go of what was held; what still runs is stopped."""


def exit_of(status: int | None) -> tuple[int | None, int | None]:
    """Split a status of wait(2) into exit code and signal; both None where it is not known.

    Example:
        >>> exit_of(7 << 8), exit_of(9), exit_of(None)
        ((7, None), (None, 9), (None, None))
    """
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def wait_for_report(supervisor: Supervisor, timeout_s: float) -> StopReport | None:
    """Wait until nothing is left, at most so long.

    Args:
        supervisor: of the generator.
        timeout_s: the longest wait.

    Returns:
        How it ended, or None if it has not yet.

    Raises:
        GuardError: the guards died and what is left could not be found out.
    """
    report = supervisor.wait(timeout_s)
    if report is None and supervisor.gone.is_set():
        report = supervisor.report  # it came just after the wait was over
        if report is None:
            raise GuardError("the guard processes ended without a report: look for leftovers of the command")
    return report
