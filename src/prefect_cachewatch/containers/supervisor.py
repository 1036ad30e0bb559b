"""Runs a generator in a container: created and started through the engine's API, stopped and removed by a warden.

The docker SDK creates, attaches and starts. The warden, a separate process, waits, stops, verifies and removes, and
does so too if this process dies. No method here blocks longer than its timeout, whatever the engine does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prefect_cachewatch.common.files import write_all
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.containers.creation import container_request
from prefect_cachewatch.containers.engine import engine_errors, open_client, sdk, whole_frames
from prefect_cachewatch.containers.engine_http import EngineHttp, EngineRefused, EngineSilent
from prefect_cachewatch.containers.janitor import clear_containers, describe_containers
from prefect_cachewatch.containers.labels import labels_of_run
from prefect_cachewatch.containers.preflight import ContainerPlan
from prefect_cachewatch.containers.stopping import NOT_SEEN, RunningContainer, container_tree
from prefect_cachewatch.errors import CommandError, GuardError, InputError
from prefect_cachewatch.supervise.helper_client import HelperClient, spawn_helper
from prefect_cachewatch.supervise.proc import RUN_TOKEN
from prefect_cachewatch.supervise.supervisor import Launch, RunningServer, TreeEnd
from prefect_cachewatch.supervise.tending import Tended

WARDEN_TITLE = "cachewatch-guard-container"
_START_S = 30.0
_LOG_END_S = 5.0
_CLOSE_S = 5.0
_REMOVE_S = 30.0
_KILLED = 137


_CHUNK = 1 << 18


class ContainerSupervisor(HelperClient):
    """One container under a warden.

    Args:
        launch: what to start, and how; its environment is the container's, its `argv` may be empty.
        plan: result of the pre-flight.
        cache_dirs: paths on this host; mounted at the same paths unless a mount of the job covers them.
    """

    stop_takes_s = 60.0  # an engine may hang at each request
    # Declared again: a type checker infers a narrower type from the assignment than the base declares.
    pid: int | None
    report: TreeEnd | None

    def __init__(self, launch: Launch, plan: ContainerPlan, cache_dirs: Sequence[str]) -> None:
        super().__init__("warden", launch.run_token, launch.grace_s)
        self.plan = plan
        self.container_id: str | None = None
        self._launch = launch
        self._cache_dirs = list(cache_dirs)
        self._log: LogStream | None = None
        self._ready, self._watching, self._removed = threading.Event(), threading.Event(), threading.Event()
        self._closing = self._seen_running = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the warden, then create, attach to and start the container.

        Raises:
            CommandError: the container's command cannot be executed (126, 127); nothing is left running.
            InputError: the engine refused.
            GuardError: the warden did not start.
        """
        # A process left by a dead run may be writing into this very cache.
        self.notes += describe_containers(clear_containers(self.plan.engine.url))
        try:
            self._spawn_warden()
            if not self._ready.wait(_START_S):
                raise GuardError(f"the warden process did not start within {_START_S:.0f} s")
            self._create_and_start()
            self._launch = replace(self._launch, env={})  # it contains secrets, and is not needed any more
            self._reader_started()
            self._command({"cmd": "watch", "id": self.container_id})
            if not self._watching.wait(_START_S):
                raise GuardError(f"the warden process did not find the container within {_START_S:.0f} s")
        except BaseException:
            self.close()  # the warden finds any created container by its label
            raise
        spec = self.plan.spec
        self.notes.append(
            f"ran in container {str(self.container_id)[:12]} of image {spec.image} ({self.plan.image_id[:19]}) on the engine "
            f"at {self.plan.engine}"
        )
        if self.pid is None and self._seen_running:
            self.notes.append(NOT_SEEN)

    def signal(self, numbers: Sequence[int]) -> bool:
        """Pass signals on to the container's first process once the warden knows it; see `HelperClient.signal`."""
        return self.gone.is_set() or (self._watching.is_set() and super().signal(numbers))

    def freeze(self, timeout_s: float) -> list[int]:
        """Freeze nothing: the evidence is read from a container that goes on."""
        return []

    def suspend(self, timeout_s: float) -> None:
        """Suspend nothing: Ctrl-Z stops the watch, and its container goes on, as with docker run."""

    def resume(self) -> None:
        """Resume nothing."""

    def running(self) -> RunningServer | None:
        """Return the container that would keep running after a release; None if it has ended."""
        if self.gone.is_set() or self.container_id is None:
            return None
        tree = container_tree(self.pid, self._start_ticks) if self.pid is not None else {}
        if self.pid is not None and not tree:
            return None
        identities = tuple((pid, found.start_ticks) for pid, found in tree.items())
        ticks = None if self.pid is None else self._start_ticks
        return RunningServer("container", self.pid, ticks, identities, self.container_id, self.plan.engine.url)

    def release(self, timeout_s: float) -> str | None:
        """Have the warden release the container and end; see `Supervisor.release`."""
        refusal = super().release(timeout_s)
        if refusal is None:
            self._finish_log()
        return refusal

    def close(self) -> None:
        """Release it; the warden stops a container that still runs, and removes one that has ended."""
        with self._lock:
            self._closing = True
        self._finish_log()
        if self._socket is not None and self.gone.is_set() and not self._was_released:
            self._removed.wait(_CLOSE_S)
        self._hang_up()
        self._reap(_CLOSE_S)

    def _create_and_start(self) -> None:
        engine, spec, launch = self.plan.engine, self.plan.spec, self._launch
        docker = sdk()
        assert self._process is not None
        request = container_request(
            # The image that was found, though its tag may lead to another one by now.
            spec.model_copy(update={"image": self.plan.image_id}),
            launch.argv,
            {**launch.env, RUN_TOKEN: self.run_token},
            labels_of_run(self.run_token, self.plan.name, [os.getpid(), self._process.pid]),
            self.plan.mounts_for(self._cache_dirs),
        )
        client = open_client(engine)
        try:
            self._command({"cmd": "creating"})
            with engine_errors(engine, "create the container"):
                name = f"cachewatch-{slugify(self.plan.name)[:40]}-{self.run_token[:8]}"
                try:
                    self.container_id = str(client.create_container_from_config(request, name)["Id"])
                    self._command({"cmd": "created"})
                except docker.errors.APIError:
                    self._command({"cmd": "created"})  # an answer, so that no creation is under way any more
                    raise
            with engine_errors(engine, "start the container"):
                try:
                    # Attach before the start, so that no line of the output is missed. Podman looks for the program at
                    # this point.
                    attached = client.attach_socket(self.container_id, {"stdout": 1, "stderr": 1, "stream": 1})
                    self._log = LogStream(attached, launch.stdio[1], launch.stdio[2])
                    client.start(self.container_id)
                except docker.errors.APIError as error:
                    raise self._refused_start(str(error.explanation or error)) from error
        finally:
            client.close()

    def _refused_start(self, why: str) -> InputError:
        image, said = for_terminal(self.plan.spec.image), for_terminal(redact(why.strip().rstrip(".")), 400)
        words = self.plan.spec.entrypoint or list(self._launch.argv)
        command = f"command {for_terminal(words[0])!r}" if words else "the image's own command"
        if re.search(r"executable file not found|no such file or directory", why, re.IGNORECASE) and "exec" in why:
            return CommandError(f"{command} not found in image {image}: {said}", exit_code=127)
        if re.search(r"permission denied|exec format error", why, re.IGNORECASE) and "exec" in why:
            return CommandError(f"{command} cannot be executed in image {image}: {said}", exit_code=126)
        return InputError(f"the container engine at {self.plan.engine} could not start the container: {said}")

    def _spawn_warden(self) -> None:
        ours, theirs = socket.socketpair()
        configuration = {
            "engine": self.plan.engine.url,
            "run_token": self.run_token,
            "flow_pid": os.getpid(),
            "grace_s": self._launch.grace_s,
        }
        with theirs:
            self._process = spawn_helper(
                "prefect_cachewatch.containers.warden",
                theirs.fileno(),
                sorted({theirs.fileno(), *self._launch.hold}),  # the locks stay held until the container is gone
                WARDEN_TITLE,
            )
        self._tended = [Tended(self._process.pid)]
        ours.settimeout(_START_S)
        self._socket = ours
        try:
            ours.sendall(json.dumps(configuration).encode() + b"\n")
        except OSError as error:
            raise GuardError(f"the warden process ended before it began: {error.strerror}") from error
        self._reader = threading.Thread(target=self._read, name="cachewatch-warden-reader", daemon=True)
        self._reader.start()

    def _reader_started(self) -> None:
        if self.gone.is_set():
            raise GuardError("the warden process ended before the container was started")

    def _read(self) -> None:
        self._listen()
        with self._lock:
            killed = not (self.gone.is_set() or self._closing)
        if killed:
            self.notes.append("the warden of the container was killed")
            self._stop_from_here()
        self._ready.set()
        self._watching.set()
        self._has_ended()

    def _stop_from_here(self) -> None:
        """Stop the container in place of its warden: nobody else would."""
        if self.container_id is None:
            return
        container = RunningContainer(EngineHttp(self.plan.engine.url), self.container_id, self.run_token)
        stopped = container.stop(0.0, _sleep)
        self.report = TreeEnd(
            "guards_died", None, None, stopped.gone_after_s, stopped.terminated, stopped.killed, stopped.survivors
        )
        if stopped.gone:
            with contextlib.suppress(EngineSilent, EngineRefused):  # otherwise a janitor removes it
                container.engine.remove(self.container_id, _REMOVE_S)

    def _take(self, event: str, message: dict[str, Any]) -> None:
        if event == "ready":
            self._ready.set()
        elif event == "watching":
            self.pid, self._seen_running = message["pid"], message["running"]
            self._start_ticks = message["start_ticks"]
            self.root_pids = [] if self.pid is None else [self.pid]
            self._watching.set()
        elif event == "gone":
            self._take_end(message)
        elif event == "removed":
            if message["problem"]:
                self.notes.append(
                    f"container {str(self.container_id)[:12]} could not be removed ({message['problem']}): "
                    "the next run in a container, or `cachewatch doctor`, does so"
                )
            else:
                self._removed.set()
        else:
            super()._take(event, message)

    def _take_end(self, message: dict[str, Any]) -> None:
        code, number = message.pop("exit_code"), None
        error, beyond = message.pop("error"), ""
        if message.pop("out_of_memory"):
            limit = self.plan.spec.memory_bytes
            beyond = f"its limit of {format_bytes(limit)}" if limit else "the memory there was"
            self.notes.append(f"the kernel killed a process of the container because it went beyond {beyond}")
        if error:
            self.notes.append(f"the engine says of the container: {for_terminal(redact(error), 300)}")
        if beyond and code == _KILLED:
            code, number = None, 9
        self._has_ended(TreeEnd(exit_code=code, signal=number, out_of_memory=beyond, **message))

    def _finish_log(self) -> None:
        log, self._log = self._log, None
        if log is None:
            return
        ended = self.gone.is_set() and not self._was_released
        if not log.finish(_LOG_END_S if ended else 0.0) and ended:
            self.notes.append("the end of the container's output did not come: the log may lack its last lines")
        self._send({"cmd": "remove"})


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return float("inf")


class LogStream:
    """A thread that copies standard output and error until the stream ends, or until `finish`; it starts at once.

    Args:
        attached: the SDK's attach socket.
        stdout_fd: target of standard output; duplicated, so the caller keeps its own.
        stderr_fd: target of standard error.
    """

    def __init__(self, attached: Any, stdout_fd: int, stderr_fd: int) -> None:
        self._attached = attached
        self._targets = {1: os.dup(stdout_fd), 2: os.dup(stderr_fd)}
        self._end_read, self._end_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._drain, name="cachewatch-container-log", daemon=True)
        self.ended = threading.Event()
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait for the stream's end, then close it; return whether the end came in time.

        Args:
            timeout_s: the longest wait.
        """
        complete = self.ended.wait(timeout_s)
        os.write(self._end_write, b"x")
        self._thread.join(1.0)
        if not self._thread.is_alive():  # otherwise it is blocked in a pipe without a reader; it is a daemon thread
            os.close(self._end_read)
            os.close(self._end_write)
            with contextlib.suppress(OSError):
                raw = getattr(self._attached, "_sock", None)  # the SDK wraps the socket in a file, and keeps the socket
                self._attached.close()
                if raw is not None:
                    raw.close()
        return complete

    def _drain(self) -> None:
        fd, buffer = self._attached.fileno(), bytearray()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(self._end_read, select.POLLIN)
        try:
            while True:
                ready = dict(poll.poll())
                if fd not in ready:
                    return  # told to end, and there is nothing left to read
                try:
                    chunk = os.read(fd, _CHUNK)
                except BlockingIOError:
                    continue
                if not chunk:
                    return
                buffer += chunk
                for stream, payload in whole_frames(buffer):
                    write_all(self._targets[2 if stream == 2 else 1], payload)
        except OSError:
            return  # the engine has gone, or the reader of our pipes has
        finally:
            for target in self._targets.values():  # the readers of the pipes see their end now
                os.close(target)
            self.ended.set()
