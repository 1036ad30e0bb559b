"""Reads a jobs file: a fleet as YAML. Each error is one sentence with the file, the field and the nearest name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from prefect_cachewatch.common.inputs import nearest, validate
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.yamlfile import read_yaml
from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER, InputModel, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.config.profiles import read_profile
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobs import MODELS, FleetJob, FleetPlan, FleetPolicy, check_deployment_name
from prefect_cachewatch.run.delivery import check_delivery

# Fields of one job alone: as a default they would cause an error at the second job.
_NO_DEFAULT = ("name", "cache_dirs")
_MERGED = ("env", "env_secrets", "profile", *MODELS)
# Keys of a job beside its fields: a known generator, from which some of the fields follow.
_JOB_KEYS = (*FleetJob.model_fields, "profile")


class _JobsFile(InputModel):
    version: Literal[1] = Field(description="Version of this format: 1.")
    name: str | None = Field(default=None, min_length=1, max_length=100)
    policy: FleetPolicy = FleetPolicy()
    defaults: dict[str, Any] = Field(default_factory=dict)
    jobs: list[dict[str, Any]] = Field(
        min_length=1, max_length=10_000, description="write each job as `- name: ...` below it"
    )


def expand_job(defaults: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a job's entry in the file with the defaults.

    Args:
        defaults: the file's defaults.
        entry: the job as written.

    Returns:
        The fields of a `FleetJob`, and `profile`. Models (stall, storage and so on), environments and profiles of one
        name are merged key by key; null removes a default.

    Example:
        >>> expand_job({"retry": {"attempts": 2}, "storage": {"name": "nfs"}}, {"retry": {"backoff_s": 1}, "storage": None})
        {'retry': {'attempts': 2, 'backoff_s': 1}}
    """
    found = dict(defaults)
    for name, value in entry.items():
        below = found.get(name)
        if name == "profile" and isinstance(value, Mapping) and isinstance(below, Mapping):
            below = below if value.get("name", below.get("name")) == below.get("name") else None
        if name in _MERGED and isinstance(value, Mapping) and isinstance(below, Mapping):
            value = {key: item for key, item in {**below, **value}.items() if item is not None}  # noqa: PLW2901
        found[name] = value
    return {name: value for name, value in found.items() if value is not None}


def read_jobs_file(
    path: Path,
    *,
    name: str | None = None,
    deployment: str | None = None,
    policy: Mapping[str, Any] = MappingProxyType({}),
) -> FleetPlan:
    """Read a jobs file.

    Args:
        path: the file.
        name: name of the fleet, instead of the file's; without either, the name of the file itself.
        deployment: deployment of jobs that name none.
        policy: fields of a `FleetPolicy` that take precedence over the file's.

    Returns:
        The fleet, checked as far as possible without looking at the machine.

    Raises:
        InputError: it cannot be read or understood; the sentence names file and field.
    """
    shown, data = for_terminal(str(path)), read_yaml(path)
    if not isinstance(data, dict):
        raise InputError(f"{shown} is not a mapping of names to values: write `name: value` lines")
    if "version" not in data:
        raise InputError(f"{shown}: version is missing: write version: 1 at its top")
    file = validate(_JobsFile, {key: value for key, value in data.items() if value is not None}, shown, "")
    for key in file.defaults:
        if key in _NO_DEFAULT:
            raise InputError(f"{shown}: defaults.{key} cannot be a default: each job needs its own")
        if key not in _JOB_KEYS:
            raise InputError(
                f"{shown}: defaults.{for_terminal(str(key), 120)} is not known{nearest(str(key), _JOB_KEYS)}"
            )
    given_to = {} if deployment is None else {"deployment": _deployment(deployment)}
    jobs = [_job(shown, given_to | file.defaults, entry, index) for index, entry in enumerate(file.jobs)]
    if (wrong := _check_jobs(jobs)) is not None:
        raise InputError(f"{shown}: {wrong}")
    merged = _merged_policy(file.policy, policy)
    return FleetPlan(version=1, name=name or file.name or _stem(path), policy=merged, jobs=jobs)


def plan_of_jobs(
    jobs: Sequence[FleetJob],
    *,
    name: str | None = None,
    deployment: str | None = None,
    policy: FleetPolicy | None = None,
) -> FleetPlan:
    """Make a fleet of jobs that come from a program and not from a file.

    Args:
        jobs: at least one.
        name: name of the fleet.
        deployment: deployment of jobs that name none.
        policy: policy of the fleet.

    Returns:
        The fleet, checked as a file is.

    Raises:
        InputError: the jobs have an error.
    """
    if not jobs:
        raise InputError("the fleet has no jobs: give at least one")
    given_to = {} if deployment is None else {"deployment": _deployment(deployment)}
    found = [job if job.deployment else job.model_copy(update=given_to) for job in jobs]
    if (wrong := _check_jobs(found)) is not None:
        raise InputError(wrong)
    given = {} if name is None else {"name": name}
    return validate(
        FleetPlan, {"version": 1, "policy": policy or FleetPolicy(), "jobs": found, **given}, "the fleet", ""
    )


def _deployment(name: str) -> str:
    try:
        return check_deployment_name(name)
    except ValueError as error:
        raise InputError(f"the deployment {for_terminal(str(error), 200)}") from None


def _job(file: str, defaults: Mapping[str, Any], entry: Mapping[str, Any], index: int) -> FleetJob:
    fields = expand_job(defaults, entry)
    if "profile" not in fields:
        return validate(FleetJob, fields, file, f"jobs[{index}]")
    try:
        known = read_profile(fields.pop("profile"))
    except InputError as error:
        raise InputError(f"{file}: jobs[{index}]: {error.message}") from None
    named = {"name": known.name, "command": list(known.command)}
    job = known.under_job(validate(FleetJob, named | fields, file, f"jobs[{index}]"))
    publish = job.publish.with_key(known.key) if job.publish is not None else None
    policies = {
        "stall": known.under(job.stall or StallPolicy()),
        "stop": known.under(job.stop or StopPolicy()),
        "retry": known.under(job.retry or RetryPolicy()) if known.retry else job.retry,
    }
    return job.model_copy(update={**policies, "publish": publish})


def _merged_policy(written: FleetPolicy, given: Mapping[str, Any]) -> FleetPolicy:
    if not given:
        return written
    both = {**written.model_dump(exclude_unset=True), **given}
    if given.get("on_failure") == "continue" and "max_failures" not in given:
        both.pop("max_failures", None)  # the file's limit belonged to the file's on_failure
    return validate(FleetPolicy, both, "the fleet", "policy")


def _stem(path: Path) -> str:
    return for_terminal(path.name.removesuffix(".yaml").removesuffix(".yml"), 100) or "fleet"


def _check_jobs(jobs: Sequence[FleetJob]) -> str | None:
    """Find the first error in the jobs as a whole.

    Args:
        jobs: the jobs as written.

    Returns:
        The sentence; None if there is no error.

    Example:
        >>> _check_jobs([FleetJob(name="a", command=["x"], cache_dirs=["/c"])] * 2)
        "jobs[1]: the name 'a' is taken by jobs[0]: give each job a name of its own"
    """
    names: dict[str, int] = {}
    for index, job in enumerate(jobs):
        if (other := names.setdefault(job.name, index)) != index:
            return (
                f"jobs[{index}]: the name {_shown(job.name)} is taken by jobs[{other}]: give each job a name of its own"
            )
        if (found := _alone(job)) is not None:
            return f"jobs[{index}]: {found}"
    return _shared_directory(jobs) or _mixed(jobs)


def _alone(job: FleetJob) -> str | None:
    if job.publish is None:
        if any(CACHE_DIR_PLACEHOLDER in str(path) for path in job.cache_dirs):
            return "it names no cache_dirs: name the directory that must grow, or publish into a store"
    else:
        try:
            check_delivery(job.cache_job, job.publish)
        except InputError as error:
            return error.message
    if job.work_queue is not None and job.deployment is None:
        return "work_queue needs a deployment: a job in the fleet's own host waits in no queue"
    return None


def _shared_directory(jobs: Sequence[FleetJob]) -> str | None:
    """Two jobs that write below one directory of one storage would count each other's growth as their own."""
    # Sorted by its parts, a directory comes right before those below it.
    taken = sorted(
        (job.storage_name or "", PurePath(os.path.normpath(path)).parts, index)
        for index, job in enumerate(jobs)
        for path in job.directories
    )
    above: list[tuple[str, tuple[str, ...], int]] = []
    for storage, parts, index in taken:
        while above and not (above[-1][0] == storage and parts[: len(above[-1][1])] == above[-1][1]):
            above.pop()
        if (found := next((each for each in above if each[2] != index), None)) is not None:
            first, second = sorted([(found[2], found[1]), (index, parts)])
            paths = [_shown(str(PurePath(*each[1]))) for each in (second, first)]
            what = (
                "is the cache directory"
                if paths[0] == paths[1]
                else f"and {paths[1]} lie in each other; the other is one"
            )
            return (
                f"jobs[{second[0]}]: {paths[0]} {what} of jobs[{first[0]}], {_shown(jobs[first[0]].name)}: "
                "give each job a directory of its own"
            )
        above.append((storage, parts, index))
    return None


def _mixed(jobs: Sequence[FleetJob]) -> str | None:
    named = next((job for job in jobs if job.deployment is not None), None)
    index = next((index for index, job in enumerate(jobs) if job.deployment is None), None)
    if named is None or index is None:
        return None
    return (
        f"jobs[{index}]: it names no deployment, and {_shown(named.name)} does: a fleet runs over workers or in its own host, "
        "not both"
    )


def _shown(name: str) -> str:
    return f"'{for_terminal(name, 120)}'"
