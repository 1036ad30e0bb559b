"""Which jobs of a fleet have nothing to do: their cache is published and whole, by its manifest.

Asked on the host that runs the jobs, in a thread with a deadline: a store that hangs makes the fleet
start the job, whose own checks then say what is wrong, and delays nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from prefect_cachewatch.delivery import Delivery
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.publication import Publication

__all__ = ["whole_caches"]


def whole_caches(jobs: Sequence[FleetJob], patience_s: float = 60.0) -> dict[str, Publication]:
    """Look which caches are whole and current, so that nothing need be started for them.

    Only the quick check is made here: a policy that asks for all digests gets them in a run of its own.

    Args:
        jobs: of the fleet.
        patience_s: after this long, what has not been answered is left to the job's own run.

    Returns:
        The names of the jobs, with what was found.

    Example:
        >>> whole_caches([FleetJob(name="c", command=["x"], cache_dirs=["/c"])])
        {}
    """
    # A thread a store: one that hangs must not hide what another would have said.
    stores: dict[Path | None, list[FleetJob]] = {}
    for job in jobs:
        if job.publish is not None and job.publish.verify == "quick":
            stores.setdefault(job.publish.store, []).append(job)
    found: dict[str, Publication] = {}
    threads = [threading.Thread(target=_ask, args=(group, found), daemon=True) for group in stores.values()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return dict(found)


def _ask(jobs: Sequence[FleetJob], found: dict[str, Publication]) -> None:
    for job in jobs:
        assert job.publish is not None
        try:
            whole = Delivery(job.cache_job, job.publish).find_cached()
        except (CachewatchError, OSError):
            continue  # the job's run says what is wrong, with its own name on it
        # Published and not current, it still has to be activated.
        if whole is not None and (whole.current is not None or not job.publish.activate):
            found[job.name] = whole
