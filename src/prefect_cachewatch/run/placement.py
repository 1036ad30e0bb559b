"""Where a job's generator runs: under guard on this host, or in a container; one answer for command and flow.

Nothing is imported of containers, and no engine is asked, for a job that has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import WORKING_DIRECTORY_GONE, InputError
from prefect_cachewatch.supervise.client import GuardClient
from prefect_cachewatch.supervise.supervisor import Launch, Supervisor
from prefect_cachewatch.watching.site import CacheSite, check_command

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob
    from prefect_cachewatch.containers.preflight import ContainerPlan

__all__ = ["Placement", "place_job", "require_directories"]

_LOOK_S = 10.0


@dataclass(frozen=True)
class Placement:
    """Where a job runs, after its pre-flight.

    Attributes:
        job: its cache directories as paths of this host.
        plan: of its container; None on this host.
    """

    job: CacheJob
    plan: ContainerPlan | None

    def relocated(self, job: CacheJob) -> Placement:
        """The same place for a job whose directories were chosen meanwhile."""
        return replace(self, job=self.plan.locate(job) if self.plan else job)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Pick the generator's environment: all of it here, in a container only what the job names.

        Args:
            env: this process's, with the job's and its secrets on top.

        Returns:
            Name to value.
        """
        if self.plan is None:
            return dict(env)
        return {name: env[name] for name in dict.fromkeys([*self.job.env, *self.job.env_secrets]) if name in env}

    def supervisor(self, paths: Sequence[str]) -> Callable[[Launch], Supervisor]:
        """Say who runs it.

        Args:
            paths: of the cache directories, resolved.

        Returns:
            What makes the supervisor, for `Watch`.
        """
        plan = self.plan
        if plan is None:
            return GuardClient
        from prefect_cachewatch.containers.supervisor import ContainerSupervisor  # noqa: PLC0415 - only for containers

        return lambda launch: ContainerSupervisor(launch, plan, paths)

    def open_site(self, *, create: bool = True, files: Files | None = None) -> CacheSite:
        """Check, lock and hold the job's cache directories; raises CacheDirectoryError.

        Args:
            create: whether missing ones are made.
            files: who looks at anything but them; default this process.

        Returns:
            Them; to be closed.
        """
        job, plan = self.job, self.plan
        if plan is None or not plan.measured:
            return CacheSite(
                job.cache_dirs, ignore=job.ignore, create=create, expected_bytes=job.expected_bytes, files=files
            )
        # What cannot be read cannot be locked; that no other run's container has the volume was looked at before.
        return CacheSite(
            job.cache_dirs,
            ignore=job.ignore,
            create=False,
            expected_bytes=job.expected_bytes,
            lock=False,
            scanner=plan.scanner,
            files=files,
        )

    def require_cleaning(self) -> None:
        """Refuse a retry that cleans, where the cache is measured read-only; raises InputError."""
        if self.plan is not None and self.plan.measured:
            raise InputError(
                f"on_retry clean: volume {self.plan.measured[0]} is measured from a read-only container, and nothing in it can "
                "be removed: use on_retry resume, or run as a user who may write to it"
            )


def place_job(job: CacheJob, env: Mapping[str, str], files: Files | None = None) -> Placement:
    """Check that a job's generator can be run where it is to be run.

    Args:
        job: what to run.
        env: its environment on this host.
        files: who looks for the command; default this process.

    Returns:
        Where it runs.

    Raises:
        CommandError: its command cannot be executed on this host.
        InputError: its container cannot be made as asked.

    Example:
        >>> from prefect_cachewatch.config import CacheJob
        >>> job = CacheJob(name="x", command=["true"], cache_dirs=["/tmp/cache"])
        >>> place_job(job, {"PATH": "/usr/bin:/bin"}).plan is None
        True
    """
    if job.container is None:
        if not job.command:
            raise InputError("the job has no command: name the program to run")
        try:
            cwd = str(job.cwd) if job.cwd else os.getcwd()
        except FileNotFoundError:
            raise InputError(WORKING_DIRECTORY_GONE) from None
        try:
            (files or InPlace()).run(check_command, list(job.command), dict(env), cwd, timeout_s=_LOOK_S)
        except TimeoutError as error:
            raise InputError(
                f"command {for_terminal(job.command[0])!r} cannot be looked for within {_LOOK_S:.0f} s: the file system of "
                "its path, of the working directory or of a directory in PATH hangs; check the mounts"
            ) from error
        return Placement(job, None)
    from prefect_cachewatch.containers.preflight import plan_container  # noqa: PLC0415 - only for containers

    plan = plan_container(job)
    return Placement(plan.locate(job), plan)


def require_directories(job: CacheJob) -> None:
    """Refuse a job that leaves it to a store where it writes, where there is none; raises InputError."""
    from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER  # noqa: PLC0415 - whoever asks has it

    if any(CACHE_DIR_PLACEHOLDER in str(path) for path in job.cache_dirs):
        raise InputError("the job names no cache_dirs: name the directory that must grow, or publish into a store")
