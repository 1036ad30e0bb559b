"""Supervises a container that another program started: the engine reports its end and exit code.

It starts nothing, pauses nothing and removes nothing. On demand it stops the container through the engine's API and
verifies that (see `containers.stopping`).
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.containers.engine import find_engine
from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.containers.run_records import RUN_LABEL
from prefect_cachewatch.containers.stopping import NOT_SEEN, RunningContainer, is_running, start_ticks_of
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.supervisor import Observer, RunningServer, Subject, TreeEnd

_CALL_S = 20.0
# How soon the end is seen if the first process is not visible from here and the engine has to be asked.
_ASK_EVERY_S = 1.0
_CLOSE_S = 15.0
_KILLED = 137


def host_path(path: Path, mounts: Sequence[Mapping[str, Any]]) -> Path:
    """Map a path inside a container to its host's path.

    Args:
        path: absolute; below a mount it is a path in the container, otherwise already the host's.
        mounts: as the engine lists them: `Source` on the host, `Destination` in the container.

    Returns:
        The host's path.

    Example:
        >>> mounts = [{"Source": "/srv", "Destination": "/"}, {"Source": "/mnt/c", "Destination": "/cache"}]
        >>> str(host_path(Path("/cache/llama"), mounts[1:])), str(host_path(Path("/mnt/c"), mounts[1:]))
        ('/mnt/c/llama', '/mnt/c')
    """
    inside = [mount for mount in mounts if mount.get("Source") and path.is_relative_to(str(mount.get("Destination")))]
    if not inside:
        return path
    nearest = max(inside, key=lambda mount: len(Path(mount["Destination"]).parts))
    return Path(nearest["Source"], path.relative_to(nearest["Destination"]))


class AdoptedContainer(Observer):
    """One running container; a thread waits for its end.

    Args:
        name: of the container, or its id.
        engine: its URL; None for the first one that answers in the usual places.
        grace_s: seconds between SIGTERM (or the image's own signal) and SIGKILL.
        to_stop: whether it will be stopped on a stall.

    Raises:
        InputError: no engine answers, there is no such container, or it is not running.
    """

    def __init__(self, name: str, engine: str | None, grace_s: float, *, to_stop: bool = False) -> None:
        super().__init__("container", grace_s)
        self._address, shown = find_engine(engine), for_terminal(name, 100)
        http = EngineHttp(self._address.url)
        try:
            found = http.inspect(name, _CALL_S)
        except (EngineSilent, EngineRefused) as error:
            raise InputError(f"the container engine at {self._address} does not say what {shown} is: {error}") from None
        if found is None:
            raise InputError(f"there is no container {shown} at the engine {self._address}: see docker ps or podman ps")
        self.container_id = str(found["Id"])
        if not is_running(found["State"]):
            status = for_terminal(str(found["State"].get("Status") or "not running"), 40)
            raise InputError(f"container {shown} does not run ({status}): nothing is left to watch")
        config = found.get("Config") or {}
        if to_stop and (config.get("Labels") or {}).get(RUN_LABEL):
            raise InputError(
                f"container {shown} belongs to a run of cachewatch already, which stops it by a rule of its own: watch it "
                "with --on-stall report"
            )
        self.mounts: list[dict[str, Any]] = list(found.get("Mounts") or [])
        self._container = RunningContainer(http, self.container_id, self.container_id)
        pid = int(found["State"].get("Pid") or 0)
        ticks = start_ticks_of(pid, self.container_id, self.container_id)
        if ticks is not None:
            self._container.pid, self._container.start_ticks = pid, ticks
        argv = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
        began_at = _moment(str(found["State"].get("StartedAt") or ""))
        self.subject = Subject(
            f"container {shown}", tuple(map(str, argv)) or (name,), began_at, self._container.pid, ticks,
            self.container_id,
        )  # fmt: skip

    def start(self) -> None:
        """Start waiting for its end."""
        self.pid = self._container.pid
        self.root_pids = [self.pid] if self.pid is not None else []
        if self.pid is None:
            self.notes.append(NOT_SEEN)
        self._begin()

    def running(self) -> RunningServer | None:
        """Return what keeps running; None if it has ended."""
        if self.report is not None and self.report.why != "released":
            return None
        return RunningServer(
            "container",
            self.pid,
            self.subject.start_ticks,
            container_id=self.container_id,
            engine_url=self._address.url,
        )

    def close(self) -> None:
        """Release what was held; a container that still runs goes on."""
        self._end(_CLOSE_S)

    def _observe(self) -> TreeEnd:
        pidfd = self._open_pidfd()
        try:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            if pidfd is not None:
                poll.register(pidfd, select.POLLIN)
            while True:
                poll.poll(None if pidfd is not None else _ASK_EVERY_S * 1000)
                if self._container.ended():
                    return self._exited()
                if self._asked == "stop":
                    return self._stop()
                if self._asked:
                    return TreeEnd("released", None, None, 0.0)
        finally:
            if pidfd is not None:
                os.close(pidfd)

    def _open_pidfd(self) -> int | None:
        if self.pid is None:
            return None
        with contextlib.suppress(OSError):  # it has ended meanwhile: the loop checks before each long wait
            return os.pidfd_open(self.pid)
        self._ask("")
        return None

    def _exited(self) -> TreeEnd:
        state = self._container.final_state()
        code, number = _exit_of(state)
        if code is None and number is None:
            self.notes.append("the engine does not say with which exit code the container ended")
        beyond = "its memory limit" if state and state.get("OOMKilled") else ""
        return TreeEnd("exited", code, number, 0.0, out_of_memory=beyond)

    def _stop(self) -> TreeEnd:
        stopped = self._container.stop(max(0.0, self._kill_by_s - time.monotonic()), self._nap)
        return TreeEnd(
            "stop",
            *_exit_of(stopped.state),
            stopped.gone_after_s,
            stopped.terminated,
            stopped.killed,
            stopped.survivors,
        )

    def _nap(self, seconds: float) -> float:
        self._asked_within(seconds)
        return self._kill_by_s


def _exit_of(state: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    if not state or state.get("ExitCode") is None:
        return None, None
    code = int(state["ExitCode"])
    return (None, 9) if state.get("OOMKilled") and code == _KILLED else (code, None)


def _moment(date: str) -> float:
    """Convert an engine's RFC 3339 date, whose fraction has nine digits, to Unix time; now if there is no date."""
    zone = date[19:].lstrip(".0123456789")
    try:
        return datetime.fromisoformat(date[:19] + (zone if zone not in ("", "Z") else "+00:00")).timestamp()
    except ValueError:
        return time.time()
