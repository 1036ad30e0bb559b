"""What this host says of a fleet's jobs before the first one starts: what they need, and which have nothing to do.

A job has nothing to do if its cache is published and whole, or is still in its directory. Prefect's record of a
completed job is not enough: the cache may have been removed since.

Caches are looked at in threads with a deadline. If a storage hangs, the fleet starts the job,
whose own checks then report the fault; other jobs are not delayed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.config.container import VOLUME_PREFIX
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.measure.scan_process import measure
from prefect_cachewatch.run.delivery import PublishSession
from prefect_cachewatch.run.history import last_run
from prefect_cachewatch.run.placement import find_image
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.watching.sections import Publication
from prefect_cachewatch.watching.site import check_command


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


def whole_caches(jobs: Sequence[FleetJob], patience_s: float = 60.0) -> dict[str, Publication]:
    """Find the caches that are whole and current; no run is needed for them.

    Args:
        jobs: the fleet's jobs.
        patience_s: after this many seconds, jobs without an answer are left to their own runs.

    Returns:
        The names of the jobs, with the published builds.

    Example:
        >>> whole_caches([FleetJob(name="c", command=["x"], cache_dirs=["/c"])])
        {}
    """
    found: dict[str, Publication] = {}
    asked = [job for job in jobs if job.publish is not None]
    _ask_all(asked, _store, lambda job: _ask(job, found), patience_s)
    return dict(found)


def missing_caches(
    jobs: Sequence[FleetJob], files: Files, *, elsewhere: bool, patience_s: float = 60.0
) -> dict[str, str]:
    """Find the caches that a run has completed and that are not there any more.

    A published cache has to be whole by its manifest. A directory has to exist with files in it, unless it may be
    empty, and with no fewer bytes than this host's last run of the job left.

    Args:
        jobs: jobs that an earlier run completed.
        files: measures each directory.
        elsewhere: whether they run on other hosts: if neither the store nor the directory above is visible here, the
            job is not reported.
        patience_s: after this many seconds, a cache without an answer counts as missing.

    Returns:
        The names of the jobs, with the fault in a few words.

    Example:
        >>> from prefect_cachewatch.common.aside import InPlace
        >>> missing_caches([FleetJob(name="c", command=["x"], cache_dirs=["/nowhere/c"])], InPlace(), elsewhere=False)
        {'c': '/nowhere/c is not there'}
    """
    found: dict[str, str | None] = {}

    def look(job: FleetJob) -> None:
        with contextlib.suppress(OSError):  # as one that has not been asked
            found[job.name] = _what_is_missing(job, elsewhere, files, patience_s)

    _ask_all(jobs, lambda job: job.storage_name or _store(job) or job.directories, look, patience_s)
    slow = f"its directory did not answer within {patience_s:.0f} s"
    return {job.name: why for job in jobs if (why := found.get(job.name, slow)) is not None}


def _ask_all(
    jobs: Sequence[FleetJob],
    storage: Callable[[FleetJob], Hashable],
    ask: Callable[[FleetJob], None],
    patience_s: float,
) -> None:
    # One thread per storage: one that hangs must not hide the answers of the others.
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
        return  # the job's run reports the fault under its own name
    if whole is not None:
        found[job.name] = whole


def _find_whole(job: FleetJob, policy: PublishPolicy) -> Publication | None:
    session = PublishSession(job.cache_job, policy)
    session.know_image(find_image(job.cache_job))
    whole = session.find_cached()
    # A published build that is not current still has to be activated.
    return whole if whole is not None and (whole.current is not None or not policy.activate) else None


def _what_is_missing(job: FleetJob, elsewhere: bool, files: Files, patience_s: float) -> str | None:
    if job.publish is not None:
        return _what_the_store_misses(job, job.publish, elsewhere)
    total = 0
    for directory in job.directories:
        if str(directory).startswith(VOLUME_PREFIX) or (elsewhere and not directory.parent.is_dir()):
            return None  # a container engine's storage, or another host's, which is not visible here
        there = files.run(measure, [str(directory)], job.ignore, timeout_s=patience_s)
        if there["roots"][0]["missing"]:
            return f"{directory} is not there"
        if not there["files"] and not job.allow_empty:
            return f"{directory} is empty"
        total += there["bytes"]
    last = files.run(last_run, job.name, list(map(str, job.directories)), timeout_s=patience_s)
    if last is not None and total < last.bytes_present:
        return f"it has {format_bytes(total)} of the {format_bytes(last.bytes_present)} that its run left"
    return None


def _what_the_store_misses(job: FleetJob, policy: PublishPolicy, elsewhere: bool) -> str | None:
    if elsewhere and not policy.store.is_dir():
        return None
    if job.cache_job.container is not None and not find_image(job.cache_job):
        return None  # which image its run has used is not known here
    try:
        # The job generates in any case, and its run has completed.
        whole = _find_whole(job, policy.model_copy(update={"force": False}))
    except (CachewatchError, OSError) as error:
        return str(error)
    return None if whole is not None else "no whole build of it is current"
