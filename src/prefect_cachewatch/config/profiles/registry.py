"""The known profiles by name, built in or from a package's entry point, and profiles made from user input."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob, StallPolicy
from prefect_cachewatch.config.profiles.base import Profile, ProfileSettings
from prefect_cachewatch.config.profiles.commandline import CommandLine, read_command
from prefect_cachewatch.config.profiles.compilers import OpenVino, SGLang, TensorRTLLM, TorchCompile, VllmCompileCache
from prefect_cachewatch.config.profiles.huggingface import HuggingFaceDownload
from prefect_cachewatch.config.profiles.tt_inference_server import TTInferenceServer
from prefect_cachewatch.errors import InputError

GROUP = "prefect_cachewatch.profiles"
_KINDS: tuple[type[Profile], ...] = (
    TTInferenceServer,
    TorchCompile,
    OpenVino,
    VllmCompileCache,
    SGLang,
    TensorRTLLM,
    HuggingFaceDownload,
)
_BUILT_IN = {kind.profile_name: kind for kind in _KINDS}


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
    found: Any = _BUILT_IN.get(name)
    if found is None:
        other = _others().get(name)
        if other is None:
            raise InputError(
                f"there is no profile {for_terminal(name, 60)!r}{_nearest_profile(name)} (see cachewatch profiles)"
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


def recognize_profile(command: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[str, ProfileSettings] | None:
    """Find the profile that knows a command line, the built-in ones first.

    Args:
        command: argv.
        env: the generator's environment.
        cwd: its working directory, absolute.

    Returns:
        The profile's name, and its settings without environment, command and markers: the run stays as it was
        written. None if no profile knows it.

    Raises:
        InputError: it is a server of which nothing says when it is ready.

    Example:
        >>> name, settings = recognize_profile(["vllm", "serve", "org/m", "--port", "9"], {"HOME": "/home/u"}, "/")
        >>> name, settings.name, str(settings.cache_dirs[0]), settings.ready.url
        ('vllm-compile-cache', 'm', '/home/u/.cache/vllm/torch_compile_cache', 'http://127.0.0.1:9/health')
    """
    line = read_command(command, env, cwd)
    for name in known_profiles():
        if (found := _recognized(name, line)) is not None:
            return name, replace(found, env={}, command=(), markers=None)
    return None


def _recognized(name: str, line: CommandLine) -> ProfileSettings | None:
    # A package's profile that is broken, or options that the generator itself will refuse, stop no run.
    try:
        kind = find_profile(name)
    except InputError:
        return None
    try:
        return kind.recognize(line)
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - as above
        return None


def profile_key(chosen: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return what the parameters of a profile, written as a mapping, say of the cache's key; see `complete_job`."""
    return {} if chosen is None else _settings(chosen).key


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
        The fields without `profile`: `cache_dirs`, `env`, `ignore`, `ready`, `markers`, `progress_log`, `command`, `name`,
        `stall` and the key of `publish` completed. Unchanged if there is no profile.

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
    publish = own.get("publish")
    if settings.key and isinstance(publish, Mapping) and isinstance(given := publish.get("cache_key") or {}, Mapping):
        own["publish"] = {**publish, "cache_key": {**settings.key, **given}}
    fields: dict[str, Any] = {"name": settings.name, "cache_dirs": [str(path) for path in settings.cache_dirs]}
    for key, value in settings.replaceable().items():
        fields[key] = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    if settings.command:
        fields["command"] = list(settings.command)
    merged: dict[str, Any] = {"env": dict(settings.env), "stall": dict(settings.stall)}
    for key, below in merged.items():
        above = own.get(key) or {}
        fields[key] = {**below, **above} if isinstance(above, Mapping) else above
    return {**fields, **{key: value for key, value in own.items() if key not in merged}}


def _settings(chosen: Any) -> ProfileSettings:
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("name"), str):
        raise InputError("profile is no mapping with a name: write profile: {name: tt-inference-server, model: ...}")
    return make_profile(chosen["name"], {key: value for key, value in chosen.items() if key != "name"}).resolve()


def _nearest_profile(name: str) -> str:
    """As `nearest`, and a name may also be like the first word of a profile's: most people know only that one."""
    known = known_profiles()
    if "did you mean" in (hint := nearest(name, known)):
        return hint
    firsts = {profile.partition("-")[0]: profile for profile in reversed(known)}
    close = difflib.get_close_matches(name.lower(), firsts, 1, 0.6)
    return nearest(firsts[close[0]] if close else name, known)


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
