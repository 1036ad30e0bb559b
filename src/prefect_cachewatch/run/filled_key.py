"""Fills the key of a known generator: its command line and environment, then upstream's own files, as far as they are there.

The files are read in the helper process: a model may lie on storage that hangs. The part that runs there needs the
standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.common.aside import Files, look_ahead
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.missed import KnownKey

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob
    from prefect_cachewatch.config.profiles.commandline import CommandLine
    from prefect_cachewatch.config.profiles.key import FoundKey

_CONFIG_BYTES = 16 << 20
_NAMES_MAX = 20_000


@dataclass(frozen=True)
class FilledKey(KnownKey):
    """A key as far as it is known."""

    #: Parts that cannot be known from here.
    unknown: tuple[str, ...] = ()
    profile: str = ""

    def sentence(self) -> str:
        """Say what was filled, and what is not known.

        Example:
            >>> FilledKey({"dtype": "bf16"}, {"vllm": "0.11.0"}, unknown=("mesh",), profile="vllm-compile-cache").sentence()
            'key by the profile vllm-compile-cache: dtype=bf16, version of vllm=0.11.0; not known: mesh'
        """
        parts = [f"{name}={for_terminal(value)}" for name, value in self.values.items()]
        parts += [f"version of {name}={for_terminal(value)}" for name, value in self.versions.items()]
        left = f"; not known: {', '.join(self.unknown)}" if self.unknown else ""
        return f"key by the profile {self.profile}: {', '.join(parts) or 'nothing'}{left}"


@dataclass(frozen=True)
class Upstream:
    """What the files of model and installation say."""

    config: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """Where the files of model and installation are looked for; null where the command leads to none."""

    #: Directory of a model that is one of this host; the hub's cache is not read, as a run may fill it: a key must not change by it.
    model: str | None
    #: Programs by which the interpreter is found, and the directories that they may be in.
    programs: tuple[str, ...]
    path: tuple[str, ...]
    #: Packages whose versions are wanted.
    packages: tuple[str, ...]
    #: The file VERSION of tt-inference-server, and tt-metal's link to its build.
    version_file: str | None
    build_link: str | None


@dataclass(frozen=True)
class OpenKey:
    """A key as far as command and environment say it, and where the rest may be found."""

    profile: str
    values: Mapping[str, str]
    in_config: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, str]
    unknown: tuple[str, ...]
    #: Null for a container: the files of its image are not seen from here.
    places: Places | None


def fill_key(job: CacheJob, files: Files, env: Mapping[str, str]) -> FilledKey | None:
    """Fill the key of a job's cache, if a profile knows its command.

    Args:
        job: the job.
        files: the helper process.
        env: the generator's environment; of a container only what the job gives it.

    Returns:
        The key; None if no profile knows the command.

    Raises:
        InputError: the file system of model or installation does not answer, so that the key cannot be known.
    """
    opened = open_key(job, env)
    return None if opened is None else complete_key(opened, files)


def known_key(job: CacheJob, files: Files, env: Mapping[str, str]) -> KnownKey:
    """Fill the key for a comparison with the run before: empty if it is not known, since this must stop no run."""
    with contextlib.suppress(InputError):
        return compared_key(open_key(job, env), files)
    return KnownKey()


def compared_key(opened: OpenKey | None, files: Files) -> KnownKey:
    """Complete a key for a comparison with the run before: empty if it cannot be, since this must stop no run."""
    with contextlib.suppress(InputError, OSError, ValueError):
        if opened is not None:
            return complete_key(opened, files)
    return KnownKey()


def open_key(job: CacheJob, env: Mapping[str, str]) -> OpenKey | None:
    """Read what command and environment say of a job's key; see `fill_key`."""
    from prefect_cachewatch.config.profiles.registry import find_key  # noqa: PLC0415 - pydantic stays out of a long watch

    apart = job.container is not None
    known = find_key(job.command, dict(job.env) if apart else env, str(job.cwd or os.getcwd()))
    if known is None:
        return None
    name, line, found = known
    places = None if apart else _places(job.command, line, found)
    return OpenKey(name, found.values, found.in_config, found.defaults, found.unknown, places)


def complete_key(opened: OpenKey, files: Files) -> FilledKey:
    """Add what upstream's files say; raises as `fill_key` does."""
    upstream, packages = Upstream(), tuple[str, ...]()
    if opened.places is not None:
        packages = opened.places.packages
        what = f"a file that the key by the profile {opened.profile} is read from"
        upstream = look_ahead(files, what, read_upstream, opened.places)
    values, unknown = dict(opened.values), [*opened.unknown]
    for part, paths in opened.in_config.items():
        told = next((one for path in paths if (one := _at(upstream.config, path)) is not None), None)
        value = opened.defaults.get(part) if told is None else told
        if value is None:
            unknown.append(part)
        else:
            values[part] = value
    values = {**upstream.values, **values}
    found = {*values, *(["revision"] if "model config" in values else [])}  # the digest stands for it
    unknown = [part for part in unknown if part not in found]
    unknown += [f"version of {package}" for package in packages if package not in upstream.versions]
    return FilledKey(values, dict(upstream.versions), unknown=tuple(unknown), profile=opened.profile)


def _at(config: Mapping[str, Any], path: str) -> str | None:
    value: Any = config
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else value[0] if isinstance(value, list) and value else None
    return str(value)[:1000] if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _places(command: Sequence[str], line: CommandLine, found: FoundKey) -> Places:
    env, model = line.env, found.model
    metal = line.place(env.get("TT_METAL_HOME"))
    return Places(
        model=line.place(model),
        programs=tuple(word for word in command if os.path.basename(word).startswith("python") or word == line.path)[
            :2
        ],
        path=(line.cwd, *(line.env.get("PATH") or os.defpath).split(os.pathsep)),
        packages=found.packages,
        version_file=line.place(os.path.join(os.path.dirname(line.path), "VERSION"))
        if line.program == "run.py"
        else None,
        build_link=f"{metal}/build" if metal else None,
    )


def read_upstream(places: Places) -> Upstream:
    """Read the files of a model and of the generator's installation; what is not there is left out. For the helper process."""
    values: dict[str, str] = {}
    data = _small_bytes(f"{places.model}/config.json") if places.model else None
    config: Any = None
    if data is not None:
        values["model config"] = f"{zlib.crc32(data):08x}-{len(data)}"
        with contextlib.suppress(ValueError, RecursionError):
            config = json.loads(data)
    with contextlib.suppress(OSError):
        if places.build_link:
            values["build variant"] = os.path.basename(os.readlink(places.build_link))
    versions = _versions(places)
    if places.version_file and (version := _small_text(places.version_file)):
        versions["tt-inference-server"] = version
    return Upstream(config if isinstance(config, dict) else {}, values, versions)


def _versions(places: Places) -> dict[str, str]:
    for name in places.programs if places.packages else ():
        program = next((path for place in places.path if os.path.isfile(path := os.path.join(place, name))), None)
        if program is None:
            continue
        python = program if os.path.basename(program).startswith("python") else _shebang(program)
        if python and (found := _installed(os.path.dirname(os.path.dirname(python)), places.packages)):
            return found
    return {}


def _shebang(program: str) -> str | None:
    first = (_small_bytes(program) or b"").split(b"\n", 1)[0]
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    return words[0] if words and "\0" not in words[0] and os.path.basename(words[0]).startswith("python") else None


def _installed(prefix: str, packages: Sequence[str]) -> dict[str, str]:
    """Read versions from the names of what pip has installed, without starting the interpreter."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for version in sorted(os.listdir(f"{prefix}/lib")):
            if version.startswith("python3"):
                with contextlib.suppress(OSError):
                    for name in os.listdir(f"{prefix}/lib/{version}/site-packages")[:_NAMES_MAX]:
                        package, dash, rest = name.removesuffix(".dist-info").partition("-")
                        if dash and name.endswith(".dist-info") and package.lower() in packages:
                            found[package.lower()] = rest
    return found


def _small_text(path: str) -> str | None:
    data = _small_bytes(path)
    return None if data is None else data[:100].decode("ascii", "replace").strip()


def _small_bytes(path: str) -> bytes | None:
    """Read a regular file of a bounded size; None if there is none, so that no pipe in its place is waited for."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            fits = stat.S_ISREG(status.st_mode) and status.st_size <= _CONFIG_BYTES
            return file.read() if fits else None
    except (OSError, ValueError):
        return None
