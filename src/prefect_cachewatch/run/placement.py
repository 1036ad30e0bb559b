"""Where a job's generator runs: under guard on this host, or in a container; for command and flow alike.

For a job without a container, no container module is imported and no engine is asked.
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
from prefect_cachewatch.watching.site import CacheDirectories, check_command

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob
    from prefect_cachewatch.containers.preflight import ContainerPlan

_LOOK_S = 10.0


@dataclass(frozen=True)
class Runtime:
    """Where a job runs, after its pre-flight.

    Attributes:
        job: its cache directories as paths of this host.
        plan: plan of its container; None on this host.
    """

    job: CacheJob
    plan: ContainerPlan | None

    @property
    def image_id(self) -> str:
        """The identifier of its container's image; empty on this host."""
        return self.plan.image_id if self.plan is not None else ""

    def relocated(self, job: CacheJob) -> Runtime:
        """The same placement for a job whose directories were chosen meanwhile."""
        return replace(self, job=self.plan.locate(job) if self.plan else job)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Pick the generator's environment: all of it on this host, in a container only what the job names.

        Args:
            env: this process's environment, with the job's variables and its secrets on top.

        Returns:
            Name to value.
        """
        if self.plan is None:
            return dict(env)
        return {name: env[name] for name in dict.fromkeys([*self.job.env, *self.job.env_secrets]) if name in env}

    def supervisor(self, paths: Sequence[str]) -> Callable[[Launch], Supervisor]:
        """Return the maker of the supervisor.

        Args:
            paths: the cache directories, resolved.

        Returns:
            A function that makes the supervisor, for `Watch`.
        """
        plan = self.plan
        if plan is None:
            return GuardClient
        from prefect_cachewatch.containers.supervisor import ContainerSupervisor  # noqa: PLC0415 - only for containers

        return lambda launch: ContainerSupervisor(launch, plan, paths)

    def open_site(self, files: Files | None = None) -> CacheDirectories:
        """Check, lock and hold the job's cache directories; raises CacheDirectoryError.

        Args:
            files: the helper process that looks at other paths; default this process.

        Returns:
            The directories; the caller closes them.
        """
        job = self.job
        return CacheDirectories(job.cache_dirs, ignore=job.ignore, expected_bytes=job.expected_bytes, files=files)


def place_job(job: CacheJob, env: Mapping[str, str], files: Files | None = None) -> Runtime:
    """Check that a job's generator can be run where it is to be run.

    Args:
        job: the job.
        env: its environment on this host.
        files: the helper process that looks for the command; default this process.

    Returns:
        The placement.

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
        return Runtime(job, None)
    from prefect_cachewatch.containers.preflight import plan_container  # noqa: PLC0415 - only for containers

    plan = plan_container(job)
    return Runtime(plan.locate(job), plan)


def find_image(job: CacheJob) -> str:
    """Ask the engine of a job with a container for the identifier of its image, and pull nothing.

    Args:
        job: the job.

    Returns:
        The identifier; empty if the job has no container, or if it is not known before its run.
    """
    if job.container is None or job.container.pull == "always":
        return ""
    from prefect_cachewatch.containers.engine import find_image_id  # noqa: PLC0415 - only for containers

    return find_image_id(job.container.image)


def require_directories(job: CacheJob) -> None:
    """Refuse a job that has no directory and no store that would give it one; raises InputError."""
    from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER  # noqa: PLC0415 - the caller has loaded it

    if any(CACHE_DIR_PLACEHOLDER in str(path) for path in job.cache_dirs):
        raise InputError("the job names no cache_dirs: name the directory that must grow, or publish into a store")
