"""Runs a generator in a container, through its warden, which makes, watches, stops and removes it.

No method here blocks longer than its timeout, whatever the engine does.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.containers.creation import container_request
from prefect_cachewatch.containers.engine import MAKE_S, SHOWN_MAX
from prefect_cachewatch.containers.janitor import NAME_PREFIX, clear_containers, clear_run, labels_of_run
from prefect_cachewatch.containers.preflight import ContainerPlan
from prefect_cachewatch.containers.stopping import RunningContainer
from prefect_cachewatch.errors import CommandError, GuardError, InputError
from prefect_cachewatch.supervise.helper_client import HelperClient, spawn_helper
from prefect_cachewatch.supervise.proc import RUN_TOKEN, is_alive
from prefect_cachewatch.supervise.reading import name_processes
from prefect_cachewatch.supervise.supervisor import Launch, RunningServer, TreeEnd
from prefect_cachewatch.supervise.tending import Tended

WARDEN_TITLE = "cachewatch-guard-container"
_START_S = 2 * MAKE_S
_SEND_S = 30.0
_CLOSE_S = 5.0
_CLEAR_S = 30.0
_KILLED = 137


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
        self._container: RunningContainer | None = None
        self._launch = launch
        self._cache_dirs = list(cache_dirs)
        self._refused: dict[str, Any] = {}
        self._answered_start = threading.Event()
        self._closing = False

    def start(self) -> None:
        """Start the warden, which creates, attaches to and starts the container.

        Raises:
            CommandError: the container's command cannot be executed (126, 127); nothing is left running.
            InputError: the engine refused.
            GuardError: the warden did not start.
        """
        # A process left by a dead run may be writing into this very cache.
        self.notes += clear_containers(self.plan.engine).leftovers
        try:
            self._spawn_warden()
            self._launch = replace(self._launch, env={})  # it contains secrets, and is not needed any more
            if not self._answered_start.wait(_START_S):
                raise GuardError(f"the warden process did not start the container within {_START_S:.0f} s")
            if self._refused:
                raise self._refusal(**self._refused)
            if self._container is None:
                raise GuardError("the warden process ended before the container was started")
        except BaseException:
            self.close()  # the warden removes what it has made
            raise

    def signal(self, numbers: Sequence[int]) -> bool:
        """Pass signals on to the container's first process once there is one; see `HelperClient.signal`."""
        return self.gone.is_set() or (self._container is not None and super().signal(numbers))

    def freeze(self, timeout_s: float) -> list[int]:
        """Freeze nothing: the evidence is read from a container that goes on."""
        return []

    def suspend(self, timeout_s: float) -> None:
        """Suspend nothing: Ctrl-Z stops the watch, and its container goes on, as with docker run."""

    def resume(self) -> None:
        """Resume nothing."""

    def running(self) -> RunningServer | None:
        """Return the container that would keep running after a release; None if it has ended."""
        container = self._container
        if self.gone.is_set() or container is None:
            return None
        tree = container.tree()
        if self.pid is not None and not tree:
            return None
        identities = tuple((pid, found.start_ticks) for pid, found in tree.items())
        ticks = None if self.pid is None else container.start_ticks
        return RunningServer("container", self.pid, ticks, identities, container.container, self.plan.engine)

    def close(self) -> None:
        """Release it; the warden stops a container that still runs, and removes one that has ended."""
        self._closing = True
        self._hang_up()
        self._reap(_CLOSE_S)

    def _spawn_warden(self) -> None:
        stdio = list(self._launch.stdio[1:])
        request = container_request(
            # The image that was found, though its tag may lead to another one by now.
            self.plan.spec.model_copy(update={"image": self.plan.image_id}),
            self._launch.argv,
            {**self._launch.env, RUN_TOKEN: self.run_token},
            {},
            self.plan.mounts_for(self._cache_dirs),
        )
        configuration = {
            "path": [os.path.abspath(entry) for entry in sys.path if entry],  # the warden runs in another directory
            "engine": self.plan.engine,
            "run_token": self.run_token,
            "flow_pid": os.getpid(),
            "grace_s": self._launch.grace_s,
            "stdio": stdio,
            "name": f"{NAME_PREFIX}{slugify(self.plan.name)[:40]}-{self.run_token[:8]}",
            "request": request,
        }
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = spawn_helper(
                    "prefect_cachewatch.containers.warden",
                    theirs.fileno(),
                    # Locks stay held until the container is gone.
                    sorted({theirs.fileno(), *stdio, *self._launch.hold}),
                    WARDEN_TITLE,
                )
            self._tended = [Tended(self._process.pid)]
            request["Labels"] = labels_of_run(self.run_token, self.plan.name, [os.getpid(), self._process.pid])
            ours.settimeout(_SEND_S)
            ours.sendall(json.dumps(configuration).encode() + b"\n")
        except BaseException as error:
            ours.close()  # a warden that has no whole configuration ends
            if isinstance(error, OSError) and self._process is not None:
                raise GuardError(f"the warden process ended before it began: {error.strerror}") from error
            raise
        self._socket = ours
        self._reader = threading.Thread(target=self._read, name="cachewatch-warden-reader", daemon=True)
        self._reader.start()

    def _refusal(self, step: str, why: str) -> InputError:
        image, words = for_terminal(self.plan.spec.image), self.plan.spec.entrypoint or list(self._launch.argv)
        command = f"command {for_terminal(words[0])!r}" if words else "the image's own command"
        shown = for_terminal(why, SHOWN_MAX)
        if step == "start" and "exec" in why:
            if re.search(r"executable file not found|no such file or directory", why, re.IGNORECASE):
                return CommandError(f"{command} not found in image {image}: {shown}", exit_code=127)
            if re.search(r"permission denied|exec format error", why, re.IGNORECASE):
                return CommandError(f"{command} cannot be executed in image {image}: {shown}", exit_code=126)
        return InputError(f"the container engine at {self.plan.engine} could not {step} the container: {shown}")

    def _read(self) -> None:
        self._listen()
        if not (self.gone.is_set() or self._closing or self._refused):
            self.notes.append("the warden of the container was killed")
            self._stop_from_here()
        self._answered_start.set()
        self._has_ended()

    def _stop_from_here(self) -> None:
        """Stop the container in place of its warden: nobody else would."""
        left = []
        if self._container is not None:
            left = name_processes(self._container.tree())
            self._container.signal(signal.SIGKILL)  # first: the warden may have been killed because its engine hangs
        cleared: list[bool] = []
        clear = functools.partial(clear_run, self.plan.engine, self.run_token)
        worker = threading.Thread(target=lambda: cleared.append(clear()), daemon=True)
        worker.start()
        worker.join(_CLEAR_S)
        if left or cleared == [True]:
            survivors = [who for who in left if is_alive(who["pid"], who["start_ticks"])]
            killed = [who for who in left if who not in survivors]
            self.report = TreeEnd("guards_died", None, None, 0.0, [], killed, survivors)

    def _take(self, event: str, message: dict[str, Any]) -> None:
        if event == "refused":
            self._refused = message
            self._answered_start.set()
        elif event == "started":
            self._take_start(**message)
        elif event == "gone":
            state, _ = message.pop("state") or {}, message.pop("gone")
            self._take_end(state=state, **message)
        else:
            super()._take(event, message)

    def _take_start(self, container: str, pid: int | None, start_ticks: int, running: bool) -> None:
        self.pid, self.root_pids = pid, [] if pid is None else [pid]
        self._container = RunningContainer(None, container, self.run_token, pid, start_ticks)
        self.notes.append(
            f"ran in container {container[:12]} of image {self.plan.spec.image} ({self.plan.image_id[:19]}) on the engine at "
            f"{self.plan.engine}"
        )
        if pid is None and running:
            self.notes.append("its processes are not to be seen from this host: the evidence lacks them")
        self._answered_start.set()

    def _take_end(self, why: str, oom_kill_here: bool, whole_output: bool, state: dict[str, Any], **how: Any) -> None:
        code, number, beyond = state.get("ExitCode"), None, ""
        if not whole_output:
            self.notes.append("the end of the container's output did not come: the log may lack its last lines")
        if state.get("OOMKilled") or (oom_kill_here and code == _KILLED):
            limit = self.plan.spec.memory_bytes
            beyond = f"its limit of {format_bytes(limit)}" if limit else "the memory there was"
            self.notes.append(f"the kernel killed a process of the container because it went beyond {beyond}")
        if state.get("Error"):
            self.notes.append(f"the engine says of the container: {for_terminal(redact(state['Error']), 300)}")
        if beyond and code == _KILLED:
            code, number = None, 9
        self._has_ended(TreeEnd(why, code, number, out_of_memory=beyond, **how))
