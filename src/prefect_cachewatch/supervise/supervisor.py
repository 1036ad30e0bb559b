"""The interface between a watch and the generator's supervisor: a guard, an engine's container, an adopted process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.text import show_argv
from prefect_cachewatch.errors import GuardError
from prefect_cachewatch.supervise.proc import is_alive, read_stat

_LOOK_EVERY_S = 0.5
_NAMED_MAX = 5


@dataclass(frozen=True)
class Alone:
    """What the guard of an engine does if the engine goes silent.

    Attributes:
        front: descriptor of the engine's connection to its front, which the guard tells then.
        silent_s: after so long without a beat, of which a machine that was suspended counts little.
        stops: whether the tree is stopped then; else it is only said.
    """

    front: int
    silent_s: float
    stops: bool = True


@dataclass(frozen=True)
class Launch:
    """What to start, and how.

    Attributes:
        argv: the command, found through PATH of `env`.
        env: its whole environment.
        cwd: its working directory, None for `/`.
        stdio: descriptors for its standard input, output and error; the caller closes them after `start`.
        grace_s: seconds between SIGTERM and SIGKILL when the tree has to be stopped.
        run_token: identifier of the run, put into the environment as CACHEWATCH_ID.
        wait_for: `tree` or `leader` (see `CacheJob.wait_for`).
        hold: descriptors (locks) that stay open until the tree is gone.
        may_release: whether it may be handed over when it is ready (`Supervisor.release`).
        files: removes and reads state files for this process.
        has_state: whether to write a state file; false if its directory does not answer.
        signals: what the command ignores and blocks at its start, as of `inherited_signals`; default as this process.
        alone: for an engine, where one guard is enough: this process takes in what it would leave behind (a subreaper), and
            beats.
        tell: called in a separate thread with a sentence about each step of a guard, including orphans that it reaps.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None
    stdio: tuple[int, int, int]
    grace_s: float
    run_token: str
    wait_for: str = "tree"
    hold: Sequence[int] = ()
    may_release: bool = False
    files: Files = field(default_factory=InPlace, repr=False)
    has_state: bool = True
    signals: Mapping[str, Sequence[int]] | None = None
    alone: Alone | None = None
    tell: Callable[[str], None] | None = None


@dataclass(frozen=True)
class TreeEnd:
    """How the tree ended.

    `why` is exited, stop, flow_died, control_closed, guard_signalled, outer_guard_died, inner_guard_died, guards_died,
    or released: it was handed over and keeps running. Processes in `terminated` ended after SIGTERM, those in `killed`
    needed SIGKILL, `survivors` could not be killed; each entry has pid, start_ticks, state and argv. `out_of_memory` says
    which memory a container went beyond, if its kernel killed a process of it for that.
    """

    why: str
    exit_code: int | None
    signal: int | None
    gone_after_s: float
    terminated: list[dict[str, Any]] = field(default_factory=list)
    killed: list[dict[str, Any]] = field(default_factory=list)
    survivors: list[dict[str, Any]] = field(default_factory=list)
    out_of_memory: str = ""


@dataclass(frozen=True)
class RunningServer:
    """What keeps running after a hand-over, by its permanent identifiers.

    Attributes:
        kind: a process tree of this host, or a container.
        pid: of the first process on this host; None if it is not known.
        start_ticks: its start time, in clock ticks since boot.
        tree: (pid, start time) of each of its processes, including the first.
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
    """Starts the generator, reports when no process of it is left, and stops it; no method blocks beyond its timeout.

    Attributes:
        pid: of the generator's first process on this host; None before `start`, or where it is not known.
        root_pids: processes at the top of the generator's tree, for evidence.
        includes_roots: whether these are the generator's own, rather than their parents.
        leader_exit: exit code and signal of the first process, once it has ended while others went on.
        gone: set when nothing is left, or when no report can arrive any more.
        report: how it ended.
        notes: further sentences for the report.
    """

    pid: int | None
    root_pids: list[int]
    includes_roots: bool
    leader_exit: tuple[int | None, int | None] | None
    gone: threading.Event
    report: TreeEnd | None
    notes: list[str]

    def start(self) -> None:
        """Start it; if it raises CachewatchError, nothing is left running."""

    def beat(self) -> None:
        """Tell whoever watches this process that it goes on; never blocks."""

    def wait(self, timeout_s: float) -> TreeEnd | None:
        """Wait until nothing is left, or the timeout; None if something still runs."""

    def stop(self, grace_s: float | None = None) -> None:
        """Request a stop and return at once."""

    def freeze(self, timeout_s: float) -> list[int]:
        """Freeze its processes until `stop`; return their pids, empty if that did not work in time."""
        ...

    def running(self) -> RunningServer | None:
        """Return what would keep running after a release; None if nothing is left."""

    def release(self, timeout_s: float) -> str | None:
        """Release what runs, so that it outlives this process and its guard; no other call does that.

        Returns None if it was released: then `report` says `released`, and `gone` is set. Otherwise returns the reason;
        then it is still guarded, or has ended.
        """

    def close(self) -> None:
        """Release all resources; what still runs is stopped."""


def exit_of(status: int | None) -> tuple[int | None, int | None]:
    """Split a status of wait(2) into exit code and signal; both None if the status is unknown.

    Example:
        >>> exit_of(7 << 8), exit_of(9), exit_of(None)
        ((7, None), (None, 9), (None, None))
    """
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def wait_for_report(supervisor: Supervisor, timeout_s: float) -> TreeEnd | None:
    """Wait until nothing is left, or the timeout.

    Args:
        supervisor: of the generator.
        timeout_s: the longest wait.

    Returns:
        How it ended, or None if it has not yet.

    Raises:
        GuardError: the guards died, and it could not be determined what is left.
    """
    report = supervisor.wait(timeout_s)
    if report is None and supervisor.gone.is_set():
        report = supervisor.report  # it arrived just after the wait ended
        if report is None:
            raise GuardError("the guard processes ended without a report: look for leftovers of the command")
    return report


class Supervised:
    """Shared base of supervisors that wait in a separate thread; see `Supervisor`."""

    includes_roots = True

    def __init__(self) -> None:
        self.pid: int | None = None
        self.root_pids: list[int] = []
        self.leader_exit: tuple[int | None, int | None] | None = None
        self.gone = threading.Event()
        self.report: TreeEnd | None = None
        self.notes: list[str] = []

    def beat(self) -> None:
        """Tell nobody."""

    def wait(self, timeout_s: float) -> TreeEnd | None:
        """Wait until nothing is left, or it was released.

        Args:
            timeout_s: the longest wait.

        Returns:
            How it ended, or None if it has not yet.
        """
        return self.report if self.gone.wait(timeout_s) else None


def still_there(survivors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Look again at processes that could not be killed.

    Args:
        survivors: from a `TreeEnd`: pid, start_ticks, state and argv.

    Returns:
        The processes that have not ended, with their state now. One that is not visible from here counts as not ended.

    Example:
        >>> still_there([{"pid": 1, "start_ticks": 123456789012, "state": "D", "argv": []}])
        []
    """
    left = []
    for one in survivors:
        if not one["pid"] or not one["start_ticks"]:
            left.append(dict(one))  # in a container on another host
        elif is_alive(one["pid"], one["start_ticks"]):
            now = read_stat(one["pid"])
            left.append({**one, "state": now.state if now else one["state"]})
    return left


def await_survivors(
    survivors: Sequence[Mapping[str, Any]],
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[dict[str, Any]]:
    """Wait until no survivor is left.

    Args:
        survivors: from a `TreeEnd`.
        timeout_s: the longest wait, in seconds.
        clock: monotonic seconds.
        sleep: waits for a number of seconds.

    Returns:
        The survivors that still exist.
    """
    end_s = clock() + timeout_s
    while (left := still_there(survivors)) and (rest_s := end_s - clock()) > 0:
        sleep(min(_LOOK_EVERY_S, rest_s))
    return left


def describe_survivors(left: Sequence[Mapping[str, Any]]) -> str:
    """Name processes that could not be killed, for a message.

    Args:
        left: result of `still_there`, at least one.

    Returns:
        A clause, harmless for a terminal.

    Example:
        >>> describe_survivors([{"pid": 7, "state": "D", "argv": ["gen", "--token", "abc"]}])
        'pid 7 (gen --token ***, state D)'
    """
    named = (f"pid {one['pid']} ({show_argv(one['argv'])}, state {one['state']})" for one in left[:_NAMED_MAX])
    more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
    return ", ".join(named) + more
