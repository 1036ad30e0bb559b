"""Records of servers that were handed over: their identity, and what is needed to stop them later.

One JSON file per server in `$XDG_STATE_HOME/cachewatch/servers`, mode 0600, written before the guard's release and
removed when the server has been stopped; the file that the server writes its output into is beside it. This module
sends no signals: see `handover` and `stopping`.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import make_own_directory
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.common.within import within
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

_SUFFIX = ".json"
_TREE_MAX = 2000
_LOGS_MAX = 50
_WITHIN_S = 10.0

State = Literal["running", "ended", "elsewhere", "refused"]


@dataclass(frozen=True)
class ServerRecord:
    """A server that was handed over; `run_id` is the value of CACHEWATCH_ID in the environment of its processes."""

    name: str
    kind: Literal["process", "container"]
    run_id: str
    pid: int | None
    start_ticks: int | None
    tree: tuple[tuple[int, int], ...]
    container_id: str | None
    engine_url: str | None
    cache_dirs: tuple[str, ...]
    log: str | None
    ready: str
    ready_at: float
    stop_grace_s: float
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


def make_log_path(name: str, run_id: str) -> Path:
    """Return the path of the file for a server's output, in a directory that exists then.

    Raises:
        InputError: the directory cannot be made, or is not this user's own.
    """
    path = record_path(name, run_id).with_suffix(".log")
    try:
        with Opened(make_own_directory(path.parent)):
            return path
    except OSError as error:
        raise _unwritable(path, error) from error


def make_record(
    server: RunningServer,
    *,
    name: str,
    run_id: str,
    cache_dirs: tuple[str, ...],
    log: str | None,
    ready: str,
    stop_grace_s: float,
) -> ServerRecord:
    """Make the record of a server that is about to be handed over, of this machine and boot; see `hand_over`."""
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
        within(_WITHIN_S, _write, path, record)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _write(path: Path, record: ServerRecord) -> None:
    with Opened(make_own_directory(path.parent)) as here:
        write_entry(here, path.name, json.dumps(asdict(record), indent=1).encode() + b"\n", sync=True)
        _prune_logs(path.parent)


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

    Raises:
        OSError: it cannot be removed, or its file system does not answer.
    """
    within(_WITHIN_S, lambda: path.unlink(missing_ok=True))


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path} of a server that may be left running cannot be written: {error.strerror}; set CACHEWATCH_STATE to a "
        "directory of yours"
    )


def _read(name: str, data: bytes, fd: int, here: int) -> tuple[str, ServerRecord]:
    try:
        found = json.loads(data)
        tuples = {
            "tree": tuple((pid, ticks) for pid, ticks in found["tree"]),
            "cache_dirs": tuple(found["cache_dirs"]),
        }
        record = ServerRecord(**{**found, **tuples})
        if _is_sound(record):
            return name, record
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise RunFileRefused("it is not the record of a server")


def _is_sound(record: ServerRecord) -> bool:
    texts = (record.name, record.run_id, record.ready, record.boot_id, record.machine, record.pid_namespace)
    return (
        all(isinstance(text, str) for text in (*texts, *record.cache_dirs))
        and all(_is_text_or_none(text) for text in (record.container_id, record.engine_url, record.log))
        and record.kind in ("process", "container")
        and re.fullmatch("[0-9a-f]{32}", record.run_id) is not None  # its processes are looked for by it
        and (record.pid is None or record.kind == "container" or _is_pid(record.pid))
        and all(_is_pid(pid) and _is_number(ticks, 1 << 64) for pid, ticks in record.tree)
        and (record.start_ticks is None or _is_number(record.start_ticks, 1 << 64))
        and _is_number(record.ready_at, 1 << 40)
        and _is_number(record.stop_grace_s, 3600)
    )


def _is_pid(value: Any) -> bool:
    return type(value) is int and 1 < value < 1 << 22  # the kernel's greatest, PID_MAX_LIMIT


def _is_number(value: Any, most: float) -> bool:
    return type(value) in (int, float) and 0 <= value <= most


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


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
        path.unlink(missing_ok=True)
