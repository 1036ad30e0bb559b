"""The janitor for containers: finds those whose flow and warden have both died, stops and removes them.

It judges a container by its labels and its name: it touches only a container of this user, this machine and this pid namespace, whose
guards have ended, and which was not left running on purpose.
"""

from __future__ import annotations

import os
import re
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.containers.engine import connect, engine_candidates, failures
from prefect_cachewatch.containers.stopping import stop_and_remove
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import boot_id, is_alive, read_stat
from prefect_cachewatch.supervise.run_files import machine_id, pid_namespace
from prefect_cachewatch.supervise.tending import wake

RUN_LABEL = "cachewatch.run"
#: At the beginning of the name of each run's container; the first characters of the run's identifier are its end.
NAME_PREFIX = "cachewatch-"
#: At the end of the name of a container that was released: it runs on without guards.
LEFT_RUNNING = "-left-running"


@dataclass
class ContainerReport:
    """The result of one look.

    Attributes:
        running: how many are guarded.
        leftovers: a sentence for each one that a dead run had left behind, harmless for a terminal.
        survivors: how many of these still exist.
    """

    running: int = 0
    leftovers: list[str] = field(default_factory=list)
    survivors: int = 0


def labels_of_run(run_token: str, job: str, guards: list[int]) -> dict[str, str]:
    """Make the labels by which a container's run is found and judged; they contain no secrets.

    Args:
        run_token: the run's identifier.
        job: the job's name.
        guards: pids of the processes that guard the container.

    Returns:
        Label name to value.

    Example:
        >>> labels_of_run("a" * 32, "llama", [])["cachewatch.job"]
        'llama'
    """
    identities = [f"{pid}:{found.start_ticks}" for pid in guards if (found := read_stat(pid))]
    return {
        RUN_LABEL: run_token,
        "cachewatch.job": job,
        "cachewatch.guards": " ".join(identities),
        "cachewatch.uid": str(os.geteuid()),
        "cachewatch.machine": machine_id(),
        "cachewatch.boot": boot_id(),
        "cachewatch.pidns": pid_namespace(),
    }


def clear_containers(engine: str | None = None) -> ContainerReport:
    """Find the containers that dead runs left behind and remove them, without a grace period.

    An engine that gives no answer is passed over: nothing can be found there.

    Args:
        engine: URL of the engine to ask; default those in the usual places.

    Returns:
        What was found and done.

    Example:
        >>> clear_containers("unix:///nonexistent/engine.sock").leftovers
        []
    """
    report = ContainerReport()
    try:
        for url in [engine] if engine else engine_candidates():
            for found in _labelled(url, RUN_LABEL) or ():
                guarded = _is_guarded(found)
                report.running += bool(guarded)
                if guarded is False:
                    _clear(url, found, report)
    except InputError:  # no engine is named that is spoken to, or there is no SDK: then no container was made here
        pass
    return report


def clear_run(engine: str, run_token: str) -> bool:
    """Stop and remove the containers of one run, whoever guards them; return whether the engine knows of none any more.

    Args:
        engine: URL of the engine.
        run_token: the run's identifier.
    """
    report, labelled = ContainerReport(), _labelled(engine, f"{RUN_LABEL}={run_token}")
    if labelled is None:
        return False
    for found in labelled:
        _clear(engine, found, report)
    return report.survivors == 0


def _labelled(url: str, label: str) -> list[dict[str, Any]] | None:
    """List the containers of runs with a label, running or not; None if the engine gives no answer."""
    try:
        with closing(connect(url)) as client:
            found: list[dict[str, Any]] = client.containers(all=True, filters={"label": [label]})
    except failures():
        return None
    return [one for one in found if _is_named_as_ours(one)]


def _is_named_as_ours(found: dict[str, Any]) -> bool:
    """Whether a container has the name of its run: an image that was made of one has its labels, and gives them on."""
    run = str((found.get("Labels") or {}).get(RUN_LABEL) or "")
    names = [str(name).lstrip("/").removesuffix(LEFT_RUNNING) for name in found.get("Names") or []]
    return any(name.startswith(NAME_PREFIX) and name.endswith(f"-{run[:8]}") for name in names) and len(run) >= 8


def _is_guarded(found: dict[str, Any]) -> bool | None:
    """Whether a container has a guard that lives; None if that is not ours to judge."""
    labels = found.get("Labels") or {}
    here = (labels.get("cachewatch.uid"), labels.get("cachewatch.machine"), labels.get("cachewatch.pidns"))
    if here != (str(os.geteuid()), machine_id(), pid_namespace()):
        return None  # another user's or machine's: its guards are not visible from here
    if any(str(name).endswith(LEFT_RUNNING) for name in found.get("Names") or []):
        return None  # it was left running on purpose, and `cachewatch stop` ends it
    if labels.get("cachewatch.boot") != boot_id():
        return False
    guards = [
        tuple(map(int, guard.split(":")))
        for guard in str(labels.get("cachewatch.guards", "")).split()
        if re.fullmatch(r"[0-9]{1,19}:[0-9]{1,19}", guard)
    ]
    living = [pid for pid, ticks in guards if is_alive(pid, ticks)]
    wake(living)  # a stopped warden does nothing until it is continued
    return bool(living)


def _clear(url: str, found: dict[str, Any], report: ContainerReport) -> None:
    labels, names = found.get("Labels") or {}, found.get("Names") or [""]
    stopped = stop_and_remove(url, str(found["Id"]), str(labels.get(RUN_LABEL)), 0.0)
    removed = stopped is not None and stopped.gone
    name, job = for_terminal(str(names[0]).lstrip("/")), for_terminal(str(labels.get("cachewatch.job")))
    report.survivors += not removed
    report.leftovers.append(
        f"container {name} ({found['Id'][:12]}, job {job}) is left over from a run whose guards have died, and was "
        f"{'stopped and removed' if removed else 'not removed'}"
    )
