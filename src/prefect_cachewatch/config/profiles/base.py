"""The base of profiles: the parameters of a known generator, and the job settings that follow from them. Pure.

A profile starts nothing and looks at nothing: it is data, and the few lines that turn it into paths, an environment and
windows. Settings that a job makes itself override its profile's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from prefect_cachewatch.config import (
    CACHE_DIR_PLACEHOLDER,
    DEFAULT_IGNORE,
    CacheJob,
    InputModel,
    MarkerFiles,
    StallPolicy,
)
from prefect_cachewatch.config.ready import ReadyWhen

__all__ = ["AbsolutePath", "Profile", "ProfileSettings"]


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
        hints: what the profile cannot do for the user, a sentence each.
    """

    name: str
    cache_dirs: tuple[Path, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = DEFAULT_IGNORE
    stall: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    ready: ReadyWhen | None = None
    markers: MarkerFiles | None = None
    hints: tuple[str, ...] = ()

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
        if "ignore" not in own:
            update["ignore"] = list(self.ignore)
        if self.ready is not None and "ready" not in own:
            update["ready"] = self.ready
        if self.markers is not None and "markers" not in own:
            update["markers"] = self.markers
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


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is not an absolute path: write it from / on")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
