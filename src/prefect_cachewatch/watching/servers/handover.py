"""The hand-over of a server that is ready: first its record, then its log keeper, then the guard's release.

In this order a death on the way leaves no unknown process. Until the guard's last step the whole tree dies with the
flow process; after it the record says which process runs and how it is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from prefect_cachewatch.errors import GuardError
from prefect_cachewatch.supervise.helper_client import spawn_helper
from prefect_cachewatch.supervise.output import OutputPump
from prefect_cachewatch.supervise.supervisor import RunningServer, Supervisor
from prefect_cachewatch.watching.servers.records import (
    LOG_MAX_BYTES,
    ServerRecord,
    make_record,
    record_path,
    remove_record,
    write_record,
)

_KEEPER_S = 10.0
_RELEASE_S = 15.0


@dataclass(frozen=True)
class HandedOver:
    """A server that runs on by itself, and its record's path."""

    record: ServerRecord
    path: Path


def hand_over(
    supervisor: Supervisor,
    output: OutputPump,
    *,
    name: str,
    run_id: str,
    cache_dirs: tuple[str, ...],
    locks: tuple[int, ...],
    ready: str,
    started_at: float,
    stop_grace_s: float,
) -> HandedOver | None:
    """Let a server go on without its guard.

    Args:
        supervisor: runs the server, and can release it.
        output: reads its output; the pipes are given to the log keeper.
        name: name of the job.
        run_id: id of the run.
        cache_dirs: resolved; no other job may write into them while the server runs.
        locks: descriptors that hold their locks.
        ready: the sign of its readiness.
        started_at: wall time of its start.
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
    path = record_path(name, run_id)
    log = path.with_suffix(".log") if server.kind == "process" else None
    record = make_record(
        server,
        name=name,
        run_id=run_id,
        cache_dirs=cache_dirs,
        ready=ready,
        started_at=started_at,
        stop_grace_s=stop_grace_s,
        log=str(log) if log else None,
    )
    path = write_record(record)
    try:
        if log is not None:
            _start_keeper(server, output, locks, log)
        problem = supervisor.release(_RELEASE_S)
        if problem is not None and supervisor.gone.is_set():
            remove_record(path)
            return None
        if problem is not None:
            raise GuardError(problem)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_record(path)
        raise
    return HandedOver(record, path)


def _start_keeper(server: RunningServer, output: OutputPump, locks: tuple[int, ...], log: Path) -> None:
    pipes = output.detach()
    ours, theirs = socket.socketpair()
    configuration = {
        "pipes": list(pipes),
        "hold": list(locks),
        "log": str(log),
        "log_max_bytes": LOG_MAX_BYTES,
        "tree": [list(each) for each in server.tree],
    }
    with ours:
        with theirs:
            process = spawn_helper(
                "prefect_cachewatch.supervise.keeper",
                theirs.fileno(),
                sorted({theirs.fileno(), *pipes, *locks}),
                "cachewatch-keeper",
            )
        ours.settimeout(_KEEPER_S)
        try:
            ours.sendall(json.dumps(configuration).encode() + b"\n")
            answer = ours.recv(16)
        except OSError as error:
            process.kill()
            raise GuardError(f"its keeper did not start: {os.strerror(error.errno or 110)}") from error
        finally:
            process.wait()
    if answer != b"kept\n":
        raise GuardError("its keeper ended before it began")
