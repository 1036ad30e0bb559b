"""Reads the user's files: PLAN.yaml and storage profiles. Each error is one sentence with file and field."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.profile import LinkProfile, StorageProfile
from prefect_cachewatch.capacity.presets import link_preset, storage_preset
from prefect_cachewatch.common.inputs import nearest, validate
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.yamlfile import read_yaml
from prefect_cachewatch.errors import InputError

_KEYS = ("storage", "link", "workloads", "policy")
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class PlanInput:
    """The content of a PLAN.yaml, checked."""

    storage: StorageProfile
    link: LinkProfile
    workloads: tuple[WorkloadClass, ...]
    policy: Policy


def read_plan(path: Path, *, needs_workloads: bool = True) -> PlanInput:
    """Read a PLAN.yaml.

    Args:
        path: the file; a storage profile named in it is looked for beside it.
        needs_workloads: whether a file without workloads is refused.

    Returns:
        Storage, link, workloads and policy.

    Raises:
        InputError: if it cannot be read or understood; the sentence names file and field.
    """
    shown = for_terminal(str(path))
    data = _mapping(read_yaml(path), shown)
    _refuse_unknown(data, _KEYS, shown, "")
    if "storage" not in data:
        raise InputError(f"{shown}: storage is missing: give a preset, a profile's file, or its curves")
    storage = _storage(data["storage"], path.parent, shown)
    link = _link(data.get("link"), shown)
    workloads = data.get("workloads", None if needs_workloads else [])
    if not isinstance(workloads, list) or (needs_workloads and not workloads):
        raise InputError(f"{shown}: workloads is not a list of classes: write each as `- name: ...` below it")
    classes = [
        validate(WorkloadClass, _with_codec(entry, storage, f"{shown}: workloads[{i}]"), shown, f"workloads[{i}]")
        for i, entry in enumerate(workloads)
    ]
    policy = validate(Policy, data.get("policy") or {}, shown, "policy")
    return PlanInput(storage, link, tuple(classes), policy)


def read_storage(path: Path) -> StorageProfile:
    """Read a storage profile as `cachewatch probe` writes it.

    Args:
        path: the file.

    Returns:
        The profile.

    Raises:
        InputError: if it cannot be read or understood.
    """
    shown = for_terminal(str(path))
    return validate(StorageProfile, _mapping(read_yaml(path), shown), shown, "")


def _storage(entry: Any, beside: Path, shown: str) -> StorageProfile:
    if isinstance(entry, str):
        entry = {"profile": entry} if entry.endswith((".yaml", ".yml")) else {"preset": entry}
    data = dict(_mapping(entry, f"{shown}: storage"))
    preset, profile, tib = (
        data.pop("preset", None),
        data.pop("profile", None),
        data.pop("provisioned_tib", None),
    )
    if preset is not None and profile is not None:
        raise InputError(f"{shown}: storage has a preset and a profile, which contradict each other: keep one")
    if tib is not None and preset is None:
        raise InputError(f"{shown}: storage.provisioned_tib belongs to a preset, and there is none: leave it out")
    if tib is not None and (isinstance(tib, bool) or not isinstance(tib, (int, float))):
        raise InputError(f"{shown}: storage.provisioned_tib is not a number of TiB: write it like 10")
    base: dict[str, Any] = {}
    if preset is not None:
        base = _named(lambda: storage_preset(str(preset), tib), shown).model_dump()
        if any(key in data for key in ("sequential_read", "sequential_write", "random_read")):
            base |= {"basis": "given", "source": f"preset {preset} with curves of its own"}
    elif profile is not None:
        base = read_storage(beside / os.path.expanduser(str(profile))).model_dump()
    return validate(StorageProfile, base | data, shown, "storage")


def _link(entry: Any, shown: str) -> LinkProfile:
    if entry is None:
        return LinkProfile()
    data = {"preset": entry} if isinstance(entry, str) else dict(_mapping(entry, f"{shown}: link"))
    preset = data.pop("preset", None)
    if preset is not None and "bytes_per_s" in data:
        raise InputError(f"{shown}: link has a preset and bytes_per_s, which contradict each other: keep one")
    base = _named(lambda: link_preset(str(preset)), shown).model_dump() if preset is not None else {}
    return validate(LinkProfile, base | data, shown, "link")


def _named(make: Callable[[], _Model], shown: str) -> _Model:
    """A preset, with the file's name before whatever is wrong with it."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"{shown}: {error.message}") from None


def _with_codec(entry: Any, storage: StorageProfile, where: str) -> Any:
    """A codec may be named by one that the probe measured for this storage."""
    if not isinstance(entry, dict) or not isinstance(entry.get("codec"), str):
        return entry
    for codec in storage.codecs:
        if codec.name == entry["codec"]:
            return entry | {"codec": codec.model_dump()}
    known = [codec.name for codec in storage.codecs]
    hint = nearest(entry["codec"], known) if known else ": measure it with cachewatch probe --codec"
    raise InputError(f"{where}.codec {for_terminal(entry['codec'])!r} is not among the storage's codecs{hint}")


def _mapping(data: Any, where: str) -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{where} is not a mapping of names to values: write `name: value` lines")
    return data


def _refuse_unknown(data: dict[Any, Any], known: tuple[str, ...], shown: str, prefix: str) -> None:
    for key in data:
        if key not in known:
            raise InputError(f"{shown}: {prefix}{for_terminal(str(key))} is not known{nearest(str(key), known)}")
