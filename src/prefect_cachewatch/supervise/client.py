"""The guard's client: starts a command under guard, waits for it, has its tree stopped.

The conversation runs in a separate thread, so that a wait can always be interrupted; no method blocks longer than its
timeout.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import CommandError, GuardError
from prefect_cachewatch.supervise.caller_signals import inherited_signals
from prefect_cachewatch.supervise.helper_client import STARTS, HelperClient, adopted, spawn_helper
from prefect_cachewatch.supervise.janitor import stop_leftovers
from prefect_cachewatch.supervise.proc import descendants
from prefect_cachewatch.supervise.run_files import RunFileRefused, create_run_file, parse_run_file
from prefect_cachewatch.supervise.supervisor import Launch, RunningServer, TreeEnd, exit_of
from prefect_cachewatch.supervise.tending import Tended

_START_TIMEOUT_S = 30.0
_CLOSE_S = 2.0
_STATE_S = 2.0
_BEAT_EVERY_S = 1.0
_EXEC_HINTS = {
    errno.ENOENT: "the interpreter that its first line names is missing",
    errno.ENOEXEC: "a script needs a first line such as #!/bin/sh, or its interpreter named first",
    errno.EACCES: "chmod +x it, or see whether its file system is mounted noexec",
    errno.E2BIG: "its arguments and environment together are too long",
}


class GuardClient(HelperClient):
    """One command under guard.

    Args:
        launch: the command and how to start it.
    """

    includes_roots = False  # the guards are no part of the generator
    # Declared again: a type checker infers a narrower type from the assignment than the base declares.
    pid: int | None
    leader_exit: tuple[int | None, int | None] | None
    report: TreeEnd | None

    def __init__(self, launch: Launch) -> None:
        super().__init__("guard", launch.run_token, launch.grace_s)
        self._started = threading.Event()
        self._failure: tuple[int, str] | None = None
        self._no_reaper = 0
        self._tell = launch.tell or (lambda line: None)
        self._state_path: str | None = None
        self._files, self._has_state, self._alone = launch.files, launch.has_state, launch.alone
        self._beat_s = 0.0
        self._seen: dict[tuple[int, int], None] = {}  # the processes that were there when the guards were given up
        self._configuration: dict[str, Any] = {
            "argv": list(launch.argv),
            "env": dict(launch.env),
            "cwd": launch.cwd,
            "stdio": list(launch.stdio),
            "grace_s": launch.grace_s,
            "run_token": launch.run_token,
            "wait_for": launch.wait_for,
            "hold": list(launch.hold),
            "may_release": launch.may_release,
            "flow_pid": os.getpid(),
            "signals": launch.signals or inherited_signals(),
            "says_reaped": launch.tell is not None,
            "alone": None if launch.alone is None else vars(launch.alone),
        }

    def start(self) -> None:
        """Start the guard and, through it, the command.

        Raises:
            CommandError: the command could not be executed; nothing is left running.
            GuardError: the guard did not start.
        """
        with STARTS.one():
            self._start()

    def _start(self) -> None:
        state_fd = self._open_state()
        ours, theirs = socket.socketpair()
        argv, cwd = list(self._configuration["argv"]), str(self._configuration["cwd"])
        stdio, hold = self._configuration["stdio"], self._configuration["hold"]
        own = [] if state_fd is None else [state_fd]
        front = [] if self._alone is None else [self._alone.front]
        self._configuration["state"] = [state_fd, self._state_path] if own else None
        try:
            with theirs:
                self._process = spawn_helper(
                    "prefect_cachewatch.supervise.guard",
                    theirs.fileno(),
                    sorted({theirs.fileno(), *stdio, *hold, *own, *front}),
                    "cachewatch-guard",
                )
        finally:
            for fd in own:  # only the guards hold the lock: it is released when both have died
                os.close(fd)
        self._socket = ours
        self._tended = [Tended(self._process.pid)]
        ours.settimeout(_START_TIMEOUT_S)  # a stopped guard does not read the configuration
        try:
            ours.sendall(json.dumps(self._configuration).encode() + b"\n")
        except OSError as error:
            raise GuardError(f"the guard process ended before it began: {error.strerror}") from error
        self._configuration = {}  # it includes the environment with its secrets
        self._reader = threading.Thread(target=self._read, name="cachewatch-guard-reader", daemon=True)
        self._reader.start()
        if not self._started.wait(_START_TIMEOUT_S):
            self.close()
            raise GuardError(f"the guard process did not start the command within {_START_TIMEOUT_S:.0f} s")
        if self._no_reaper:
            self.close()
            raise GuardError(
                f"the guard may not take in orphans ({os.strerror(self._no_reaper)} for prctl, a sandbox?): what the command "
                "leaves behind could be neither reaped nor stopped, and nothing was started"
            )
        if self.pid is None and self._failure is None:
            self.close()
            raise GuardError("the guard process ended before it had started the command")
        if self._failure is not None:
            self.close()
            number, step = self._failure
            reason, shown = os.strerror(number), for_terminal(argv[0])
            if step == "cwd":
                raise CommandError(
                    f"the working directory {for_terminal(cwd)} cannot be entered: {reason}", exit_code=125
                )
            code = 127 if number == 2 else 126
            hint = _EXEC_HINTS.get(number, "check it by hand")
            raise CommandError(f"command {shown!r} cannot be executed: {reason}; {hint}", exit_code=code)

    def beat(self) -> None:
        """Tell the guard, once a second at most, that this process decides; never blocks."""
        if (
            self._alone is not None
            and (now_s := time.monotonic()) - self._beat_s >= _BEAT_EVERY_S
            and self._may_speak()
        ):
            self._beat_s = now_s
            self._send_now({"cmd": "beat"})

    def running(self) -> RunningServer | None:
        """Return what would keep running after a release.

        Returns:
            The tree, identified by its first process, or if that has ended by the first of its remaining descendants.
        """
        tree = (
            {pid: found.start_ticks for pid, found in descendants(self.root_pids[-1]).items()} if self.root_pids else {}
        )
        if not tree:
            return None
        pid = self.pid if self.pid in tree and tree[self.pid] == self._start_ticks else next(iter(tree))
        return RunningServer("process", pid, tree[pid], tuple(tree.items()))

    def release(self, timeout_s: float) -> str | None:
        """Have the guards release the tree and end; see `Supervisor.release`.

        The state file is removed first: while it exists a janitor may stop the tree, and after that no process may.
        """
        if self._state_path is not None:
            try:
                self._files.run(_unlink, self._state_path, timeout_s=min(_STATE_S, timeout_s))
            except OSError as error:
                return f"its state file {self._state_path} cannot be removed: {error.strerror}"
        return super().release(timeout_s)

    def close(self) -> None:
        """Release the guard's process and socket; the guard itself stops a tree that still runs."""
        self._hang_up()
        survivors = self.report.survivors if self.report is not None else []
        self._reap(0.0 if survivors else _CLOSE_S)  # while any process is left, a guard holds the directories' locks
        if self.report is not None and not survivors:
            self._remove_state()  # the outer guard, which keeps it, may have died

    def _may_speak(self) -> bool:
        # Before the command has started, the guard would read a line as part of the configuration.
        return super()._may_speak() and self._started.is_set()  # checked in this order: it may be half made

    def _read(self) -> None:
        self._listen()
        if self.report is None and self._failure is None and self.pid is not None:
            self._mourn()
        self._started.set()
        self._has_ended()

    def _take(self, event: str, message: dict[str, Any]) -> None:
        if event == "started":
            self.pid, self.root_pids = message["pid"], message["guards"]
            self._tended = [Tended(pid) for pid in self.root_pids]
            self._start_ticks = message["start_ticks"]
            self._started.set()
            self._tell(f"the command was started as pid {self.pid}")
        elif event == "exec_failed":
            self._failure = (message["errno"], message["step"])
            self._started.set()
        elif event == "no_reaper":
            self._no_reaper = message["errno"]
            self._started.set()
        elif event == "silent":
            self.notes.append(f"the watch was silent for {message['silent_s']:.0f} s")
        elif event == "reaped":
            self._tell(f"an orphan with pid {message['pid']} {_how(message['status'])} and was reaped")
        elif event == "exited":
            self.leader_exit = exit_of(message["status"])
            self._tell(f"pid {self.pid} {_how(message['status'])}; {message['left']} of its tree are left")
        elif event == "released":
            self._has_ended(TreeEnd("released", None, None, 0.0))
        elif event == "stopping" and message["why"] != "exited":
            after = f"SIGTERM ({message['why']}), SIGKILL after {message['grace_s']:g} s"
            self._tell(f"the tree gets {after if message['grace_s'] else 'SIGKILL'}")
        elif event == "gone":
            self._tell("some of the tree could not be killed" if message["survivors"] else "the tree has gone")
            code, number = exit_of(message.pop("status"))
            self._has_ended(TreeEnd(exit_code=code, signal=number, **message))
        else:
            super()._take(event, message)

    def _give_up(self) -> None:
        if self.root_pids:
            self._seen = dict.fromkeys(
                (pid, found.start_ticks) for pid, found in descendants(self.root_pids[0]).items()
            )
        guards = {(one.pid, one.start_ticks) for one in self._tended}
        self._seen = {identity: None for identity in self._seen if identity not in guards}
        self.notes.append("the guards did not stop the generator in time and were killed; it was stopped without them")
        super()._give_up()

    def _open_state(self) -> int | None:
        if not self._has_state:
            self.notes.append("no state file for the janitor: its file system does not answer")
            return None
        try:
            fd, self._state_path = create_run_file(self.run_token)
        except (OSError, RunFileRefused) as error:
            # The run can go on: only a janitor would read the file.
            reason = error.strerror if isinstance(error, OSError) else error
            self.notes.append(f"no state file for the janitor: {reason}")
            return None
        return fd

    def _remove_state(self) -> None:
        path, self._state_path = self._state_path, None
        if path is not None:
            with contextlib.suppress(OSError):
                self._files.run(_unlink, path, timeout_s=_STATE_S)

    def _mourn(self) -> None:
        """The guards have died: stop the processes that carry the run's token, are listed in its state file, or fell to us."""
        began = time.monotonic()
        recorded = tuple(self._seen)
        if self._state_path is not None:
            with contextlib.suppress(OSError, RunFileRefused):
                data = self._files.run(_read_start, self._state_path, timeout_s=_STATE_S)
                recorded += parse_run_file(data, os.path.basename(self._state_path)).tree
        found = stop_leftovers(self.run_token, recorded, began + 10, adopted if self._alone else dict)
        named = [{"pid": f.pid, "start_ticks": f.start_ticks, "state": f.state, "argv": list(f.argv)} for f in found]
        killed = [who for who, one in zip(named, found, strict=True) if one.killed]
        survivors = [who for who, one in zip(named, found, strict=True) if not one.killed]
        self.report = TreeEnd("guards_died", None, None, time.monotonic() - began, [], killed, survivors)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _how(status: int) -> str:
    code, number = exit_of(status)
    return f"ended with exit code {code}" if number is None else f"was ended by signal {number}"


def _read_start(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1 << 20)
