"""Reads a jobs file: a fleet as YAML. Each error is one sentence with the file, the line and the nearest name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from prefect_cachewatch.common.inputs import nearest, validate
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.yamlfile import YamlFile, open_yaml
from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER
from prefect_cachewatch.config.profiles import expand_profile
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobs import MODELS, FleetJob, FleetPlan, FleetPolicy, check_deployment_name
from prefect_cachewatch.run.delivery import check_delivery

_TOP = ("version", "name", "policy", "defaults", "jobs")
# Fields of one job alone: as a default they would cause an error at the second job.
_NO_DEFAULT = ("name", "cache_dirs")
_MERGED = ("env", "env_secrets", "profile", *MODELS)
# Keys of a job beside its fields: a known generator, from which some of the fields follow.
_JOB_KEYS = (*FleetJob.model_fields, "profile")


def expand_job(defaults: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a job's entry in the file with the defaults and its profile.

    Every entry passes through here before it is checked; a source of further fields (a profile, say) belongs here.

    Args:
        defaults: the file's defaults.
        entry: the job as written.

    Returns:
        The fields of a `FleetJob`. Models (stall, storage and so on), environments and profiles of one name are merged
        key by key; null removes a default. A profile's values have the lowest precedence.

    Raises:
        InputError: the profile, or a parameter of it, is not known or not valid.

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
    return expand_profile({name: value for name, value in found.items() if value is not None})


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
        InputError: it cannot be read or understood; the sentence names file and line.
    """
    file = open_yaml(path)
    data = _mapping(file, file.data, (), "the file")
    _refuse_unknown(file, data, _TOP, ())
    _check_version(file, data)
    defaults = _mapping(file, data.get("defaults") or {}, ("defaults",), "defaults")
    _refuse_unknown(file, defaults, [key for key in _JOB_KEYS if key not in _NO_DEFAULT], ("defaults",))
    if deployment is not None:
        defaults = {"deployment": _deployment(deployment)} | defaults
    entries = data.get("jobs")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{_where(file, ('jobs',))}: jobs is not a list of jobs: write each as `- name: ...` below it")
    top = {key: value for key, value in data.items() if key not in ("defaults", "jobs") and value is not None}
    stands_for_jobs = FleetJob(name="-", command=["-"])  # while the rest of the file is checked
    plan = validate(FleetPlan, {"name": _stem(path), **top, "jobs": [stands_for_jobs]}, file.shown, "", file.line_of)
    jobs = [_job(file, defaults, entry, index) for index, entry in enumerate(entries)]
    if (wrong := _check_jobs(jobs)) is not None:
        index, field, sentence = wrong
        raise InputError(f"{file.shown}, line {_line(file, index, field)}: jobs[{index}]: {sentence}")
    merged = _merged_policy(plan.policy, policy)
    return FleetPlan(version=1, name=name or plan.name, policy=merged, jobs=jobs)


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
        raise InputError(f"jobs[{wrong[0]}]: {wrong[2]}")
    given = {} if name is None else {"name": name}
    return validate(
        FleetPlan, {"version": 1, "policy": policy or FleetPolicy(), "jobs": found, **given}, "the fleet", ""
    )


def _deployment(name: str) -> str:
    try:
        return check_deployment_name(name)
    except ValueError as error:
        raise InputError(f"the deployment {for_terminal(str(error), 200)}") from None


def _job(file: YamlFile, defaults: Mapping[str, Any], entry: Any, index: int) -> FleetJob:
    written = _mapping(file, entry, ("jobs", index), f"jobs[{index}]")
    _refuse_unknown(file, written, _JOB_KEYS, ("jobs", index))
    try:
        fields = expand_job(defaults, written)
    except InputError as error:
        raise InputError(
            f"{file.shown}, line {_line(file, index, ('profile',))}: jobs[{index}]: {error.message}"
        ) from None
    return validate(FleetJob, fields, file.shown, f"jobs[{index}]", lambda loc: _line(file, index, loc))


def _line(file: YamlFile, index: int, loc: Sequence[str | int]) -> int | None:
    """The line of a job's field: in its entry, else in the defaults, else the first line of the entry."""
    # Longest first: retry.backoff_s may be in the defaults while the entry has a retry of its own.
    for length in range(len(loc), 0, -1):
        for base in (("jobs", index), ("defaults",)):
            if file.has((*base, *loc[:length])):
                return file.line_of((*base, *loc[:length]))
    return file.line_of(("jobs", index))


def _merged_policy(written: FleetPolicy, given: Mapping[str, Any]) -> FleetPolicy:
    if not given:
        return written
    both = {**written.model_dump(exclude_unset=True), **given}
    if given.get("on_failure") == "continue" and "max_failures" not in given:
        both.pop("max_failures", None)  # the file's limit belonged to the file's on_failure
    return validate(FleetPolicy, both, "the fleet", "policy")


def _check_version(file: YamlFile, data: Mapping[str, Any]) -> None:
    version = data.get("version")
    if version is None:
        raise InputError(f"{file.shown}: version is missing: write version: 1 at its top")
    if version != 1 or isinstance(version, bool):
        shown = for_terminal(str(version), 20)
        raise InputError(f"{_where(file, ('version',))}: version {shown} is not known: this cachewatch reads version 1")


def _mapping(file: YamlFile, data: Any, loc: Sequence[str | int], what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{_where(file, loc)}: {what} is not a mapping of names to values: write `name: value` lines")
    return data


def _refuse_unknown(file: YamlFile, data: Mapping[Any, Any], known: Sequence[str], loc: Sequence[str | int]) -> None:
    for key in data:
        if key in known:
            continue
        prefix = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in loc)
        name = f"{prefix}.{key}" if prefix else str(key)
        if loc == ("defaults",) and key in _NO_DEFAULT:
            raise InputError(f"{_where(file, (*loc, key))}: {name} cannot be a default: each job needs its own")
        raise InputError(
            f"{_where(file, (*loc, key))}: {for_terminal(name, 120)} is not known{nearest(str(key), known)}"
        )


def _where(file: YamlFile, loc: Sequence[str | int]) -> str:
    line = file.line_of(loc)
    return file.shown if line is None else f"{file.shown}, line {line}"


def _stem(path: Path) -> str:
    return for_terminal(path.name.removesuffix(".yaml").removesuffix(".yml"), 100) or "fleet"


def _check_jobs(jobs: Sequence[FleetJob]) -> tuple[int, tuple[str, ...], str] | None:
    """Find the first error in the jobs as a whole.

    Args:
        jobs: the jobs as written.

    Returns:
        The job's index, the field, and the sentence; None if there is no error.

    Example:
        >>> jobs = [FleetJob(name="a", command=["x"], cache_dirs=["/c"])] * 2
        >>> _check_jobs(jobs)
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
    """Two jobs that write below one directory of one storage would count each other's growth as their own."""
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
