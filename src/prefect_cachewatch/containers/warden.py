"""The warden: a separate process that sees to a container's end, whatever happens to the flow that started it.

Killing a client never stops a container. So the flow starts a warden first, which watches the flow by pidfd. If the
flow ends without a release, the warden finds the run's containers by their label and stops them. It also carries out
the stops that the flow asks for, so that an engine that hangs blocks no other process. The flow in turn stops the
container if the warden is killed; if both are killed, the janitor finds it. Standard library only, no docker SDK.

Wire format: one JSON object a line. In: first the configuration, then {"cmd": "creating"}, {"cmd": "created"}, {"cmd":
"watch", "id": i}, {"cmd": "stop", "grace_s": n}, {"cmd": "signal", "numbers": [n]}, {"cmd": "remove"}, {"cmd":
"release"}. Out: ready, watching, kept, gone, removed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import signal
import time

from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.containers.labels import LEFT_RUNNING, RUN_LABEL
from prefect_cachewatch.containers.stopping import CALL_S, RunningContainer, Stopped, is_running
from prefect_cachewatch.supervise.proc import is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_KILLED = 137
_LOOK_EVERY_S = 2.0
_REMOVE_WITHIN_S = 30.0
# A request to create the container may be under way when the flow dies, and a busy engine answers it late.
_LATE_CONTAINER_S, _KEEP_TRYING_S = 30.0, 600.0
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Warden:
    """The state of one warden and its connections.

    Args:
        control: descriptor of the control socket.
        configuration: engine, run_token, flow_pid, grace_s.
        flow_fd: pidfd of the flow process.
        heard: the data that followed the configuration.
    """

    def __init__(self, control: int, configuration: dict[str, Any], flow_fd: int, heard: bytes) -> None:
        self.control, self.flow_fd = control, flow_fd
        self.engine = EngineHttp(configuration["engine"])
        self.run_token = str(configuration["run_token"])
        self.grace_s = float(configuration["grace_s"])
        self.running: RunningContainer | None = None
        self.creating = False
        self.why = ""
        self.oom_kills = machine_oom_kills()
        self._heard = heard
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in _END_SIGNALS:
            signal.signal(number, lambda *_: None)

    def say(self, event: str, **data: Any) -> None:
        message = json.dumps({"ev": event, **data}).encode() + b"\n"
        try:
            while message:
                message = message[os.write(self.control, message) :]
        except OSError:
            return  # the flow has gone; the container is stopped anyway

    def hear(self, timeout_s: float | None, *others: int) -> list[dict[str, Any]]:
        """Wait for commands, for the end of the flow (which sets `why`), or for input on one of `others`."""
        poll = select.poll()
        if b"\n" in self._heard:
            timeout_s = 0.0
        for fd in (self.control, self.flow_fd, self._wake, *others):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        data = b""
        for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000):
            if fd == self.flow_fd:
                self.why, self.flow_fd = self.why or "flow_died", -1
            elif fd == self._wake:
                if set(os.read(self._wake, 512)) & set(_END_SIGNALS):
                    self.why = self.why or "guard_signalled"
            elif fd == self.control:
                try:
                    data = os.read(self.control, 65536)
                except OSError:
                    data = b""
                if not data:
                    self.why, self.control = self.why or "control_closed", -1
        self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def serve(self) -> Stopped | None:
        """Wait for the first reason to end; return how the container ended, or None if its run must be cleared."""
        pidfd, grace_s = -1, self.grace_s
        while not self.why:
            blind = self.running is not None and pidfd < 0
            for command in self.hear(_LOOK_EVERY_S if blind else None, pidfd):
                kind = command["cmd"]
                if kind in ("creating", "created"):
                    self.creating = kind == "creating"
                elif kind == "watch":
                    pidfd = self._watch(str(command["id"]))
                elif kind == "signal" and self.running is not None:
                    for number in command["numbers"]:
                        self.running.signal(number)
                elif kind == "release":
                    self._release()
                elif kind == "stop":
                    self.why, grace_s = "stop", float(command.get("grace_s", self.grace_s))
                    if (first := command.get("first")) and self.running is not None:
                        self.running.signal(first)
            if self.why or self.running is None:
                continue
            if self.running.ended():
                state = self.running.final_state()
                self.why = "exited" if state else "engine_lost"
                return Stopped(True, 0.0, [], [], [], state)
        if self.running is None or self.why in ("flow_died", "control_closed"):
            self.grace_s = grace_s
            return None
        return self.running.stop(grace_s, self._nap)

    def clear(self) -> bool:
        """Stop and remove every container of the run, including ones in creation; return whether none is left."""
        began = time.monotonic()
        if self.running is not None:  # first, and even if the engine no longer answers
            self.running.stop(self.grace_s, self._nap)
        quiet = 0
        while time.monotonic() < began + _KEEP_TRYING_S:
            try:
                found = self.engine.labelled(f"{RUN_LABEL}={self.run_token}", CALL_S)
                for one in found:
                    container = RunningContainer(self.engine, str(one["Id"]), self.run_token)
                    state = container.look()
                    if state is None or is_running(state):
                        container.stop(self.grace_s, self._nap)
                    self.engine.remove(container.container, _REMOVE_WITHIN_S)
            except (EngineSilent, EngineRefused):
                time.sleep(2.0)
                continue
            quiet = 0 if found else quiet + 1
            if quiet >= 2 and (not self.creating or time.monotonic() > began + _LATE_CONTAINER_S):
                return True
            time.sleep(0.5 if self.creating else 0.1)
        return False

    def _watch(self, container: str) -> int:
        self.running = RunningContainer(self.engine, container, self.run_token)
        state = self.running.look()
        pid = self.running.pid
        self.say("watching", pid=pid, start_ticks=self.running.start_ticks, running=bool(state and is_running(state)))
        if pid is None:
            return -1
        try:
            return os.pidfd_open(pid)
        except OSError:
            return -1

    def _release(self) -> None:
        """Release a container that keeps running, and end; on no other path does it survive the warden."""
        running = self.running
        state = running.look() if running is not None else None
        if running is None or state is None or not is_running(state):
            self.say("kept", reason="its engine does not answer" if state is None else "it has ended")
            return
        # By its name the janitor knows that it is no leftover. The flow has already recorded how to stop it.
        try:
            found = self.engine.inspect(running.container, CALL_S) or {}
            self.engine.rename(running.container, str(found.get("Name")).lstrip("/") + LEFT_RUNNING, CALL_S)
        except (EngineSilent, EngineRefused) as error:
            self.say("kept", reason=f"its engine does not give it another name ({error})")
            return
        self.say("gone", why="released", exit_code=None, out_of_memory=False, error="", gone_after_s=0.0, terminated=[],
                 killed=[], survivors=[])  # fmt: skip
        os._exit(0)

    def _nap(self, seconds: float) -> float:
        """Wait; return the deadline of a further stop that arrived meanwhile, else infinity."""
        if self.control < 0:
            time.sleep(seconds)
            return math.inf
        why = self.why
        stops = [command for command in self.hear(seconds) if command["cmd"] == "stop"]
        self.why = why
        return min((time.monotonic() + float(stop.get("grace_s", math.inf)) for stop in stops), default=math.inf)


def _finish(warden: Warden, ended: Stopped) -> bool:
    """Report, wait until the log has been read, remove the container; return whether it has gone."""
    assert warden.running is not None
    state = ended.state or {}
    warden.say(
        "gone",
        why=warden.why,
        exit_code=state.get("ExitCode"),
        out_of_memory=_ran_out_of_memory(warden, state),
        error=str(state.get("Error") or ""),
        gone_after_s=ended.gone_after_s,
        terminated=ended.terminated,
        killed=ended.killed,
        survivors=ended.survivors,
    )
    warden.why = ""
    deadline = time.monotonic() + _REMOVE_WITHIN_S
    while warden.control >= 0 and not warden.why and (left := deadline - time.monotonic()) > 0:
        if any(command["cmd"] == "remove" for command in warden.hear(left)):
            break
    if not ended.gone:
        return False
    try:
        warden.engine.remove(warden.running.container, _REMOVE_WITHIN_S)
    except (EngineSilent, EngineRefused) as error:
        warden.say("removed", problem=str(error))
        return False
    warden.say("removed", problem="")
    return True


def _ran_out_of_memory(warden: Warden, state: dict[str, Any]) -> bool:
    if state.get("OOMKilled"):
        return True
    # Podman does not always notice it. A SIGKILL that we did not send, together with an out-of-memory kill on this
    # machine, also shows it.
    killed = warden.why == "exited" and state.get("ExitCode") == _KILLED
    return killed and warden.oom_kills < machine_oom_kills()


def machine_oom_kills() -> int:
    """Read how many processes this machine's kernel has killed since boot because memory ran out."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line[9:]) for line in file if line.startswith(b"oom_kill ")), 0)
    except OSError:
        return 0


def main(control: int) -> None:
    """Guard one container until nothing of it is left; never returns.

    Args:
        control: descriptor of the connected control socket; the configuration is read from it.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, b"cachewatch-ward", 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # a warden that is stopped when the flow dies must act then
    os.chdir("/")  # do not pin the file system that is being watched
    os.set_inheritable(control, False)
    data = b""
    while b"\n" not in data:
        chunk = os.read(control, 65536)
        if not chunk:
            os._exit(97)
        data += chunk
    line, _, rest = data.partition(b"\n")
    configuration: dict[str, Any] = json.loads(line)
    flow_fd = os.pidfd_open(configuration["flow_pid"])
    if os.getppid() != configuration["flow_pid"]:
        os._exit(97)  # it died before it was pinned, and its pid may have been reused
    warden = Warden(control, configuration, flow_fd, rest)
    warden.say("ready")
    ended = warden.serve()
    done = warden.clear() if ended is None else _finish(warden, ended)
    if not done and warden.running is not None:
        _await_survivor(warden.running)
    os._exit(0)


def _await_survivor(running: RunningContainer) -> None:
    """Hold the cache directories' locks while the container's first process lives, since it may still write there."""
    while running.pid is not None and is_alive(running.pid, running.start_ticks):
        time.sleep(_LOOK_EVERY_S)
