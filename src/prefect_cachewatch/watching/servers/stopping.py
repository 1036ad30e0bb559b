"""Stops a server that was handed over: SIGTERM to its whole tree, the grace period, SIGKILL, and a check for survivors.

A process is identified by its pid and its start time, and signals go through a pidfd: a process that has the pid of
an ended server is never touched.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.janitor import Leftover, follow_run, leftover_of
from prefect_cachewatch.supervise.stop_tree import KILL_DEADLINE_S, TreeStop
from prefect_cachewatch.watching.servers.records import ServerRecord


@dataclass(frozen=True)
class StoppedServer:
    """How a server was stopped; `survivors` could not be killed."""

    terminated: int
    killed: int
    survivors: tuple[Leftover, ...]
    seconds: float


def stop_server(record: ServerRecord, grace_s: float | None = None) -> StoppedServer:
    """Stop a server's whole tree, found by identity, by descent and by the run's token.

    Args:
        record: record of the server.
        grace_s: seconds between SIGTERM and SIGKILL; default the record's.

    Returns:
        The result, at most the grace period + 10 s later.

    Raises:
        InputError: it is a container, and its engine does not answer.
    """
    began_s = time.monotonic()
    grace_s = record.stop_grace_s if grace_s is None else grace_s
    if record.kind == "container":
        return _stop_container(record, grace_s)
    stop = TreeStop(follow_run(record.run_id, set(record.tree)), longest_nap_s=0.1)
    if grace_s > 0:
        stop.terminate(began_s + grace_s, _nap)
    left = stop.sweep(time.monotonic() + KILL_DEADLINE_S)
    survivors = tuple(leftover_of(record.run_id, who, who["state"]) for who in left)
    return StoppedServer(
        len(stop.told - stop.forced), len(stop.forced) - len(survivors), survivors, time.monotonic() - began_s
    )


def _nap(seconds: float) -> float:
    time.sleep(seconds)
    return math.inf


def _stop_container(record: ServerRecord, grace_s: float) -> StoppedServer:
    from prefect_cachewatch.containers.stopping import stop_and_remove  # noqa: PLC0415 - only for containers

    if record.container_id is None or record.engine_url is None:
        raise InputError(
            f"the record of server {for_terminal(record.name)} names no container and engine: stop it by hand"
        )
    stopped = stop_and_remove(record.engine_url, record.container_id, record.run_id, grace_s)
    if stopped is None:
        raise InputError(
            f"the container engine at {for_terminal(record.engine_url)}, which runs {for_terminal(record.name)} ({record.who}), "
            "does not answer: start it, and stop the server again"
        )
    survivors = tuple(leftover_of(record.run_id, one, one["state"]) for one in stopped.survivors)
    return StoppedServer(len(stopped.terminated), len(stopped.killed), survivors, stopped.gone_after_s)
