"""The known profiles by name, those that know a command line, and profiles with the parameters that people write."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefect_cachewatch.common.aside import Aside, look_ahead
from prefect_cachewatch.common.files import read_input
from prefect_cachewatch.common.inputs import nearest, parse_toml, validate
from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob, StallPolicy
from prefect_cachewatch.config.profiles import tt_inference_server
from prefect_cachewatch.config.profiles.commandline import CommandLine, read_command
from prefect_cachewatch.config.profiles.definition import Definition
from prefect_cachewatch.config.profiles.settings import ProfileSettings
from prefect_cachewatch.errors import InputError

#: Names a directory of TOML files; a profile in it takes precedence over the built-in one of the same name.
VARIABLE = "CACHEWATCH_PROFILES"
_BUILT_IN = Path(__file__).parent


@dataclass(frozen=True)
class Profile:
    """A known generator with its parameters; `make_profile` makes one.

    Attributes:
        name: of the profile.
        settings: the job settings that follow from its parameters.
    """

    name: str
    settings: ProfileSettings

    def job(self, command: Sequence[str] = (), **more: Any) -> CacheJob:
        """Make the job.

        Args:
            command: the generator's argv; default the profile's, if it has one.
            more: further fields of a `CacheJob`; they override the profile's.

        Returns:
            The job.

        Raises:
            ValueError: a field is not valid, or there is no command.
        """
        argv = list(command) or list(self.settings.command)
        if not argv:
            raise ValueError(f"the profile {self.name} knows no command: give the generator's argv")
        return self.settings.under_job(CacheJob(**{"name": self.settings.name, "command": argv, **more}))

    def stall(self, **more: Any) -> StallPolicy:
        """Make the stall policy.

        Args:
            more: fields that override the profile's.

        Returns:
            The policy.
        """
        return StallPolicy(**{**self.settings.stall, **more})


def known_profiles() -> list[str]:
    """List the names of all profiles.

    Example:
        >>> known_profiles()[:2]
        ['hf-download', 'openvino']
    """
    return sorted(_files())


def find_profile(name: str) -> Definition:
    """Read a profile's file.

    Args:
        name: of the profile.

    Returns:
        What it holds.

    Raises:
        InputError: there is no profile of this name, or its file is not valid.

    Example:
        >>> find_profile("openvino").summary
        "OpenVINO's model cache (CACHE_DIR): a blob for each compiled model."
    """
    files = _files()
    if name not in files:
        raise InputError(
            f"there is no profile {for_terminal(name, 60)!r}{_nearest_profile(name, list(files))} (see cachewatch profiles)"
        )
    return _read(*files[name])


def recognize_profile(command: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[str, ProfileSettings] | None:
    """Find the profile that knows a command line.

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
    for name, file in sorted(_files().items()):
        # A file that is broken, or options that the generator itself will refuse, stop no run.
        try:
            definition = _read(*file)
        except InputError:
            continue
        try:
            if (found := _recognized(name, definition, line)) is not None:
                return name, replace(found, env={}, command=(), markers=None, hints=())
        except ValidationError:
            continue
    return None


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
        >>> make_profile("openvino", {"cache_dir": "/mnt/ov"}).job(["compile"]).cache_dirs
        [PosixPath('/mnt/ov')]
    """
    return Profile(name, _settings_of(name, find_profile(name), parameters))


def _settings_of(name: str, definition: Definition, parameters: Mapping[str, Any]) -> ProfileSettings:
    for key in parameters:
        if key not in definition.parameters:
            raise InputError(
                f"profile {name} has no parameter {for_terminal(str(key), 60)!r}{nearest(str(key), definition.parameters)}"
            )
    try:
        values: dict[str, Any] = dict(definition.form(**parameters))
        for key, parameter in definition.parameters.items():
            if parameter.needs and values[key] is not None and values[parameter.needs] is None:
                raise InputError(f"profile {name}: {key} belongs to a {parameter.needs}: give {parameter.needs} too")
        if name == tt_inference_server.NAME:
            values |= tt_inference_server.derive(values, definition.parameters["device"].choices)
        return definition.fill(values)
    except ValidationError as error:
        raise InputError(_explain(name, definition, error)) from None


def _recognized(name: str, definition: Definition, line: CommandLine) -> ProfileSettings | None:
    if name == tt_inference_server.NAME:
        return tt_inference_server.recognize(line, lambda given: _settings_of(name, definition, given))
    known = definition.recognize
    words = next((each.split() for each in (known.commands if known else ()) if line.begins(each.split())), None)
    if known is None or words is None:
        return None
    dirs: list[str] = []
    for sources in known.cache_dirs:
        place = next(filter(None, (line.place(line.value(source, words)) for source in sources)), None)
        if place is not None and not any(is_in(place, other) for other in dirs):
            dirs.append(place)
    values = definition.defaults
    found = definition.fill(values | line.address(values), map(Path, dirs))
    if found.ready is not None:
        found = replace(found, ready=line.readiness(found.ready, *known.no_port))
    named = next(filter(None, (line.value(source, words) for source in known.name)), "")
    return replace(found, name=named.rstrip("/").rpartition("/")[2][:200] or found.name)


def read_profile(chosen: Any) -> ProfileSettings:
    """Return the settings of a profile that was written as a mapping.

    Args:
        chosen: the profile's `name` and its parameters.

    Raises:
        InputError: as `make_profile`; or it is no mapping with a name.

    Example:
        >>> read_profile({"name": "openvino", "cache_dir": "/mnt/ov"}).stall["stall_after_s"]
        600.0
    """
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("name"), str):
        raise InputError("profile is no mapping with a name: write profile: {name: tt-inference-server, model: ...}")
    return make_profile(chosen["name"], {key: value for key, value in chosen.items() if key != "name"}).settings


def _files() -> dict[str, tuple[str, bytes]]:
    """Read the files of profiles: for each name how the file is called in a sentence, and what it holds."""
    found = _directory(str(_BUILT_IN))
    if own := os.environ.get(VARIABLE):
        with contextlib.closing(Aside.spawn()) as files:
            try:
                found |= look_ahead(files, f"{VARIABLE}={own}", _directory, os.path.abspath(os.path.expanduser(own)))
            except OSError as error:
                raise InputError(
                    f"{VARIABLE}: {for_terminal(error.filename or own, 4096)} cannot be read ({error.strerror}): name a directory of "
                    "profiles"
                ) from None
    return found


def _directory(path: str) -> dict[str, tuple[str, bytes]]:
    names = sorted(name for name in os.listdir(path) if name.endswith(".toml") and not name.startswith("."))
    return {
        name.removesuffix(".toml"): (os.path.join(path, name), read_input(os.path.join(path, name))) for name in names
    }


def _read(path: str, raw: bytes) -> Definition:
    shown = f"profile {for_terminal(path, 4096)}"
    return validate(Definition, parse_toml(raw, shown), shown, "")


def _nearest_profile(name: str, known: Sequence[str]) -> str:
    """As `nearest`, and a name may also be like the first word of a profile's: most people know only that one."""
    if "did you mean" in (hint := nearest(name, known)):
        return hint
    firsts = {profile.partition("-")[0]: profile for profile in reversed(known)}
    close = difflib.get_close_matches(name.lower(), firsts, 1, 0.6)
    return nearest(firsts[close[0]] if close else name, known)


def _explain(name: str, definition: Definition, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing" and where in definition.parameters:
        return f"profile {name} needs the parameter {where}: {definition.parameters[where].description.rstrip('.')}"
    what = first["msg"].removeprefix("Value error, ")
    shown = for_terminal(repr(first["input"]), 80)
    given = "" if not where or shown[1:-1] in what else f" (given: {shown})"
    return f"profile {name}: {f'{where}: ' if where else ''}{what[0].lower()}{what[1:]}{given}"
