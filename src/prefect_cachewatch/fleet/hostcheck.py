"""Checks that the host has what a fleet's jobs need, before the first one starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.watching.site import check_command

__all__ = ["check_host"]


def check_host(jobs: Sequence[FleetJob]) -> None:
    """Check that each job's program, working directory and store exist.

    Args:
        jobs: jobs of a fleet that runs on this host.

    Raises:
        InputError: one is missing; the sentence names the job.

    Example:
        >>> check_host([FleetJob(name="c", command=["sh"], cache_dirs=["/c"])])
    """
    stores: set[Path] = set()
    for job in jobs:
        try:
            if getattr(job, "container", None) is None:  # a container's command is looked for in its image
                check_command(job.command, dict(os.environ) | job.env, str(job.cwd) if job.cwd else None)
            store = job.publish.store if job.publish is not None else None
            if store is not None and store not in stores:
                CacheStore(store)
                stores.add(store)
        except InputError as error:
            raise InputError(f"job '{for_terminal(job.name, 100)}': {error.message}") from None
