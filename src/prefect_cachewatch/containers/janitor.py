"""The janitor for containers: finds those whose flow and warden have both died, stops and removes them.

It asks the engines that this user's records name, and the default engine. It judges a container by its labels: it
touches only a container of this user, this machine and this pid namespace, whose record is not locked and whose guards
have ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.containers.engine import engine_candidates
from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.containers.run_records import (
    MAY_STAY_LABEL,
    RUN_LABEL,
    SUFFIX,
    is_held,
    parse_record,
    records_directory,
    remove_record,
)
from prefect_cachewatch.containers.stopping import CALL_S, RunningContainer, is_running
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import boot_id, is_alive
from prefect_cachewatch.supervise.run_files import (
    machine_id,
    pid_namespace,
    read_each_file,
)
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
    """The result of one look; `problems` are engines that gave no answer, and records that are not trusted."""

    running: int = 0
    leftovers: tuple[LeftContainer, ...] = field(default=())
    problems: tuple[str, ...] = field(default=())

    @property
    def survivors(self) -> tuple[LeftContainer, ...]:
        """Leftovers that still exist."""
        return tuple(one for one in self.leftovers if not one.removed)


def clear_containers(*, recorded_only: bool = False, directory: str | None = None) -> ContainerReport:
    """Find the containers that dead runs left behind and remove them, without a grace period.

    Args:
        recorded_only: ask only the engines that records name; none if there are no records.
        directory: of the records; default `records_directory()`.

    Returns:
        What was found and done.

    Example:
        >>> clear_containers(recorded_only=True, directory="/nonexistent/records").leftovers
        ()
    """
    directory = directory or records_directory()
    records, problems = _read_records(directory)
    dead = {run_token: url for run_token, url in records.items() if not is_held(run_token, directory)}
    wanted = set(dead.values())
    looked_at = set[str]()
    if not recorded_only:
        wanted |= set(records.values())
        looked_at = _present_by_default() - wanted
    running, leftovers = 0, list[LeftContainer]()
    for url in sorted(wanted | looked_at):
        try:
            found = _judge(url, directory, dead)
            running += len(found) - sum(one is not None for one in found)
            leftovers += [_clear(url, one) for one in found if one is not None]
        except (EngineSilent, EngineRefused) as error:
            if url in wanted:
                problems.append(
                    f"the container engine at {url} does not answer ({error}): containers of dead runs may be left there; "
                    "start it and look again"
                )
            continue
        for run_token in [c for c, u in dead.items() if u == url]:
            if not any(one.engine == url and not one.removed for one in leftovers):
                remove_record(run_token, directory)
    return ContainerReport(running, tuple(leftovers), tuple(problems))


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
    return lines + list(report.problems)


def _read_records(directory: str) -> tuple[dict[str, str], list[str]]:
    found, refused = read_each_file(directory, SUFFIX, lambda name, data, fd, here: parse_record(data, name))
    # Machines may share a home directory, and the same socket path is another engine on another machine.
    records = {run_token: url for run_token, url, machine in found if machine == machine_id()}
    return records, [
        f"record {for_terminal(path)} was left alone, since {why}: remove it if it is not wanted"
        for path, why in refused
    ]


def _present_by_default() -> set[str]:
    try:
        found = engine_candidates(None)
    except InputError:
        return set()
    return {one.url for one in found if not one.is_local or os.path.exists(one.url.removeprefix("unix://"))}


def _judge(url: str, directory: str, dead: Collection[str]) -> list[dict[str, Any] | None]:
    """List this user's containers on an engine: the leftovers, and None for each one that still has a guard."""
    judged: list[dict[str, Any] | None] = []
    for one in EngineHttp(url).labelled(RUN_LABEL, CALL_S):
        labels = one.get("Labels") or {}
        here = (labels.get("cachewatch.uid"), labels.get("cachewatch.machine"), labels.get("cachewatch.pidns"))
        if here != (str(os.geteuid()), machine_id(), pid_namespace()):
            continue  # another user's or machine's: its guards are not visible from here
        if labels.get(MAY_STAY_LABEL) and labels[RUN_LABEL] not in dead:
            judged.append(None)  # probably handed over: the record is removed when the warden releases it
            continue
        rebooted = labels.get("cachewatch.boot") != boot_id()
        guards = [] if rebooted else str(labels.get("cachewatch.guards", "")).split()
        seen_to = not rebooted and (is_held(str(labels[RUN_LABEL]), directory) or _any_alive(guards))
        # A stopped warden does nothing until it is continued.
        wake(int(pid) for pid in (guard.partition(":")[0] for guard in guards) if pid.isdigit())
        judged.append(None if seen_to else one)
    return judged


def _any_alive(identities: Collection[str]) -> bool:
    for identity in identities:
        pid, _, ticks = identity.partition(":")
        if pid.isdigit() and ticks.isdigit() and is_alive(int(pid), int(ticks)):
            return True
    return False


def _clear(url: str, found: dict[str, Any]) -> LeftContainer:
    labels = found.get("Labels") or {}
    names = [str(name).lstrip("/") for name in found.get("Names") or []]
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
