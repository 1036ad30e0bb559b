"""The base of profiles: the parameters of a known generator, and the job settings that follow from them.

A profile starts nothing and looks at nothing but a file that a parameter names: it is data, and the few lines that turn it
into paths, an environment and windows. Settings that a job makes itself override its profile's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from prefect_cachewatch.config import (
    CACHE_DIR_PLACEHOLDER,
    DEFAULT_IGNORE,
    CacheJob,
    InputModel,
    MarkerFiles,
    StallPolicy,
)
from prefect_cachewatch.config.profiles.commandline import CommandLine
from prefect_cachewatch.config.ready import ReadyOnHttp, ReadyWhen


@dataclass(frozen=True)
class ProfileSettings:
    """The job settings of a profile.

    Attributes:
        name: for a job without a name.
        cache_dirs: absolute directories that must grow, the one of the markers first.
        env: environment that makes the generator write there.
        ignore: globs of files that never count.
        stall: fields of a `StallPolicy` that fit this generator; the others stay at their defaults.
        command: the generator's argv, if the profile knows it.
        ready: when the job is done, if that is not its exit.
        markers: files to write for other programs.
        progress_log: patterns of the lines of progress that the generator prints.
        hints: what the profile cannot do for the user, a sentence each.
        key: what the cache depends on, as the parameters say.
    """

    name: str
    cache_dirs: tuple[Path, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = DEFAULT_IGNORE
    stall: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    ready: ReadyWhen | None = None
    markers: MarkerFiles | None = None
    progress_log: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    key: Mapping[str, str] = field(default_factory=dict)

    def replaceable(self) -> dict[str, Any]:
        """Return the fields of a job that it sets as a whole, and that the job's own replace as a whole."""
        fields: dict[str, Any] = {"ignore": list(self.ignore)}
        if self.ready is not None:
            fields["ready"] = self.ready
        if self.markers is not None:
            fields["markers"] = self.markers
        if self.progress_log:
            fields["progress_log"] = list(self.progress_log)
        return fields

    def under_job(self, job: CacheJob) -> CacheJob:
        """Complete a job; its own settings stay.

        Args:
            job: with a name and a command.

        Returns:
            The job with directories, environment, ignore globs, readiness and markers.
        """
        own = job.model_fields_set
        update: dict[str, Any] = {"env": {**self.env, **job.env}}
        if "cache_dirs" not in own or job.cache_dirs == [Path(CACHE_DIR_PLACEHOLDER)]:
            update["cache_dirs"] = list(self.cache_dirs)
        update |= {name: value for name, value in self.replaceable().items() if name not in own}
        return job.model_copy(update=update)

    def under_stall(self, stall: StallPolicy) -> StallPolicy:
        """Complete a stall policy; its own settings stay.

        Example:
            >>> settings = ProfileSettings("x", (Path("/c"),), stall={"stall_after_s": 120, "poll_s": 5})
            >>> found = settings.under_stall(StallPolicy(poll_s=1))
            >>> found.stall_after_s, found.poll_s
            (120, 1.0)
        """
        return stall.model_copy(update={k: v for k, v in self.stall.items() if k not in stall.model_fields_set})


class Profile(InputModel, ABC):
    """The parameters of a known generator; a subclass names itself and says what follows from them."""

    profile_name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""

    @classmethod
    def recognize(cls, line: CommandLine) -> ProfileSettings | None:
        """Know the generator by its command line; default never.

        Args:
            line: the command, its environment and working directory.

        Returns:
            The settings, with the directories that it writes to as it is called; none if they do not follow from the
            command line. Environment, command and markers are left out by the caller: a run stays as it was written.
        """
        return None

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
        settings = self.resolve()
        argv = list(command) or list(settings.command)
        if not argv:
            raise ValueError(f"the profile {self.profile_name} knows no command: give the generator's argv")
        return settings.under_job(CacheJob(**{"name": settings.name, "command": argv, **more}))

    def stall(self, **more: Any) -> StallPolicy:
        """Make the stall policy.

        Args:
            more: fields that override the profile's.

        Returns:
            The policy.
        """
        return StallPolicy(**{**self.resolve().stall, **more})


def named_after(model: str | None, settings: ProfileSettings) -> ProfileSettings:
    """Name the job after a model, by the last part of its name or path.

    Example:
        >>> named_after("org/Llama-3.1-8B", ProfileSettings("vllm", ())).name
        'Llama-3.1-8B'
    """
    name = (model or "").rstrip("/").rpartition("/")[2]
    return replace(settings, name=name[:200]) if name else settings


def ready_by_health(host: str, port: int) -> ReadyOnHttp:
    """Make the readiness of a server that answers `/health` when it is ready."""
    return ReadyOnHttp(url=f"http://{host}:{port}/health")


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is not an absolute path: write it from / on")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Host = Annotated[str, Field(pattern=r"^[^\s/]+$", description="Where the server answers.")]
Port = Annotated[int, Field(ge=1, le=65535, description="The server's port.")]
