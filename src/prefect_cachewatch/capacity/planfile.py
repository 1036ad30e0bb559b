"""Read what people write: PLAN.yaml and storage profiles, each error one sentence with file and field."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from prefect_cachewatch.capacity.presets import link_preset, nearest, storage_preset
from prefect_cachewatch.capacity.profile import LinkProfile, StorageProfile
from prefect_cachewatch.capacity.workload import Policy, WorkloadClass
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.text import for_terminal

__all__ = ["PlanInput", "read_plan", "read_storage", "read_yaml", "validate"]

_MAX_BYTES = 4 * 2**20
_KEYS = ("storage", "link", "workloads", "policy")
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class PlanInput:
    """The content of a PLAN.yaml, checked."""

    storage: StorageProfile
    link: LinkProfile
    workloads: tuple[WorkloadClass, ...]
    policy: Policy


def read_plan(path: Path) -> PlanInput:
    """Read a PLAN.yaml.

    Args:
        path: the file; a storage profile named in it is looked for beside it.

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
    workloads = data.get("workloads")
    if not isinstance(workloads, list) or not workloads:
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


def read_yaml(path: Path) -> Any:
    """Read one YAML document, refusing a key that is written twice.

    Args:
        path: the file, at most 4 MiB.

    Returns:
        What it holds.

    Raises:
        InputError: if it cannot be read; the sentence says where and why.
    """
    shown = for_terminal(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{shown} cannot be read ({error.strerror}): check the path") from None
    if len(raw) > _MAX_BYTES:
        raise InputError(f"{shown} is larger than 4 MiB: that is no plan; check the path")
    try:
        return yaml.load(raw, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = for_terminal(" ".join((error.problem or "not YAML").split()))
        raise InputError(f"{shown}{line}: {problem}: correct the YAML") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{shown} is not YAML ({type(error).__name__}): check the file") from None


def validate(model: type[_Model], data: Any, file: str, field: str) -> _Model:
    """Build a model from data, with one sentence for the first thing that is wrong.

    Args:
        model: the pydantic model.
        data: what was read.
        file: the file's name for the sentence.
        field: where in the file, "" at its top.

    Returns:
        The model.

    Raises:
        InputError: if the data do not fit; the sentence names the field, and the nearest one to
            an unknown key.
    """
    try:
        return model.model_validate(data)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise InputError(f"{file}: {field or 'it'} refers to itself: write it out") from None
        # An unknown key comes first: the field missed by a typing error is then only its consequence.
        problems = sorted(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
        raise InputError(_sentence(model, problems[0], len(problems), file, field)) from None


def _sentence(model: type[BaseModel], problem: Any, count: int, file: str, field: str) -> str:
    where = field
    for part in problem["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    more = f" (and {count - 1} more)" if count > 1 else ""
    name = for_terminal(where, 120) or "it"
    if problem["type"] == "extra_forbidden":
        return f"{file}: {name} is not known{nearest(str(problem['loc'][-1]), _fields(model, problem['loc']))}{more}"
    if problem["type"] == "missing":
        return f"{file}: {name} is missing: {_describe(model, problem['loc'])}{more}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if message.startswith("Input ") else message
    given = problem.get("input")
    if problem["type"] == "value_error":
        return f"{file}: {name}: {for_terminal(message, 400)}{more}"
    shown = for_terminal(repr(given), 60)
    return f"{file}: {name} = {shown}: {for_terminal(message, 300)}{more}"


def _models(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model that the last part of a location belongs to."""
    found: type[BaseModel] | None = model
    for part in loc[:-1]:
        if isinstance(part, int) or found is None:
            continue
        field = found.model_fields.get(str(part))
        found = _model_in(field.annotation) if field else None
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _fields(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    found = _models(model, loc)
    return list(found.model_fields) if found else []


def _describe(model: type[BaseModel], loc: tuple[Any, ...]) -> str:
    found = _models(model, loc)
    field = found.model_fields.get(str(loc[-1])) if found else None
    return (field.description or "give it").rstrip(".") if field else "give it"


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
        base = read_storage(beside / Path(str(profile)).expanduser()).model_dump()
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


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, of which YAML would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is written twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)
