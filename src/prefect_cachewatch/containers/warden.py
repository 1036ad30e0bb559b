"""The warden: a separate process that makes a run's container, passes its output on, and sees to its end.

Killing a client never stops a container. So a process of its own holds it, and watches the flow by pidfd: if the flow
ends, the warden stops the container. Whatever is asked of the engine is asked here, so that an engine that hangs blocks
no other process, and the warden may be killed: the flow then stops the container itself, and if both are dead, the
janitor finds it by its labels.

Wire format: one JSON object a line. In: first the configuration, then {"cmd": "stop", "grace_s": n}, {"cmd": "signal",
"numbers": [n]}, {"cmd": "release"}. Out: refused or started; then kept, gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import sys
import threading
import time
from typing import Any

from prefect_cachewatch.common.files import write_all
from prefect_cachewatch.containers.engine import CALL_S, MAKE_S, connect, failures, reason_of, sdk
from prefect_cachewatch.containers.janitor import LEFT_RUNNING, clear_run
from prefect_cachewatch.containers.stopping import RunningContainer, Stopped, is_running
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import read_proc

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LOOK_EVERY_S = 2.0
_OUTPUT_END_S = 5.0
# A busy engine may carry out a request to create a container after it was given up.
_LATE_CONTAINER_S = 60.0
_KEEP_TRYING_S = 600.0
# The supervisor decides on all of an engine's words, and shows some.
_WORDS_MAX = 1 << 16


class Warden:
    """The state of one warden and its connections.

    Args:
        control: descriptor of the control socket.
    """

    def __init__(self, control: int) -> None:
        self.control, self.flow_fd = control, -1
        self.why, self.grace_s = "", 0.0
        self.oom_kills = machine_oom_kills()
        self.output = threading.Thread()
        self.early = list[dict[str, Any]]()
        self.is_asked = False
        self._heard = b""

    def say(self, event: str, **data: Any) -> None:
        with contextlib.suppress(OSError):  # if the flow has gone, the container is stopped anyway
            write_all(self.control, json.dumps({"ev": event, **data}).encode() + b"\n")

    def hear(self, timeout_s: float | None, *others: int) -> list[dict[str, Any]]:
        """Wait for commands, for the end of the flow (which sets `why`), or for input on one of `others`."""
        poll = select.poll()
        for fd in (self.control, self.flow_fd, *others):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000):
            if fd == self.flow_fd:
                self.why, self.flow_fd = self.why or "flow_died", -1
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

    def serve(self, asked: dict[str, Any]) -> None:
        """Make the container, wait for the first reason to end, and see to its end.

        Args:
            asked: the configuration.
        """
        self.grace_s = asked["grace_s"]
        refusals: tuple[type[Exception], ...] = (InputError, *failures())
        try:
            running = self._make(asked)
        except refusals as error:
            self.say("refused", step=asked.get("step", "create"), why=reason_of(error, _WORDS_MAX))
            if self.output.ident is None:
                pass_on((), *asked["stdio"])
            if not self.is_asked:
                return  # nothing can have been made
            end_s = time.monotonic()
            if not isinstance(error, sdk().errors.APIError):
                end_s += _LATE_CONTAINER_S  # without an answer it may yet be made
            # What cannot be removed does not hold the locks for ever: a janitor finds it.
            give_up_s = time.monotonic() + _KEEP_TRYING_S
            while not clear_run(asked["engine"], asked["run_token"]) or time.monotonic() < end_s:
                if time.monotonic() > give_up_s:
                    break
                time.sleep(_LOOK_EVERY_S)
            return
        stopped = self._await_end(running)
        if stopped is not None:
            self._finish(running, stopped)

    def _make(self, asked: dict[str, Any]) -> RunningContainer:
        client = connect(asked["engine"], MAKE_S)
        self.is_asked = True
        container = client.create_container_from_config(asked["request"], asked["name"])["Id"]
        asked["request"], asked["step"] = None, "start"  # it contains secrets, and is not needed any more
        # Attach before the start, so that no line of the output is missed. Podman looks for the program at this point.
        stream = client.attach(container, stdout=True, stderr=True, stream=True, demux=True)
        self.output = threading.Thread(target=pass_on, args=(stream, *asked["stdio"]), daemon=True)
        self.output.start()
        self.early += self.hear(0.0)
        if not self.why and all(command["cmd"] != "stop" for command in self.early):
            client.start(container)
        client.timeout = CALL_S
        running = RunningContainer(client, container, asked["run_token"])
        state = running.look() or {}
        seen = {"pid": running.pid, "start_ticks": running.start_ticks, "running": is_running(state)}
        self.say("started", container=container, **seen)
        return running

    def _await_end(self, running: RunningContainer) -> Stopped | None:
        """Wait for the first reason to end; return how the container ended, None if it was released."""
        try:
            pidfd = os.pidfd_open(running.pid) if running.pid is not None else -1
        except OSError:
            pidfd = -1  # it has just ended
        grace_s, commands = self.grace_s, self.early
        while True:
            for command in commands:
                numbers = command.get("numbers", [])
                if command["cmd"] == "stop":
                    self.why, grace_s = "stop", float(command.get("grace_s", grace_s))
                    numbers = [command["first"]] if command.get("first") else []
                elif command["cmd"] == "release" and self._release(running):
                    return None
                for number in numbers:
                    running.signal(number)
            if self.why:
                break
            if running.ended():
                state = running.final_state()
                self.why = "exited" if state else "engine_lost"
                return Stopped(True, state=state)
            commands = self.hear(_LOOK_EVERY_S if pidfd < 0 else None, pidfd)
        return running.stop(grace_s, self._nap)

    def _release(self, running: RunningContainer) -> bool:
        """Release a container that keeps running; on no other path does it survive the warden."""
        state, why = running.look(), ""
        if not state or not is_running(state):
            why = "its engine does not answer" if state is None else "it has ended"
        else:
            # By its name the janitor knows that it is no leftover. The flow has already recorded how to stop it.
            try:
                name = str(running.client.inspect_container(running.container)["Name"]).lstrip("/")
                running.client.rename(running.container, name + LEFT_RUNNING)
            except failures() as error:
                why = f"its engine does not give it another name ({reason_of(error)})"
        if why:
            self.say("kept", reason=why)
            return False
        self._say_gone("released", Stopped(True))
        return True

    def _nap(self, seconds: float) -> float:
        """Wait; return the deadline of a further stop that arrived meanwhile, else infinity."""
        if self.control < 0:
            time.sleep(seconds)
            return math.inf
        stops = [command for command in self.hear(seconds) if command["cmd"] == "stop"]
        return min((time.monotonic() + float(stop.get("grace_s", math.inf)) for stop in stops), default=math.inf)

    def _finish(self, running: RunningContainer, stopped: Stopped) -> None:
        """Report the end once the output has come, and remove the container."""
        self.output.join(0.0 if running.silent or not stopped.gone else _OUTPUT_END_S)
        self._say_gone(self.why, stopped)
        end_s, gone = time.monotonic() + _KEEP_TRYING_S, stopped.gone
        # It may still write there: the locks of the cache directories stay held. Where its first process is to be seen,
        # that is no matter of the engine's patience.
        while not gone and (running.pid is not None or time.monotonic() < end_s):
            time.sleep(_LOOK_EVERY_S)
            if running.silent:
                running.look()  # it may answer again, and it alone may be permitted to kill
            running.signal(signal.SIGKILL)
            gone = bool(running.ended())
        running.remove()  # else a janitor does so

    def _say_gone(self, why: str, stopped: Stopped) -> None:
        # Podman does not always notice that memory ran out. A SIGKILL that we did not send, together with an out-of-memory
        # kill on this machine, also shows it.
        oom = why == "exited" and self.oom_kills < machine_oom_kills()
        whole = why == "released" or not self.output.is_alive()
        self.say("gone", why=why, oom_kill_here=oom, whole_output=whole, **vars(stopped))


def pass_on(stream: Any, stdout: int, stderr: int) -> None:
    """Copy a container's output until it ends, and close the descriptors, so that their readers see the end.

    Args:
        stream: the SDK's attached stream.
        stdout: descriptor for standard output.
        stderr: descriptor for standard error; may be the same one.
    """
    try:
        for out, err in stream:
            write_all(stdout, out or b"")
            write_all(stderr, err or b"")
    except failures():
        pass  # the engine has gone, or the reader of our pipes has
    finally:
        for fd in {stdout, stderr}:
            os.close(fd)


def machine_oom_kills() -> int:
    """Read how many processes this machine's kernel has killed since boot because memory ran out."""
    return int(dict(line.split() for line in read_proc("/proc/vmstat").splitlines()).get(b"oom_kill", 0))


def main(control: int) -> None:
    """Guard one container until nothing of it is left; never returns.

    Args:
        control: descriptor of the connected control socket; the configuration is read from it.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, b"cachewatch-ward", 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # a warden that is stopped when the flow dies must act then
    os.chdir("/")  # do not pin the file system that is being watched
    os.environ["HOME"] = "/"  # the SDK looks there for credentials; none are needed, and a home may hang
    warden = Warden(control)
    while not (heard := warden.hear(None)):
        if warden.why:
            os._exit(97)
    asked, *warden.early = heard
    warden.flow_fd = os.pidfd_open(asked["flow_pid"])
    if os.getppid() != asked["flow_pid"]:
        os._exit(97)  # it died before it was pinned, and its pid may have been reused
    sys.path.extend(asked.pop("path"))  # the SDK's, in place of site-packages
    warden.serve(asked)
    os._exit(0)
