"""Which jobs of a fleet have nothing to do: their cache is published and whole by its manifest, or still lies there.

What Prefect has recorded of a job is never enough: a cache may have been removed since.

Asked on the host that runs the jobs, in threads with a deadline: a storage that hangs makes the fleet
start the job, whose own checks then say what is wrong, and delays nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.config.container import VOLUME_PREFIX
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.measure.scan_process import measure
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.run.delivery import Delivery
from prefect_cachewatch.run.history import history_path, past_runs
from prefect_cachewatch.watching.sections import Publication

__all__ = ["missing_caches", "whole_caches"]


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
    found: dict[str, Publication] = {}
    asked = [job for job in jobs if job.publish is not None and job.publish.verify == "quick"]
    _ask_all(asked, _store, lambda job: _ask(job, found), patience_s)
    return dict(found)


def missing_caches(jobs: Sequence[FleetJob], *, elsewhere: bool, patience_s: float = 60.0) -> dict[str, str]:
    """Look which caches are not there any more, though a run has completed them.

    A published one has to be whole by its manifest. A directory has to be there with files in it, unless it may be empty,
    and with no fewer bytes than this host's last run of the job left.

    Args:
        jobs: completed by an earlier run.
        elsewhere: whether they run on other hosts: where neither the store nor the directory above is seen here, nothing
            is said.
        patience_s: after this long, what has not been answered counts as missing.

    Returns:
        The names of the jobs, with what is wrong in a few words.

    Example:
        >>> missing_caches([FleetJob(name="c", command=["x"], cache_dirs=["/nowhere/c"])], elsewhere=False)
        {'c': '/nowhere/c is not there'}
    """
    found: dict[str, str | None] = {}

    def look(job: FleetJob) -> None:
        found[job.name] = _what_is_missing(job, elsewhere)

    _ask_all(jobs, lambda job: job.storage_name or _store(job) or job.directories, look, patience_s)
    slow = f"its directory did not answer within {patience_s:.0f} s"
    return {job.name: why for job in jobs if (why := found.get(job.name, slow)) is not None}


def _ask_all(
    jobs: Sequence[FleetJob],
    storage: Callable[[FleetJob], Hashable],
    ask: Callable[[FleetJob], None],
    patience_s: float,
) -> None:
    # A thread a storage: one that hangs must not hide what another would have said.
    groups: dict[Hashable, list[FleetJob]] = {}
    for job in jobs:
        groups.setdefault(storage(job), []).append(job)

    def work(group: Sequence[FleetJob]) -> None:
        for job in group:
            ask(job)

    threads = [threading.Thread(target=work, args=(group,), daemon=True) for group in groups.values()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _store(job: FleetJob) -> Path | None:
    return job.publish.store if job.publish is not None else None


def _ask(job: FleetJob, found: dict[str, Publication]) -> None:
    assert job.publish is not None
    try:
        whole = _find_whole(job, job.publish)
    except (CachewatchError, OSError):
        return  # the job's run says what is wrong, with its own name on it
    if whole is not None:
        found[job.name] = whole


def _find_whole(job: FleetJob, policy: PublishPolicy) -> Publication | None:
    whole = Delivery(job.cache_job, policy).find_cached()
    # Published and not current, it still has to be activated.
    return whole if whole is not None and (whole.current is not None or not policy.activate) else None


def _what_is_missing(job: FleetJob, elsewhere: bool) -> str | None:
    if job.publish is not None:
        return _what_the_store_misses(job, job.publish, elsewhere)
    total = 0
    for directory in job.directories:
        if str(directory).startswith(VOLUME_PREFIX) or (elsewhere and not directory.parent.is_dir()):
            return None  # a container engine's, or another host's storage, which is not seen from here
        there = measure([str(directory)], job.ignore)
        if there["roots"][0]["missing"]:
            return f"{directory} is not there"
        if not there["files"] and not job.allow_empty:
            return f"{directory} is empty"
        total += there["bytes"]
    last = past_runs(history_path(job.name, [os.path.realpath(path) for path in job.directories]), 1)
    if last and total < last[0].bytes_present:
        return f"it has {format_bytes(total)} of the {format_bytes(last[0].bytes_present)} that its run left"
    return None


def _what_the_store_misses(job: FleetJob, policy: PublishPolicy, elsewhere: bool) -> str | None:
    seen = policy.store.is_dir() if policy.store is not None else job.cache_dirs[0].parent.is_dir()
    if elsewhere and not seen:
        return None
    try:
        # What was to be generated whatever was there has been.
        whole = _find_whole(job, policy.model_copy(update={"force": False, "verify": "quick"}))
    except (CachewatchError, OSError) as error:
        return str(error)
    return None if whole is not None else "no whole build of it is current"
