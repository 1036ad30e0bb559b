"""Records of running containers: they name the engine to ask for what a dead run left behind.

There is one file a run in `$XDG_STATE_HOME/cachewatch/containers`, mode 0600. Flow and warden keep it locked (flock) as
long as one of them lives; it is removed when the container is gone. A container's labels name its run, so that it can
be judged even if its record was lost. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.locks import try_lock
from prefect_cachewatch.supervise.proc import boot_id, read_stat
from prefect_cachewatch.supervise.run_files import (
    RunFileRefused,
    create_locked,
    machine_id,
    open_runs_directory,
    pid_namespace,
    read_run_file,
    runs_directory,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUN_LABEL, MAY_STAY_LABEL = "cachewatch.run", "cachewatch.may_stay"
SUFFIX = ".container"
SCHEMA = 1
_RUN_TOKEN = re.compile(r"[0-9a-f]{32}")


def records_directory() -> str:
    """Return the directory of this user's records, beside the state files of guards."""
    return os.path.join(os.path.dirname(runs_directory()), "containers")


def labels_of_run(run_token: str, job: str, guards: list[int], *, may_stay: bool = False) -> dict[str, str]:
    """Make the labels by which a container is found and judged; they contain no secrets.

    Args:
        run_token: the run's identifier.
        job: the job's name.
        guards: pids of the processes that guard the container.
        may_stay: whether it may be handed over when it is ready; then it has no guards.

    Returns:
        Label name to value.

    Example:
        >>> labels_of_run("a" * 32, "llama", [])["cachewatch.job"]
        'llama'
    """
    identities = [f"{pid}:{found.start_ticks}" for pid in guards if (found := read_stat(pid))]
    return {
        RUN_LABEL: run_token,
        "cachewatch.job": job,
        "cachewatch.guards": " ".join(identities),
        "cachewatch.uid": str(os.geteuid()),
        "cachewatch.machine": machine_id(),
        "cachewatch.boot": boot_id(),
        "cachewatch.pidns": pid_namespace(),
        **({MAY_STAY_LABEL: "yes"} if may_stay else {}),
    }


def create_record(run_token: str, engine: str, directory: str | None = None) -> tuple[int, str]:
    """Write the locked record of a container that is about to be created.

    Args:
        run_token: the run's identifier.
        engine: the engine's URL.
        directory: default `records_directory()`; created if missing.

    Returns:
        A descriptor that holds the lock, and the path.

    Raises:
        OSError: it cannot be created.
        RunFileRefused: the directory is not trusted.
    """
    record = {"schema": SCHEMA, "run_token": run_token, "engine": engine, "machine": machine_id()}
    return create_locked(directory or records_directory(), run_token + SUFFIX, record)


def parse_record(data: bytes, name: str) -> tuple[str, str, str]:
    """Parse a record into run identifier, engine URL and machine; raises RunFileRefused if it is not one of ours."""
    try:
        found: Any = json.loads(data)
        schema, run_token, engine, machine = found["schema"], found["run_token"], found["engine"], str(found["machine"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFileRefused("it is not the record of a container") from error
    if schema != SCHEMA:
        raise RunFileRefused(f"its schema is {str(schema)[:20]}, and this version knows {SCHEMA}")
    if not isinstance(run_token, str) or not _RUN_TOKEN.fullmatch(run_token) or name != run_token + SUFFIX:
        raise RunFileRefused("its name is not that of the run it describes")
    if not isinstance(engine, str) or not engine.startswith(("unix:///", "tcp://")):
        raise RunFileRefused("it names no engine")
    return run_token, engine, machine


def is_held(run_token: str, directory: str | None = None) -> bool:
    """Say whether a run's container still has a guard: its record exists and is locked."""
    try:
        with Opened(open_runs_directory(directory or records_directory())) as here:
            fd, _ = read_run_file(run_token + SUFFIX, here)
    except (OSError, RunFileRefused):
        return False
    with Opened(fd):
        return not try_lock(fd)


def remove_record(run_token: str, directory: str | None = None) -> None:
    """Remove a run's record; a missing one is no error."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory or records_directory(), run_token + SUFFIX))
