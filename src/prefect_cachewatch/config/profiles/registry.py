"""The known profiles by name, built in or from a package's entry point, and profiles made from user input."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob, StallPolicy
from prefect_cachewatch.config.profiles.base import Profile, ProfileSettings
from prefect_cachewatch.errors import InputError

__all__ = ["GROUP", "complete_job", "expand_profile", "find_profile", "known_profiles", "make_profile"]

GROUP = "prefect_cachewatch.profiles"
_PACKAGE = "prefect_cachewatch.config.profiles"
# name -> module:class; imported on first use.
_BUILT_IN = {
    "tt-inference-server": f"{_PACKAGE}.tt_inference_server:TTInferenceServer",
    "torch-compile": f"{_PACKAGE}.compilers:TorchCompile",
    "openvino": f"{_PACKAGE}.compilers:OpenVino",
    "vllm-compile-cache": f"{_PACKAGE}.compilers:VllmCompileCache",
    "trtllm-build": f"{_PACKAGE}.compilers:TensorRTLLM",
    "hf-download": f"{_PACKAGE}.huggingface:HuggingFaceDownload",
}


def known_profiles() -> list[str]:
    """List the names of all profiles, the built-in ones first.

    Example:
        >>> known_profiles()[:2]
        ['tt-inference-server', 'torch-compile']
    """
    return [*_BUILT_IN, *sorted(set(_others()) - set(_BUILT_IN))]


def find_profile(name: str) -> type[Profile]:
    """Find a profile's class.

    Args:
        name: of the profile.

    Returns:
        The class.

    Raises:
        InputError: there is no profile of this name, or the package that provides it is broken.

    Example:
        >>> find_profile("openvino").summary
        "OpenVINO's model cache (CACHE_DIR): a blob for each compiled model."
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        found: Any = getattr(importlib.import_module(module), attribute)
    else:
        other = _others().get(name)
        if other is None:
            raise InputError(
                f"there is no profile {for_terminal(name, 60)!r}{nearest(name, known_profiles())} "
                "(see cachewatch profiles)"
            )
        try:
            found = other.load()
        except Exception as error:
            raise InputError(
                f"profile {for_terminal(name, 60)!r} of {other.value} cannot be loaded ({type(error).__name__}: "
                f"{for_terminal(str(error), 200)}): repair or remove the package that has it"
            ) from error
    if not (isinstance(found, type) and issubclass(found, Profile)):
        raise InputError(
            f"profile {for_terminal(name, 60)!r} is no subclass of prefect_cachewatch.config.profiles.Profile: "
            "repair or remove the package that has it"
        )
    return found


def make_profile(name: str, parameters: Mapping[str, Any]) -> Profile:
    """Make a profile with its parameters.

    Args:
        name: of the profile.
        parameters: by name, as the user wrote them; each may be a string.

    Returns:
        The profile.

    Raises:
        InputError: the profile or a parameter is unknown, missing or not valid.

    Example:
        >>> make_profile("openvino", {"cache_dir": "/mnt/ov"}).cache_dir
        PosixPath('/mnt/ov')
    """
    kind = find_profile(name)
    for key in parameters:
        if key not in kind.model_fields:
            raise InputError(
                f"profile {name} has no parameter {for_terminal(str(key), 60)!r}{nearest(str(key), kind.model_fields)}"
            )
    try:
        return kind(**parameters)
    except ValidationError as error:
        raise InputError(_explain(name, kind, error)) from None


def complete_job(chosen: Mapping[str, Any] | None, job: CacheJob, stall: StallPolicy) -> tuple[CacheJob, StallPolicy]:
    """Complete a job and its stall policy by a profile that was written as a mapping; their own settings stay.

    Args:
        chosen: the profile's `name` and its parameters; None for no profile.
        job: with a name and a command.
        stall: its policy.

    Returns:
        Both.

    Raises:
        InputError: as `make_profile`; or the mapping has no name.
    """
    if chosen is None:
        return job, stall
    settings = _settings(chosen)
    return settings.under_job(job), settings.under_stall(stall)


def expand_profile(written: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the `profile` of a job that is written as a mapping by its settings; the job's own fields stay.

    Args:
        written: fields of a `CacheJob`, optionally with `stall`, and `profile`: a mapping of the profile's `name` and
            its parameters.

    Returns:
        The fields without `profile`: `cache_dirs`, `env`, `ignore`, `ready`, `markers`, `command`, `name` and `stall`
        completed. Unchanged if there is no profile.

    Raises:
        InputError: as `make_profile`; or `profile` is no mapping with a name.

    Example:
        >>> found = expand_profile({"command": ["x"], "profile": {"name": "openvino", "cache_dir": "/mnt/ov"}})
        >>> found["cache_dirs"], found["stall"]["stall_after_s"]
        (['/mnt/ov'], 600.0)
    """
    if "profile" not in written:
        return dict(written)
    settings = _settings(written["profile"])
    own = {key: value for key, value in written.items() if key != "profile"}
    fields: dict[str, Any] = {
        "name": settings.name,
        "cache_dirs": [str(path) for path in settings.cache_dirs],
        "ignore": list(settings.ignore),
    }
    if settings.command:
        fields["command"] = list(settings.command)
    if settings.ready is not None:
        fields["ready"] = settings.ready.model_dump(mode="json")
    if settings.markers is not None:
        fields["markers"] = settings.markers.model_dump(mode="json")
    merged: dict[str, Any] = {"env": dict(settings.env), "stall": dict(settings.stall)}
    for key, below in merged.items():
        above = own.get(key) or {}
        fields[key] = {**below, **above} if isinstance(above, Mapping) else above
    return {**fields, **{key: value for key, value in own.items() if key not in merged}}


def _settings(chosen: Any) -> ProfileSettings:
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("name"), str):
        raise InputError("profile is no mapping with a name: write profile: {name: tt-inference-server, model: ...}")
    return make_profile(chosen["name"], {key: value for key, value in chosen.items() if key != "name"}).resolve()


def _others() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}


def _explain(name: str, kind: type[Profile], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        about = kind.model_fields[where].description or ""
        return f"profile {name} needs the parameter {where}: {about.rstrip('.')}"
    what = first["msg"].removeprefix("Value error, ")
    shown = for_terminal(repr(first["input"]), 80)
    given = "" if not where or shown[1:-1] in what else f" (given: {shown})"
    return f"profile {name}: {f'{where}: ' if where else ''}{what[0].lower()}{what[1:]}{given}"
