"""What is wrong between the jobs of a fleet: one name twice, one directory for two. Looks at no machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.run.delivery import check_delivery

__all__ = ["check_jobs"]


def check_jobs(jobs: Sequence[FleetJob]) -> tuple[int, tuple[str, ...], str] | None:
    """Look for the first thing that is wrong with the jobs as a whole.

    Args:
        jobs: as written.

    Returns:
        The job's index, the field, and the sentence; None where all is well.

    Example:
        >>> jobs = [FleetJob(name="a", command=["x"], cache_dirs=["/c"])] * 2
        >>> check_jobs(jobs)
        (1, ('name',), "the name 'a' is taken by jobs[0]: give each job a name of its own")
    """
    names: dict[str, int] = {}
    for index, job in enumerate(jobs):
        if (other := names.setdefault(job.name, index)) != index:
            return (
                index,
                ("name",),
                f"the name {_shown(job.name)} is taken by jobs[{other}]: give each job a name of its own",
            )
        if (found := _alone(job)) is not None:
            return index, *found
    if (shared := _shared_directory(jobs)) is not None:
        return shared
    return _mixed(jobs)


def _alone(job: FleetJob) -> tuple[tuple[str, ...], str] | None:
    if job.publish is None:
        if any(CACHE_DIR_PLACEHOLDER in str(path) for path in job.cache_dirs):
            return ("cache_dirs",), "it names no cache_dirs: name the directory that must grow, or publish into a store"
    else:
        try:
            check_delivery(job.cache_job, job.publish)
        except InputError as error:
            return ("publish",), error.message
    if job.work_queue is not None and job.deployment is None:
        return ("work_queue",), "work_queue needs a deployment: a job in the fleet's own host waits in no queue"
    return None


def _shared_directory(jobs: Sequence[FleetJob]) -> tuple[int, tuple[str, ...], str] | None:
    """Two jobs that write below one directory of one storage would take each other's growth for their own."""
    taken: dict[tuple[str | None, str], int] = {}
    parents: dict[tuple[str | None, str], tuple[int, str]] = {}
    for index, job in enumerate(jobs):
        for directory in job.directories:
            path = os.path.normpath(directory)
            key = (job.storage_name, path)
            above = next(
                ((taken[job.storage_name, str(up)], str(up)) for up in (PurePath(path), *PurePath(path).parents)
                 if taken.get((job.storage_name, str(up)), index) != index), None,
            )  # fmt: skip
            below = parents.get(key)
            other = above or (below if below is not None and below[0] != index else None)
            if other is not None:
                what = (
                    "is the cache directory"
                    if other[1] == path
                    else f"and {_shown(other[1])} lie in each other; the other is one"
                )
                return (
                    index, ("cache_dirs",),
                    f"{_shown(path)} {what} of jobs[{other[0]}], {_shown(jobs[other[0]].name)}: "
                    "give each job a directory of its own",
                )  # fmt: skip
            taken.setdefault(key, index)
            for up in PurePath(path).parents:
                parents.setdefault((job.storage_name, str(up)), (index, path))
    return None


def _mixed(jobs: Sequence[FleetJob]) -> tuple[int, tuple[str, ...], str] | None:
    named = next((job for job in jobs if job.deployment is not None), None)
    if named is None:
        return None
    for index, job in enumerate(jobs):
        if job.deployment is None:
            return index, ("deployment",), (
                f"it names no deployment, and {_shown(named.name)} does: a fleet runs over workers or in its own host, not both"
            )  # fmt: skip
    return None


def _shown(name: str) -> str:
    return f"'{for_terminal(name, 120)}'"
