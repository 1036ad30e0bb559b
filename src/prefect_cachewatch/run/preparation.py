"""Makes the changes before the next attempt: new kernel caches, stale locks removed, the command that resets a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.directories import make_own_directory
from prefect_cachewatch.common.secrets import LineRedactor, redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.run.remedies import XET_OFF, Step
from prefect_cachewatch.supervise.guarded import run_guarded
from prefect_cachewatch.supervise.lockfiles import LockFile, remove_stale_lock

_FILES_S = 30.0
_OUTPUT_LINES = 200


def new_variables(steps: Sequence[Step], files: Files, run_dir: Path, attempt: int) -> dict[str, str]:
    """Make the variables that the next attempt gets, and the directories that they name.

    Args:
        steps: what is changed.
        files: makes the directories.
        run_dir: the run's own directory, which gets new kernel caches and is pruned some day.
        attempt: number of the next attempt.

    Returns:
        Name to value.

    Raises:
        InputError: a directory cannot be made.
    """
    found: dict[str, str] = {}
    for step in steps:
        if step.change == "no_xet":
            found[XET_OFF] = "1"
        if step.change == "kernel_cache":
            top = run_dir / f"kernels-{attempt}"
            try:
                files.run(_make_directories, [str(top), *(str(top / name) for name in step.names)], timeout_s=_FILES_S)
            except OSError as error:
                raise InputError(f"kernel cache {top} cannot be made: {error.strerror}") from error
            found |= {name: str(top / name) for name in step.names}
    return found


def remove_locks(locks: Sequence[LockFile], cache_dirs: Sequence[str], files: Files) -> list[str]:
    """Remove stale lock files in the cache directories, each only if it still has no living holder.

    Args:
        locks: as they were found.
        cache_dirs: the job's, resolved.
        files: removes them.

    Returns:
        A sentence about each one that stays.
    """
    problems = []
    for lock in locks:
        try:
            why = files.run(remove_stale_lock, lock, list(cache_dirs), timeout_s=_FILES_S)
        except OSError as error:
            why = error.strerror or "its file system does not answer"
        if why:
            problems.append(f"lock file {for_terminal(lock.path)} is not removed: {why}")
    return problems


def run_before_retry(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    within_s: float,
    secrets: tuple[str, ...],
    say: Callable[[str], object],
) -> None:
    """Run the command that resets a device, under guard; its whole tree is gone when this returns or raises.

    Args:
        command: argv.
        env: its whole environment.
        cwd: its working directory.
        within_s: seconds until it is stopped.
        secrets: values that no line of its output may hold.
        say: takes a line of the log.

    Raises:
        InputError: it could not be run, failed, or was stopped at its deadline.
    """
    shown = redact(for_terminal(" ".join(command), 200), secrets)
    say(f"before the next attempt, for at most {format_duration(within_s)}: {shown}")
    try:
        result = run_guarded(command, env=env, cwd=cwd, timeout_s=within_s, tail_lines=_OUTPUT_LINES)
    except CachewatchError as error:
        raise InputError(f"the command before it, {shown}, could not be run: {error.message}") from error
    lines = LineRedactor(secrets).lines(list(result.tail))
    for line in lines:
        say(f"{os.path.basename(command[0])}: {for_terminal(line, 1000)}")
    if not result.ok:
        last = f": {for_terminal(lines[-1], 200)}" if lines else ""
        raise InputError(f"the command before it, {shown}, {result.describe()}{last}")


def _make_directories(paths: Sequence[str]) -> None:
    for path in paths:
        os.close(make_own_directory(Path(path)))
