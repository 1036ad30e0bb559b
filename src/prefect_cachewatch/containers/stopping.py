"""Stops one container and verifies that: through the engine's API, TERM, then KILL, then a check.

If the engine gives no answer and the container's first process is visible on this host, that process gets the signals
instead: when it ends, the kernel ends everything in its pid namespace at once, however fast it forks. No call here
waits longer than the grace period plus half a minute. Standard library only.
"""

from __future__ import annotations

import signal
import time
from collections import namedtuple

from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.supervise.proc import (
    ProcessStat,
    carried_run_token,
    descendants,
    is_alive,
    read_stat,
    send_signal,
)
from prefect_cachewatch.supervise.reading import name_processes
from prefect_cachewatch.supervise.turns import read_each

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NamedTuple

    class Stopped(NamedTuple):
        """The result of the stop; `state` is the engine's own, None if it gave no answer."""

        gone: bool
        gone_after_s: float
        terminated: list[dict[str, Any]]
        killed: list[dict[str, Any]]
        survivors: list[dict[str, Any]]
        state: dict[str, Any] | None
else:
    Stopped = namedtuple("Stopped", ("gone", "gone_after_s", "terminated", "killed", "survivors", "state"))
    Stopped.__doc__ = "How the stop went; `state` is the engine's own, None if it gave no answer."

NOT_SEEN = "the container's processes are not to be seen from this host: the evidence lacks them"
CALL_S = 5.0
_KILL_DEADLINE_S = 10.0
_ANSWER_S = 10.0
_KILL_AGAIN_S = 1.0


class RunningContainer:
    """One container, by its identifier and, if it is visible, its first process on this host.

    Args:
        engine: the one that runs it.
        container: its full identifier.
        run_token: the run's identifier.
    """

    def __init__(self, engine: EngineHttp, container: str, run_token: str) -> None:
        self.engine, self.container, self.run_token = engine, container, run_token
        self.pid: int | None = None
        self.start_ticks = 0
        self.stop_signal = "SIGTERM"
        self.state: dict[str, Any] | None = None
        self.silent = False

    def look(self, timeout_s: float = CALL_S) -> dict[str, Any] | None:
        """Ask the engine for the container's state, and record its first process.

        Args:
            timeout_s: the longest wait.

        Returns:
            The engine's `State`; `{}` if the container no longer exists; None if the engine gave no answer.
        """
        try:
            found = self.engine.inspect(self.container, timeout_s)
        except (EngineSilent, EngineRefused):
            self.silent = True
            return None
        self.silent = False
        if found is None:
            self.state = {}
            return self.state
        self.stop_signal = (found.get("Config") or {}).get("StopSignal") or "SIGTERM"
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
        state = self.look(CALL_S)
        return None if state is None else not is_running(state)

    def final_state(self, timeout_s: float = _ANSWER_S) -> dict[str, Any] | None:
        """Wait until the engine too reports that it ended.

        Args:
            timeout_s: the longest wait.

        Returns:
            The engine's `State`, with the exit code; None if the engine does not report the end in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            state = self.look(max(0.5, min(CALL_S, left)))
            if state is not None and not is_running(state):
                return state
            if left <= 0:
                return None
            time.sleep(min(0.05 if state is not None else 0.5, max(0.0, left)))

    def signal(self, number: int) -> None:
        """Send a signal to its first process."""
        self._signal(str(number), number)

    def stop(self, grace_s: float, nap: Callable[[float], float]) -> Stopped:
        """Stop it: TERM (or the image's own signal), the grace period, KILL, a check.

        Args:
            grace_s: seconds between the two signals; 0 leaves the first one out.
            nap: waits for a number of seconds; returns the monotonic time of an earlier deadline, or infinity.

        Returns:
            How that went.
        """
        began = time.monotonic()
        self.look()
        before = self._named(self._tree())
        self._unpause()  # somebody has paused it: then it acts on no signal
        if grace_s > 0 and not self.ended():
            self._signal(self.stop_signal, signal.SIGTERM)
            self._await_end(began + grace_s, nap)
        left: list[dict[str, Any]] = []
        if not self.ended():
            left = self._named(self._tree())
            self._kill(time.monotonic() + _KILL_DEADLINE_S)
        gone, gone_after_s = self.ended(), time.monotonic() - began
        state = self.final_state(2.0 if self.silent else _ANSWER_S) if gone or self.pid is None else None
        ended = bool(gone) or state is not None
        pids = {who["pid"] for who in left}
        terminated = [who for who in before if who["pid"] not in pids]
        survivors = [] if ended else self._named(self._tree()) or left
        return Stopped(ended, gone_after_s, terminated, left if ended else [], survivors, state)

    def _kill(self, deadline_s: float) -> None:
        again_s = 0.0
        while not self.ended() and (now := time.monotonic()) < deadline_s:
            if now >= again_s:
                if again_s and self.pid is not None:  # the engine was asked, without effect
                    send_signal(self.pid, self.start_ticks, signal.SIGKILL)
                self._signal("SIGKILL", signal.SIGKILL)
                again_s = time.monotonic() + _KILL_AGAIN_S
            time.sleep(0.005 if self.pid is not None else 0.2)

    def _await_end(self, deadline_s: float, nap: Callable[[float], float]) -> None:
        pause_s = 0.005
        while not self.ended() and (left := deadline_s - time.monotonic()) > 0:
            deadline_s = min(deadline_s, nap(min(pause_s, left)))
            pause_s = min(1.5 * pause_s, 0.05 if self.pid is not None else 0.5)

    def _unpause(self) -> None:
        if self.state and self.state.get("Paused") and not self.silent:
            try:
                self.engine.unpause(self.container, CALL_S)
            except EngineSilent:
                self.silent = True

    def _signal(self, name: str, number: int) -> None:
        if not self.silent:
            try:
                self.engine.send_signal(self.container, name, CALL_S)
                return
            except (EngineSilent, EngineRefused):
                self.silent = True
        if self.pid is not None:
            send_signal(self.pid, self.start_ticks, number)

    def _tree(self) -> dict[int, Any]:
        return container_tree(self.pid, self.start_ticks) if self.pid is not None else {}

    def _named(self, tree: dict[int, Any]) -> list[dict[str, Any]]:
        if self.pid is not None:
            return name_processes(tree)
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
    running = RunningContainer(EngineHttp(engine_url), container, run_token)
    if running.look() is None:
        return None

    def nap(seconds: float) -> float:
        time.sleep(seconds)
        return float("inf")

    going = running.state is not None and is_running(running.state)
    stopped = running.stop(grace_s, nap) if going else Stopped(True, 0.0, [], [], [], running.state)
    if stopped.gone:
        try:
            running.engine.remove(container, 30.0)
        except (EngineSilent, EngineRefused):
            return None
    return stopped


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
    if before is None:
        return None
    if not _names(pid, container) and read_each([pid], carried_run_token).get(pid) != run_token:
        return None
    after = read_stat(pid)
    return before.start_ticks if after is not None and after.start_ticks == before.start_ticks else None


def _names(pid: int, container: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return container.encode() in file.read(1 << 21)
    except OSError:
        return False


def container_tree(pid: int, start_ticks: int) -> dict[int, ProcessStat]:
    """List a container's living processes, the first one first; processes added by `exec` are not found."""
    first = read_stat(pid)
    if first is None or first.start_ticks != start_ticks or first.state in "ZXx":
        return {}
    return {pid: first, **descendants(pid)}
