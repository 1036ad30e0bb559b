"""Reads the user's files: PLAN.yaml and storage profiles. Each error is one sentence with file and field."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_cachewatch.capacity.inputs import PlanInput, StorageProfile
from prefect_cachewatch.common.inputs import validate
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.yamlfile import read_yaml


def read_plan(path: Path, recorded: bool = False) -> PlanInput:
    """Read a PLAN.yaml.

    Args:
        path: the file; a storage profile that it names is looked for beside it.
        recorded: whether a recorded run gives the first class its bursts and pauses, so that the file need not.

    Returns:
        Storage, link, workloads and policy; sizes are said in the units that the file has.

    Raises:
        InputError: if it cannot be read or understood; the sentence names file and field.
    """
    data = read_yaml(path)
    if isinstance(data, dict) and isinstance(data.get("storage"), str):
        profile = path.parent / os.path.expanduser(data["storage"])
        data["storage"] = read_storage(profile).model_dump(exclude_unset=True)
    if recorded and isinstance(data, dict) and isinstance(jobs := data.get("workloads"), list):
        first = next((job for job in jobs if isinstance(job, dict) and job.get("running") is None), {})
        first |= {name: first.get(name, value) for name, value in (("burst_bytes", "1MB"), ("think_s", 0))}
    return validate(PlanInput, data, for_terminal(str(path)), "")


def read_storage(path: Path) -> StorageProfile:
    """Read a storage profile as `cachewatch probe` writes it.

    Args:
        path: the file.

    Returns:
        The profile.

    Raises:
        InputError: if it cannot be read or understood.
    """
    return validate(StorageProfile, read_yaml(path), for_terminal(str(path)), "")
