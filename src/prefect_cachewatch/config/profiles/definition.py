"""What a profile's TOML file holds: its parameters, and templates of job settings that they are filled into.

`{name}` in a template is the value of a parameter, `{name.name}` the last part of it as a path. What has a value that is
not set is left out: an entry of a list, a variable, a window. A list of several templates takes the first that is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, create_model, model_validator

from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.config import (
    DEFAULT_IGNORE,
    CacheJob,
    InputModel,
    MarkerFiles,
    ReadyWhen,
    StallPolicy,
    StopPolicy,
)
from prefect_cachewatch.config.profiles.settings import ProfileSettings

_PART = re.compile(r"\{(\w+)(\.name)?\}")
_MAX_LENGTH = 200
Templates = list[str | list[str]]


class _NotSetError(Exception):
    """A template has a value that is not set."""


class Parameter(InputModel):
    """A parameter of a profile."""

    type: Literal["text", "path", "count", "port", "flag"] = Field(
        default="text", description="text; path: an absolute one; count: from 1 to 1024; port; flag: true or false."
    )
    description: str = Field(description="What it is, in a sentence.")
    required: bool = Field(default=False, description="Whether it must be given.")
    default: str | int | bool | None = Field(default=None, description="Its value where it is not given.")
    pattern: str | None = Field(default=None, description="Regular expression that a text has to match.")
    choices: dict[str, str] = Field(default={}, description="The texts that it may be, and what each stands for.")
    needs: str | None = Field(default=None, description="Parameter without which it means nothing.")

    def field(self) -> tuple[Any, Any]:
        """Return its type and field for pydantic."""
        kinds: Mapping[str, Any] = {
            "text": Annotated[str, Field(min_length=1, max_length=_MAX_LENGTH, pattern=self.pattern)],
            "path": Annotated[Path, AfterValidator(_absolute)],
            "count": Annotated[int, Field(ge=1, le=1024)],
            "port": Annotated[int, Field(ge=1, le=65535)],
            "flag": bool,
        }
        kind: Any = Annotated[str, AfterValidator(self._choose)] if self.choices else kinds[self.type]
        told = f"{self.description}: {', '.join(self.choices)}." if self.choices else self.description
        if self.required:
            return kind, Field(description=told)
        return (kind if self.default is not None else kind | None), Field(default=self.default, description=told)

    def _choose(self, text: str) -> str:
        if (chosen := text.lower().replace("-", "_")) not in self.choices:
            raise ValueError(f"{self.description.lower()} {text!r} is not known{nearest(chosen, self.choices)}")
        return chosen


class Recognition(InputModel):
    """How a generator is known by its command line.

    A source of a value is `--option`, `$VARIABLE` with or without a path after it, `OPERAND` for the first word after the
    command's own that is no option, or a text that stands for itself. The first that has a value is taken.
    """

    commands: list[str] = Field(min_length=1, description="Programs, or modules of python -m, and their first words.")
    name: list[str] = Field(default=[], description="Sources of the job's name; of a path its last part.")
    cache_dirs: list[list[str]] = Field(min_length=1, description="For each directory its sources.")
    no_port: list[str] = Field(default=[], description="Options with which a server answers on no port.")


class Definition(InputModel):
    """A profile as its file says it."""

    summary: str = Field(description="What it is for, in a sentence.")
    parameters: dict[str, Parameter] = Field(default={}, description="Its parameters by name.")
    derived: list[str] = Field(default=[], description="Values that code works out from a file of upstream's.")
    name: list[str] = Field(default=[], description="Templates of the job's name.")
    cache_dirs: Templates = Field(description="Templates of the directories that must grow.")
    env: dict[str, str] = Field(default={}, description="Templates of variables.")
    ignore: list[str] = Field(default=[], description="Globs that never count, beside the usual ones.")
    stall: dict[str, float | str] = Field(default={}, description="Windows: fields of a stall policy.")
    stop: dict[str, float | str] = Field(default={}, description="How its tree is stopped: fields of a stop policy.")
    before_retry: list[str] = Field(
        default=[], description="Command before each further attempt, if all of its values are set."
    )
    command: list[str] = Field(default=[], description="Templates of the generator's argv.")
    command_with: dict[str, list[str]] = Field(
        default={}, description="For a parameter the words that are added where it is given."
    )
    ready: dict[str, str] = Field(default={}, description="When the job is done; fields of its kind.")
    markers: MarkerFiles | None = Field(default=None, description="Marker files for other programs.")
    progress_log: list[str] = Field(default=[], description="Patterns of the lines of progress; no templates.")
    hints: list[str] = Field(default=[], description="What the profile cannot do, a sentence each.")
    key: dict[str, str] = Field(default={}, description="Templates of what the cache depends on.")
    recognize: Recognition | None = Field(default=None, description="How its generator is known by a command line.")

    @model_validator(mode="after")
    def _uses_what_it_has(self) -> Definition:
        known = {*self.parameters, *self.derived}
        fields = (
            self.name,
            self.cache_dirs,
            self.env,
            self.stall,
            self.command,
            self.command_with,
            self.before_retry,
            self.ready,
            self.key,
        )
        used = {found[1] for text in _texts([*fields, self.hints]) for found in _PART.finditer(text)}
        for name in sorted(
            {*used, *self.command_with, *(p.needs for p in self.parameters.values() if p.needs)} - known
        ):
            raise ValueError(f"there is no parameter {name!r}{nearest(name, known)}")
        for which, policy in (("stall", StallPolicy), ("stop", StopPolicy)):
            for name in getattr(self, which).keys() - policy.model_fields.keys():
                raise ValueError(f"{which} has no field {name!r}{nearest(name, policy.model_fields)}")
        return self

    @cached_property
    def form(self) -> type[BaseModel]:
        """The model of its parameters."""
        fields: dict[str, Any] = {name: parameter.field() for name, parameter in self.parameters.items()}
        return create_model("Parameters", __base__=InputModel, **fields)

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of the parameters that are not given."""
        return {name: parameter.default for name, parameter in self.parameters.items()}

    def fill(self, values: Mapping[str, Any], cache_dirs: Iterable[Path] | None = None) -> ProfileSettings:
        """Fill values into the templates.

        Args:
            values: of parameters and what is derived from them.
            cache_dirs: instead of the file's own.

        Returns:
            The settings.

        Raises:
            ValueError: a setting is not valid with these values.
        """
        command = _all(self.command, values)
        if len(command) < len(self.command):
            command = []
        else:
            command += [
                word for name, words in self.command_with.items() if values.get(name) for word in _all(words, values)
            ]
        reset = _all(self.before_retry, values)
        stall = _mapping({name: str(value) for name, value in self.stall.items()}, values)
        dirs = _all(self.cache_dirs, values) if cache_dirs is None else [str(path) for path in cache_dirs]
        name = (next(iter(_all([self.name], values)), None) or "generator").replace("/", "--")[:_MAX_LENGTH]
        ready = TypeAdapter[ReadyWhen](ReadyWhen).validate_python(_mapping(self.ready, values)) if self.ready else None
        # The job checks what the file says; directories may be missing where a command line does not tell them.
        job = CacheJob(
            name=name, command=command or ["-"], cache_dirs=[Path(path) for path in dirs or ["/"]], env=_mapping(self.env, values),
            ignore=[*DEFAULT_IGNORE, *self.ignore], progress_log=self.progress_log, markers=self.markers,
        )  # fmt: skip
        policy = StallPolicy.model_validate(stall)
        return ProfileSettings(
            name=name,
            cache_dirs=tuple(job.cache_dirs) if dirs else (),
            env=job.env,
            ignore=tuple(job.ignore),
            stall={name: getattr(policy, name) for name in stall},
            retry={"before_retry": reset} if reset and len(reset) == len(self.before_retry) else {},
            stop=StopPolicy.model_validate(self.stop).model_dump(include=set(self.stop)),
            command=tuple(command),
            ready=ready,
            markers=job.markers,
            progress_log=tuple(job.progress_log),
            hints=tuple(_all(self.hints, values)),
            key=_mapping(self.key, values),
        )


def _filled(template: str, values: Mapping[str, Any]) -> str | None:
    """Fill one template; None if a value is not set, or if nothing is left.

    Example:
        >>> _filled("{a}/x", {"a": "/c"}), _filled("{a.name}", {"a": "/c/d"}), _filled("{a}", {"a": None})
        ('/c/x', 'd', None)
    """

    def value_of(found: re.Match[str]) -> str:
        if (value := values.get(found[1])) is None:
            raise _NotSetError
        return PurePath(value).name if found[2] else str(value)

    try:
        return _PART.sub(value_of, template) or None
    except _NotSetError:
        return None


def _all(templates: Iterable[str | list[str]], values: Mapping[str, Any]) -> list[str]:
    found = []
    for entry in templates:
        texts = (_filled(text, values) for text in ([entry] if isinstance(entry, str) else entry))
        found += [text] if (text := next(filter(None, texts), None)) else []
    return found


def _mapping(templates: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    filled = {name: _filled(template, values) for name, template in templates.items()}
    return {name: value for name, value in filled.items() if value is not None}


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        data = data.values()
    for each in data:
        if isinstance(each, str):
            yield each
        elif not isinstance(each, float):
            yield from _texts(each)


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is not an absolute path: write it from / on")
    return path
