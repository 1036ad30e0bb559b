"""The janitor for containers: finds those whose flow and warden have both died, stops and removes them.

It judges a container by its labels: it touches only a container of this user, this machine and this pid namespace, whose
guards have ended, and which was not left running on purpose.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.containers.engine import engine_candidates
from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.containers.labels import LEFT_RUNNING, RUN_LABEL
from prefect_cachewatch.containers.stopping import CALL_S, RunningContainer, is_running
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import boot_id, is_alive
from prefect_cachewatch.supervise.run_files import machine_id, pid_namespace
from prefect_cachewatch.supervise.tending import wake

_REMOVE_WITHIN_S = 30.0


@dataclass(frozen=True)
class LeftContainer:
    """A container of a dead run; `removed` is false if it still exists."""

    id: str
    name: str
    image: str
    job: str
    engine: str
    removed: bool


@dataclass(frozen=True)
class ContainerReport:
    """The result of one look: how many are guarded, and what dead runs have left."""

    running: int = 0
    leftovers: tuple[LeftContainer, ...] = field(default=())

    @property
    def survivors(self) -> tuple[LeftContainer, ...]:
        """Leftovers that still exist."""
        return tuple(one for one in self.leftovers if not one.removed)


def clear_containers(engine: str | None = None, *, dry_run: bool = False) -> ContainerReport:
    """Find the containers that dead runs left behind and remove them, without a grace period.

    An engine that gives no answer is passed over: nothing can be found there.

    Args:
        engine: URL of the engine to ask; default those in the usual places.
        dry_run: only look.

    Returns:
        What was found and done.

    Example:
        >>> clear_containers("unix:///nonexistent/engine.sock").leftovers
        ()
    """
    running, leftovers = 0, list[LeftContainer]()
    for url in [engine] if engine else _present_by_default():
        try:
            found = _judge(url, tend=not dry_run)
        except (EngineSilent, EngineRefused):
            continue
        running += len(found) - sum(one is not None for one in found)
        leftovers += [_clear(url, one, dry_run) for one in found if one is not None]
    return ContainerReport(running, tuple(leftovers))


def describe_containers(report: ContainerReport) -> list[str]:
    """Describe what the janitor found, in one sentence each; what is in order is left out.

    Args:
        report: of one look.

    Returns:
        Lines, harmless for a terminal.

    Example:
        >>> describe_containers(ContainerReport(running=2))
        []
    """
    lines = []
    for one in report.leftovers:
        done = "stopped and removed" if one.removed else "not removed"
        lines.append(
            f"container {for_terminal(one.name)} ({one.id[:12]}, job {for_terminal(one.job)}) is left over from a run whose "
            f"guards have died, and was {done}"
        )
    return lines


def _present_by_default() -> list[str]:
    try:
        found = engine_candidates()
    except InputError:
        return []
    return [one.url for one in found if not one.is_local or os.path.exists(one.url.removeprefix("unix://"))]


def _judge(url: str, *, tend: bool) -> list[dict[str, Any] | None]:
    """List this user's containers on an engine: the leftovers, and None for each one that still has a guard."""
    judged: list[dict[str, Any] | None] = []
    for one in EngineHttp(url).labelled(RUN_LABEL, CALL_S):
        labels = one.get("Labels") or {}
        here = (labels.get("cachewatch.uid"), labels.get("cachewatch.machine"), labels.get("cachewatch.pidns"))
        if here != (str(os.geteuid()), machine_id(), pid_namespace()):
            continue  # another user's or machine's: its guards are not visible from here
        if any(str(name).endswith(LEFT_RUNNING) for name in one.get("Names") or []):
            continue  # it was left running on purpose, and `cachewatch stop` ends it
        rebooted = labels.get("cachewatch.boot") != boot_id()
        guards = [] if rebooted else str(labels.get("cachewatch.guards", "")).split()
        living = [int(pid) for pid, _, ticks in (guard.partition(":") for guard in guards) if _lives(pid, ticks)]
        if tend:  # a stopped warden does nothing until it is continued
            wake(living)
        judged.append(None if living else one)
    return judged


def _lives(pid: str, ticks: str) -> bool:
    return pid.isdigit() and ticks.isdigit() and is_alive(int(pid), int(ticks))


def _clear(url: str, found: dict[str, Any], dry_run: bool) -> LeftContainer:
    labels = found.get("Labels") or {}
    names = [str(name).lstrip("/") for name in found.get("Names") or []]
    removed = False
    if not dry_run:
        container = RunningContainer(EngineHttp(url), str(found["Id"]), str(labels[RUN_LABEL]))
        state = container.look()
        if state is None or is_running(state):
            container.stop(0.0, _sleep)
        try:
            container.engine.remove(container.container, _REMOVE_WITHIN_S)
            removed = container.look() == {}
        except (EngineSilent, EngineRefused):
            removed = False
    return LeftContainer(
        str(found["Id"]),
        names[0] if names else "",
        str(found.get("Image")),
        str(labels.get("cachewatch.job")),
        url,
        removed,
    )


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return float("inf")
