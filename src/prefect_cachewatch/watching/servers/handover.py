"""The hand-over of a server that is ready: first its record, then the guard's release.

In this order a death on the way leaves no unknown process. Until the guard's last step the whole tree dies with the
flow process; after it the record says which process runs and how it is stopped.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from prefect_cachewatch.errors import GuardError
from prefect_cachewatch.supervise.supervisor import Supervisor
from prefect_cachewatch.watching.servers.records import ServerRecord, make_record, remove_record, write_record

_RELEASE_S = 15.0


@dataclass(frozen=True)
class HandedOver:
    """A server that runs on by itself, and its record's path."""

    record: ServerRecord
    path: Path


def hand_over(
    supervisor: Supervisor,
    *,
    name: str,
    run_id: str,
    cache_dirs: tuple[str, ...],
    log: Path | None,
    ready: str,
    stop_grace_s: float,
) -> HandedOver | None:
    """Let a server go on without its guard.

    Args:
        supervisor: runs the server, and can release it.
        name: name of the job.
        run_id: id of the run.
        cache_dirs: resolved; no other job may write into them while the server runs.
        log: the file that it writes its output into; None for a container, whose engine has it.
        ready: the sign of its readiness.
        stop_grace_s: seconds between SIGTERM and SIGKILL when it is stopped later.

    Returns:
        The server; None if it had ended before.

    Raises:
        InputError: the record cannot be written.
        GuardError: it could not be released; it is still guarded.
    """
    server = supervisor.running()
    if server is None:
        return None
    record = make_record(
        server,
        name=name,
        run_id=run_id,
        cache_dirs=cache_dirs,
        log=str(log) if log else None,
        ready=ready,
        stop_grace_s=stop_grace_s,
    )
    path = write_record(record)
    try:
        problem = supervisor.release(_RELEASE_S)
        if problem is not None and supervisor.gone.is_set():
            with contextlib.suppress(OSError):  # it names a process that has ended
                remove_record(path)
            return None
        if problem is not None:
            raise GuardError(problem)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_record(path)
        raise
    return HandedOver(record, path)
