"""The guard's client: start a command under guard, wait for it, have its tree stopped.

The conversation runs in a thread of its own, so that a wait can always be interrupted; no method
blocks for longer than it is told to.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect_cachewatch.errors import CommandError, GuardError
from prefect_cachewatch.measure.scanner import spawn_helper
from prefect_cachewatch.supervise.proc import find_by_cookie, send_signal

__all__ = ["GuardClient", "StopReport"]

_START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class StopReport:
    """How the tree ended.

    `why` is exited, stop, flow_died, control_closed, guard_signalled, outer_guard_died, inner_guard_died
    or guards_died. `terminated` ended after SIGTERM, `killed` needed SIGKILL, `survivors` could not be
    killed; each entry has pid, start_ticks, state and argv.
    """

    why: str
    exit_code: int | None
    signal: int | None
    gone_after_s: float
    terminated: list[dict[str, Any]] = field(default_factory=list)
    killed: list[dict[str, Any]] = field(default_factory=list)
    survivors: list[dict[str, Any]] = field(default_factory=list)


class GuardClient:
    """One command under guard.

    Args:
        argv: the command, found through PATH of `env`.
        env: its whole environment.
        cwd: its working directory, None for `/`.
        stdio: descriptors for its standard input, output and error.
        grace_s: seconds between SIGTERM and SIGKILL whenever the tree has to be stopped.
        cookie: identifier of the run, put into the environment as CACHEWATCH_ID.
        wait_for: `tree` or `leader` (see `CacheJob.wait_for`).
        hold: descriptors (locks) that the guard keeps open until the tree is gone.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        stdio: tuple[int, int, int],
        grace_s: float,
        cookie: str,
        wait_for: str = "tree",
        hold: Sequence[int] = (),
    ) -> None:
        self.cookie = cookie
        self.pid: int | None = None
        self.guard_pids: list[int] = []
        self.leader_exit: tuple[int | None, int | None] | None = None
        self.gone = threading.Event()
        self.report: StopReport | None = None
        self._frozen = threading.Event()
        self._frozen_pids: list[int] = []
        self._started = threading.Event()
        self._failure: tuple[int, str] | None = None
        self._configuration = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "stdio": list(stdio),
            "grace_s": grace_s,
            "cookie": cookie,
            "wait_for": wait_for,
            "hold": list(hold),
            "flow_pid": os.getpid(),
        }
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the guard and, through it, the command.

        Raises:
            CommandError: the command could not be executed; nothing is left running.
            GuardError: the guard did not start.
        """
        ours, theirs = socket.socketpair()
        stdio, hold = self._configuration["stdio"], self._configuration["hold"]
        assert isinstance(stdio, list) and isinstance(hold, list)
        with theirs:
            self._process = spawn_helper(
                "prefect_cachewatch.supervise.guard",
                theirs.fileno(),
                sorted({theirs.fileno(), *stdio, *hold}),
                "cachewatch-guard",
            )
        self._socket = ours
        try:
            ours.sendall(json.dumps(self._configuration).encode() + b"\n")
        except OSError as error:
            raise GuardError(f"the guard process ended before it began: {error.strerror}") from error
        self._configuration = {}  # it holds the environment, secrets among it
        self._reader = threading.Thread(target=self._read, name="cachewatch-guard-reader", daemon=True)
        self._reader.start()
        if not self._started.wait(_START_TIMEOUT_S):
            self.close()
            raise GuardError(f"the guard process did not start the command within {_START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self.close()
            number, step = self._failure
            reason = os.strerror(number)
            if step == "cwd":
                raise CommandError(f"the working directory cannot be entered: {reason}", exit_code=125)
            code = 127 if number == 2 else 126
            raise CommandError(f"the command cannot be executed: {reason}", exit_code=code)

    def wait(self, timeout_s: float) -> StopReport | None:
        """Wait until the tree is gone.

        Args:
            timeout_s: the longest wait.

        Returns:
            How it ended, or None if it has not yet.
        """
        return self.report if self.gone.wait(timeout_s) else None

    def stop(self, grace_s: float | None = None) -> None:
        """Ask for the tree to be stopped; returns at once, `wait` says when it is gone."""
        command: dict[str, Any] = {"cmd": "stop"}
        if grace_s is not None:
            command["grace_s"] = grace_s
        self._command(command)

    def freeze(self, timeout_s: float) -> list[int]:
        """Stop the tree from running (SIGSTOP), so that a picture of it is consistent.

        Args:
            timeout_s: the longest wait.

        Returns:
            The pids that were stopped; empty if there was no answer in time. `stop` still works after it.
        """
        self._frozen.clear()
        self._command({"cmd": "freeze"})
        return self._frozen_pids if self._frozen.wait(timeout_s) else []

    def close(self) -> None:
        """Let go of the guard's process and socket; a tree that still runs is stopped by the guard itself."""
        if self._socket is not None:
            # The reader thread holds the same descriptor: shutdown wakes it, close alone would not.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(2)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            self._process.returncode = self._process.returncode or 0

    def _command(self, command: dict[str, Any]) -> None:
        if self._socket is not None and not self.gone.is_set():
            with contextlib.suppress(OSError):  # the guard has gone: the reader sees it and takes over
                self._socket.sendall(json.dumps(command).encode() + b"\n")

    def _read(self) -> None:
        assert self._socket is not None
        buffer = b""
        while True:
            try:
                chunk = self._socket.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                break
            buffer += chunk
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                self._take(json.loads(line))
        if self.report is None and self._failure is None and self.pid is not None:
            self._mourn()
        self._started.set()
        self.gone.set()

    def _take(self, message: dict[str, Any]) -> None:
        event = message.pop("ev")
        if event == "started":
            self.pid, self.guard_pids = message["pid"], message["guards"]
            self._started.set()
        elif event == "exec_failed":
            self._failure = (message["errno"], message["step"])
            self._started.set()
        elif event == "exited":
            self.leader_exit = _exit_of(message["status"])
        elif event == "frozen":
            self._frozen_pids = message["pids"]
            self._frozen.set()
        elif event == "gone":
            code, number = _exit_of(message.pop("status"))
            self.report = StopReport(exit_code=code, signal=number, **message)
            self.gone.set()

    def _mourn(self) -> None:
        """Both guards have died: stop what carries the run's cookie, as far as it can be found."""
        began = time.monotonic()
        killed: dict[int, dict[str, Any]] = {}
        survivors: list[dict[str, Any]] = []
        while time.monotonic() - began < 10:
            found = find_by_cookie(self.cookie)
            survivors = [{"pid": pid, "start_ticks": s.start_ticks, "state": s.state} for pid, s in found.items()]
            if not found:
                break
            for pid, status in found.items():
                killed[pid] = {
                    "pid": pid,
                    "start_ticks": status.start_ticks,
                    "state": status.state,
                    "argv": [],
                }
                send_signal(pid, status.start_ticks, signal.SIGKILL)
            time.sleep(0.01)
        self.report = StopReport(
            "guards_died", None, None, time.monotonic() - began, [], list(killed.values()), survivors
        )


def _exit_of(status: int | None) -> tuple[int | None, int | None]:
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)
