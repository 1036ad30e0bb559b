"""Stops one container and verifies that: through the engine's API, TERM, then KILL, then a check.

If the engine gives no answer and the container's first process is visible on this host, that process gets the signals
instead: when it ends, the kernel ends everything in its pid namespace at once, however fast it forks. No call here
waits longer than the grace period plus three quarters of a minute.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from prefect_cachewatch.containers.engine import CALL_S, connect, failures, sdk
from prefect_cachewatch.supervise.proc import (
    ProcessStat,
    carried_run_token,
    descendants,
    is_alive,
    read_proc,
    read_stat,
    send_signal,
)
from prefect_cachewatch.supervise.reading import name_processes
from prefect_cachewatch.supervise.turns import read_each

_KILL_WITHIN_S = 10.0
_ANSWER_S, _SILENT_ANSWER_S = 10.0, 2.0
_KILL_AGAIN_S = 1.0
_REMOVE_S = 30.0


@dataclass(frozen=True)
class Stopped:
    """The result of a stop; `state` is the engine's own, None if it gave no answer."""

    gone: bool
    gone_after_s: float = 0.0
    terminated: list[dict[str, Any]] = field(default_factory=list)
    killed: list[dict[str, Any]] = field(default_factory=list)
    survivors: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, Any] | None = None


class RunningContainer:
    """One container, by its identifier and, if it is visible, its first process on this host.

    Args:
        client: the SDK's, of its engine; None if the engine is not to be asked.
        container: its full identifier.
        run_token: the run's identifier.
        pid: of its first process, if that is known.
        start_ticks: its start time.
    """

    def __init__(
        self, client: Any, container: str, run_token: str, pid: int | None = None, start_ticks: int = 0
    ) -> None:
        self.client, self.container, self.run_token = client, container, run_token
        self.pid, self.start_ticks = pid, start_ticks
        self.state: dict[str, Any] | None = None
        self.silent = client is None
        self._stop_signal = "SIGTERM"

    def look(self) -> dict[str, Any] | None:
        """Ask the engine for the container's state, and record its first process.

        Returns:
            The engine's `State`; `{}` if the container no longer exists; None if the engine gave no answer.
        """
        try:
            found = self.client.inspect_container(self.container)
        except sdk().errors.NotFound:
            found = {"State": {}}
        except failures():
            self.silent = True
            return None
        self.silent = False
        self._stop_signal = found.get("Config", {}).get("StopSignal") or "SIGTERM"
        state: dict[str, Any] = found["State"]
        self.state = state
        pid = int(state.get("Pid") or 0)
        if self.pid is None and (ticks := start_ticks_of(pid, self.container, self.run_token)) is not None:
            self.pid, self.start_ticks = pid, ticks
        return state

    def ended(self) -> bool | None:
        """Whether it has ended; None if neither the host nor the engine can tell."""
        if self.pid is not None:
            return not is_alive(self.pid, self.start_ticks)
        state = self.look()
        return None if state is None else not is_running(state)

    def final_state(self, timeout_s: float = _ANSWER_S) -> dict[str, Any] | None:
        """Wait until the engine too reports that it ended.

        Args:
            timeout_s: the longest wait, beyond a request that is under way.

        Returns:
            The engine's `State`, with the exit code; None if the engine does not report the end in time.
        """
        deadline = time.monotonic() + timeout_s
        while (state := self.look()) is None or is_running(state):
            if (left := deadline - time.monotonic()) <= 0:
                return None
            time.sleep(min(0.05 if state is not None else 0.5, left))
        return state

    def signal(self, which: int | str) -> None:
        """Send a signal to its first process; a name that the engine cannot be told is SIGTERM."""
        if not self.silent:
            try:
                self.client.kill(self.container, which)
                return
            except sdk().errors.APIError:
                return  # the engine's answer is that it does not run
            except failures():
                self.silent = True
        if self.pid is not None:
            send_signal(self.pid, self.start_ticks, which if isinstance(which, int) else signal.SIGTERM)

    def stop(self, grace_s: float, nap: Callable[[float], float] | None = None) -> Stopped:
        """Stop it: TERM (or the image's own signal), the grace period, KILL, a check.

        Args:
            grace_s: seconds between the two signals; 0 leaves the first one out.
            nap: waits for a number of seconds; returns the monotonic time of an earlier deadline, or infinity.

        Returns:
            How that went.
        """
        began = time.monotonic()
        self.look()
        before, left = self._named(), list[dict[str, Any]]()
        if self.state and self.state.get("Paused") and not self.silent:
            with suppress(*failures()):
                self.client.unpause(self.container)  # somebody has paused it: then it acts on no signal
        if grace_s > 0 and not self.ended():
            self.signal(self._stop_signal)
            self._await_end(began + grace_s, nap or _sleep)
        if not (ended := bool(self.ended())):
            left, deadline = self._named(), time.monotonic() + _KILL_WITHIN_S
            while not ended and time.monotonic() < deadline:
                self.signal(signal.SIGKILL)
                if ended := self._await_end(time.monotonic() + _KILL_AGAIN_S, _sleep):
                    break
                # The engine was asked, without effect. Where the first process hangs in its end, the kernel ends no other.
                for pid, found in self.tree().items():
                    send_signal(pid, found.start_ticks, signal.SIGKILL)
                if self.silent:
                    self.look()  # one late answer is no reason never to ask it again
        gone_after_s = time.monotonic() - began
        state = self.final_state(_SILENT_ANSWER_S if self.silent else _ANSWER_S) if ended or self.pid is None else None
        gone = ended or state is not None
        survivors = [] if gone else self._named() or left
        terminated, killed = _without(before, left), _without(left, survivors)
        return Stopped(gone, gone_after_s, terminated, killed, survivors, state)

    def remove(self) -> bool:
        """Remove it with its anonymous volumes; return whether it has gone, or is just going."""
        self.client.timeout = _REMOVE_S
        try:
            self.client.remove_container(self.container, v=True, force=True)
        except failures() as error:
            return getattr(error, "status_code", 0) in (404, 409)
        return True

    def tree(self) -> dict[int, ProcessStat]:
        """List its living processes, the first one first; those added by `exec` are not found."""
        first = read_stat(self.pid) if self.pid is not None else None
        if self.pid is None or first is None or first.start_ticks != self.start_ticks or first.state in "ZXx":
            return {}
        below, again = descendants(self.pid), read_stat(self.pid)
        # It was not pinned meanwhile: if it has ended, its pid may be another process's, and so may those found below it.
        if again is None or again.start_ticks not in (self.start_ticks, -1):
            return {}
        return {self.pid: first, **below}

    def _await_end(self, deadline_s: float, nap: Callable[[float], float]) -> bool:
        pause_s = 0.005
        while not self.ended():
            if (left := deadline_s - time.monotonic()) <= 0:
                return False
            deadline_s = min(deadline_s, nap(min(pause_s, left)))
            pause_s = min(1.5 * pause_s, 0.05 if self.pid is not None else 0.5)
        return True

    def _named(self) -> list[dict[str, Any]]:
        if self.pid is not None:
            return name_processes(self.tree())
        # Its processes are not visible from here (a remote engine, another pid namespace): the container stands for
        # them.
        alone = {"pid": int((self.state or {}).get("Pid") or 0), "start_ticks": 0, "state": "?"}
        return [alone | {"argv": [f"container {self.container[:12]}"]}]


def is_running(state: dict[str, Any]) -> bool:
    """Say whether an engine's `State` means that the container has processes."""
    going = state.get("Running") or state.get("Paused") or state.get("Restarting")
    return bool(going or state.get("Status") == "stopping")  # podman's state between the signal and the end


def stop_and_remove(engine_url: str, container: str, run_token: str, grace_s: float) -> Stopped | None:
    """Stop a container without a guard, and remove it.

    Args:
        engine_url: of its engine.
        container: its full identifier.
        run_token: the run's identifier.
        grace_s: seconds between the two signals.

    Returns:
        The result; None if the engine gives no answer. A container that has already gone is no error.
    """
    try:
        client = connect(engine_url, CALL_S)
    except failures():
        return None
    with closing(client):
        running = RunningContainer(client, container, run_token)
        if (state := running.look()) is None:
            return None
        stopped = running.stop(grace_s) if is_running(state) else Stopped(True, state=state)
        return None if stopped.gone and not running.remove() else stopped


def start_ticks_of(pid: int, container: str, run_token: str) -> int | None:
    """Return the start time of a pid if it is a container's first process on this host.

    An engine reports the pid of a container's first process in its own pid namespace; on this host that pid may belong
    to an unrelated process or to none. It is trusted only if its control group or its environment names the container.

    Args:
        pid: as the engine reports it.
        container: the container's full identifier.
        run_token: the run's identifier, in the container's environment.

    Returns:
        Its start time in clock ticks since boot; None if that pid does not belong to this container here.

    Example:
        >>> start_ticks_of(1, "f" * 64, "no-such-run") is None
        True
    """
    before = read_stat(pid) if pid > 0 else None
    if before is None or before.start_ticks < 0:  # it hangs, and its start time cannot be read
        return None
    is_ours = container.encode() in read_proc(f"/proc/{pid}/cgroup")
    if not is_ours and read_each([pid], carried_run_token).get(pid) != run_token:
        return None
    after = read_stat(pid)
    return before.start_ticks if after is not None and after.start_ticks == before.start_ticks else None


def _without(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pids = {who["pid"] for who in others}
    return [who for who in some if who["pid"] not in pids]


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return math.inf
