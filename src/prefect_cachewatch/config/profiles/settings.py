"""The job settings of a profile with its parameters filled in. Settings that a job makes itself override them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from prefect_cachewatch.config import (
    CACHE_DIR_PLACEHOLDER,
    DEFAULT_IGNORE,
    CacheJob,
    MarkerFiles,
    RetryPolicy,
    StallPolicy,
    StopPolicy,
)
from prefect_cachewatch.config.ready import ReadyWhen

J = TypeVar("J", bound=CacheJob)
P = TypeVar("P", StallPolicy, StopPolicy, RetryPolicy)


@dataclass(frozen=True)
class ProfileSettings:
    """The job settings of a profile.

    Attributes:
        name: for a job without a name.
        cache_dirs: absolute directories that must grow, the one of the markers first.
        env: environment that makes the generator write there.
        ignore: globs of files that never count.
        stall: fields of a `StallPolicy` that fit this generator; the others stay at their defaults.
        stop: fields of a `StopPolicy`, likewise.
        retry: fields of a `RetryPolicy`, likewise.
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
    stop: Mapping[str, Any] = field(default_factory=dict)
    retry: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    ready: ReadyWhen | None = None
    markers: MarkerFiles | None = None
    progress_log: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    key: Mapping[str, str] = field(default_factory=dict)

    def under_job(self, job: J) -> J:
        """Complete a job; its own settings stay.

        Args:
            job: with a name and a command.

        Returns:
            The job with directories, environment, ignore globs, readiness, markers and lines of progress.
        """
        own = job.model_fields_set
        update: dict[str, Any] = {"env": {**self.env, **job.env}}
        if "cache_dirs" not in own or job.cache_dirs == [Path(CACHE_DIR_PLACEHOLDER)]:
            update["cache_dirs"] = list(self.cache_dirs)
        whole = {
            "ignore": list(self.ignore),
            "ready": self.ready,
            "markers": self.markers,
            "progress_log": list(self.progress_log),
        }
        return job.model_copy(
            update=update | {name: value for name, value in whole.items() if value and name not in own}
        )

    def under(self, policy: P) -> P:
        """Complete a policy for stalls, for stopping or for retries; its own settings stay.

        Example:
            >>> settings = ProfileSettings("x", (Path("/c"),), stall={"stall_after_s": 120, "poll_s": 5})
            >>> found = settings.under(StallPolicy(poll_s=1))
            >>> found.stall_after_s, found.poll_s
            (120, 1.0)
        """
        fields = {StallPolicy: self.stall, StopPolicy: self.stop, RetryPolicy: self.retry}[type(policy)]
        return policy.model_copy(update={k: v for k, v in fields.items() if k not in policy.model_fields_set})
