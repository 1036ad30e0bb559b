"""Records of servers that were handed over: their identity, and what is needed to stop them later.

One JSON file per server in `$XDG_STATE_HOME/cachewatch/servers`, mode 0600, written before the guard's release and
removed when the server has been stopped. This module sends no signals: see `handover` and `stopping`.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import make_own_directory
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import boot_id, is_alive
from prefect_cachewatch.supervise.reading import find_by_run_token
from prefect_cachewatch.supervise.run_files import (
    RunFileRefused,
    machine_id,
    pid_namespace,
    read_each_file,
)
from prefect_cachewatch.supervise.supervisor import RunningServer

LOG_MAX_BYTES = 64 << 20
_SUFFIX = ".json"
_TREE_MAX = 2000
_LOGS_MAX = 50

State = Literal["running", "ended", "elsewhere", "refused"]


class ServerRecord(BaseModel):
    """A server that was handed over; times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, max_length=200)
    kind: Literal["process", "container"]
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Also the value of CACHEWATCH_ID in the environment of its processes."""
    pid: int | None = Field(default=None, gt=1)
    start_ticks: int | None = Field(default=None, ge=0)
    tree: tuple[tuple[int, int], ...] = Field(default=(), max_length=_TREE_MAX)
    container_id: str | None = None
    engine_url: str | None = None
    cache_dirs: tuple[str, ...]
    log: str | None = None
    ready: str
    """The sign of its readiness."""
    started_at: float
    ready_at: float
    stop_grace_s: float = Field(ge=0, le=3600)
    boot_id: str
    machine: str
    pid_namespace: str

    @property
    def who(self) -> str:
        """The pid, or the container, in words."""
        if self.kind == "container":
            return f"container {(self.container_id or '?')[:12]}"
        return f"pid {self.pid}"

    @property
    def stop_command(self) -> str:
        """The command that stops it."""
        if self.kind == "container":
            return f"cachewatch stop {shlex.quote(self.name)}"
        return f"cachewatch stop --pid {self.pid}"


@dataclass(frozen=True)
class FoundServer:
    """A record, its file, and the server's state; if the record is refused, `record` is None and `reason` says why."""

    path: Path
    state: State
    record: ServerRecord | None = None
    reason: str = ""


def servers_directory() -> Path:
    """Return the directory of this user's records: `servers` in the state directory (see `statedir.state_home`)."""
    return state_home() / "servers"


def record_path(name: str, run_id: str) -> Path:
    """Return the path of the record of a run's server.

    Args:
        name: name of the job.
        run_id: id of the run.

    Returns:
        The path; its log is beside it, with `.log` for `.json`.
    """
    return servers_directory() / f"{slugify(name)[:60]}-{run_id[:12]}{_SUFFIX}"


def make_record(
    server: RunningServer,
    *,
    name: str,
    run_id: str,
    cache_dirs: tuple[str, ...],
    ready: str,
    started_at: float,
    stop_grace_s: float,
    log: str | None,
) -> ServerRecord:
    """Make the record of a server that is about to be handed over.

    Args:
        server: the server.
        name: name of the job.
        run_id: id of the run.
        cache_dirs: resolved.
        ready: the sign of its readiness.
        started_at: wall time of its start.
        stop_grace_s: seconds between SIGTERM and SIGKILL when it is stopped.
        log: file for its output.

    Returns:
        The record, of this machine and boot.
    """
    return ServerRecord(
        name=name,
        kind=server.kind,
        run_id=run_id,
        pid=server.pid,
        start_ticks=server.start_ticks,
        tree=server.tree[:_TREE_MAX],
        container_id=server.container_id,
        engine_url=server.engine_url,
        cache_dirs=cache_dirs,
        log=log,
        ready=ready,
        started_at=started_at,
        ready_at=time.time(),
        stop_grace_s=stop_grace_s,
        boot_id=boot_id(),
        machine=machine_id(),
        pid_namespace=pid_namespace(),
    )


def write_record(record: ServerRecord) -> Path:
    """Write a record whole or not at all, readable by its owner only.

    Args:
        record: record of the server.

    Returns:
        Its path.

    Raises:
        InputError: it cannot be written: a server without a record could not be found again, and must not be released.
    """
    path = record_path(record.name, record.run_id)
    try:
        with Opened(make_own_directory(path.parent)) as here:
            write_entry(here, path.name, record.model_dump_json(indent=1).encode() + b"\n", sync=True)
            _prune_logs(path.parent)
    except OSError as error:
        raise InputError(
            f"the record {path} of the running server cannot be written: {error.strerror}; set CACHEWATCH_STATE to a directory of yours"
        ) from error
    return path


def list_servers() -> list[FoundServer]:
    """Read this user's records, oldest first, and check whether each server still runs.

    Returns:
        The records; a container's state is `running`, since only its engine knows more.
    """
    records, refused = read_each_file(str(servers_directory()), _SUFFIX, _read)
    found = [FoundServer(servers_directory() / name, _state_of(record), record) for name, record in records]
    found.sort(key=lambda one: one.record.ready_at if one.record else 0.0)
    return [*(FoundServer(Path(path), "refused", reason=why) for path, why in refused), *found]


def find_server_on(path: str) -> ServerRecord | None:
    """Find the running server whose cache a directory is.

    Args:
        path: resolved.

    Returns:
        Its record, if there is one.
    """
    for one in list_servers():
        if one.state == "running" and one.record is not None and path in one.record.cache_dirs:
            return one.record
    return None


def remove_record(path: Path) -> None:
    """Remove a record; its log stays until it is the oldest of many.

    Args:
        path: path of the record.
    """
    path.unlink(missing_ok=True)


def _read(name: str, data: bytes, fd: int, here: int) -> tuple[str, ServerRecord]:
    try:
        return name, ServerRecord.model_validate_json(data)
    except ValidationError:
        raise RunFileRefused("it is not the record of a server") from None


def _state_of(record: ServerRecord) -> State:
    if record.machine != machine_id():
        return "elsewhere"
    if record.kind == "container":
        return "running"
    if record.boot_id != boot_id():
        return "ended"  # it ended with its kernel; its pid may belong to another process now
    if record.pid_namespace != pid_namespace():
        return "elsewhere"
    if any(is_alive(pid, ticks) for pid, ticks in record.tree) or find_by_run_token(record.run_id):
        return "running"
    return "ended"


def _prune_logs(directory: Path) -> None:
    kept = {path.stem for path in directory.glob(f"*{_SUFFIX}")}
    logs = [path for path in directory.glob("*.log") if path.stem not in kept]
    for path in sorted(logs, key=lambda one: one.stat().st_mtime)[: max(0, len(logs) - _LOGS_MAX)]:
        for each in (path, path.with_name(path.name + ".1")):
            each.unlink(missing_ok=True)
