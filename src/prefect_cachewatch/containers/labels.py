"""The labels by which a container's run is found and judged; they contain no secrets. Standard library only."""

from __future__ import annotations

import os

from prefect_cachewatch.supervise.proc import boot_id, read_stat
from prefect_cachewatch.supervise.run_files import machine_id, pid_namespace

RUN_LABEL = "cachewatch.run"
#: At the end of the name of a container that was released: it runs on without guards.
LEFT_RUNNING = "-left-running"


def labels_of_run(run_token: str, job: str, guards: list[int]) -> dict[str, str]:
    """Make the labels of a container.

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
