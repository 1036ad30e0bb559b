"""Stops a server that was handed over: SIGTERM to its whole tree, the grace period, SIGKILL, and a look whether it worked.

A process is its pid and its start time, and signals go through a pidfd: whoever has the pid of a server that has
ended is never touched.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.servers import ServerRecord
from prefect_cachewatch.supervise.janitor import Leftover, living_processes, stop_leftovers
from prefect_cachewatch.supervise.proc import send_signal
from prefect_cachewatch.text import for_terminal

__all__ = ["StoppedServer", "stop_server"]

_KILL_DEADLINE_S = 10.0


@dataclass(frozen=True)
class StoppedServer:
    """How a server was stopped; `survivors` could not be killed."""

    terminated: int
    killed: int
    survivors: tuple[Leftover, ...]
    seconds: float


def stop_server(
    record: ServerRecord,
    grace_s: float | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StoppedServer:
    """Stop a server's whole tree, found by identity, by descent and by the run's cookie.

    Args:
        record: of the server.
        grace_s: seconds between SIGTERM and SIGKILL; default the record's.
        clock: monotonic seconds.
        sleep: waits.

    Returns:
        What ended, at most the grace period + 10 s later.

    Raises:
        InputError: it is a container, and its engine does not answer.
    """
    began_s = clock()
    grace_s = record.stop_grace_s if grace_s is None else grace_s
    if record.kind == "container":
        return _stop_container(record, grace_s)
    end_s = began_s + grace_s
    told: set[tuple[int, int]] = set()
    known, nap_s = set(record.tree), 0.005
    while living := living_processes(record.run_id, known):
        for pid, found in living.items():
            identity = (pid, found.start_ticks)
            if identity not in told and end_s > began_s:
                # A stopped process acts on SIGTERM only when it goes on.
                send_signal(pid, found.start_ticks, signal.SIGTERM)
                send_signal(pid, found.start_ticks, signal.SIGCONT)
            told.add(identity)
        known |= told
        left_s = end_s - clock()
        if left_s <= 0:
            break
        sleep(min(nap_s, left_s))
        nap_s = min(nap_s * 1.5, 0.1)
    forced = stop_leftovers(record.run_id, known, time.monotonic() + _KILL_DEADLINE_S)
    survivors = tuple(one for one in forced if not one.killed)
    killed = {(one.pid, one.start_ticks) for one in forced}
    return StoppedServer(len(told - killed), len(killed) - len(survivors), survivors, clock() - began_s)


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
    survivors = tuple(
        Leftover(record.run_id, one["pid"], one["start_ticks"], one["state"], tuple(one["argv"]), killed=False)
        for one in stopped.survivors
    )
    return StoppedServer(len(stopped.terminated), len(stopped.killed), survivors, stopped.gone_after_s)
