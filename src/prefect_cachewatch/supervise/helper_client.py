"""What a guard's client and a warden's have in common: a conversation in JSON lines, and what is asked in it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from typing import Any

from prefect_cachewatch.supervise.supervisor import StopReport

__all__ = ["HelperClient"]


class HelperClient:
    """Base of the supervisors that keep the generator in a helper process; a thread of its own takes what that one says.

    Args:
        helper: what the helper process is called, for a message.
        cookie: identifier of the run.
    """

    includes_roots = True

    def __init__(self, helper: str, cookie: str) -> None:
        self.cookie = cookie
        self.pid: int | None = None
        self.root_pids: list[int] = []
        self.leader_exit: tuple[int | None, int | None] | None = None
        self.gone = threading.Event()
        self.report: StopReport | None = None
        self.notes: list[str] = []
        self._helper = helper
        self._start_ticks = 0
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._frozen, self._answered = threading.Event(), threading.Event()
        self._frozen_pids: list[int] = []
        self._kept = ""

    def wait(self, timeout_s: float) -> StopReport | None:
        """Wait until nothing is left.

        Args:
            timeout_s: the longest wait.

        Returns:
            How it ended, or None if it has not yet.
        """
        return self.report if self.gone.wait(timeout_s) else None

    def stop(self, grace_s: float | None = None) -> None:
        """Ask for all of it to be stopped; returns at once, `wait` says when it is gone.

        Args:
            grace_s: overrides the grace period.
        """
        self._command({"cmd": "stop"} | ({} if grace_s is None else {"grace_s": grace_s}))

    def freeze(self, timeout_s: float) -> list[int]:
        """Keep its processes from running, so that a picture of them is consistent; `stop` still works after it.

        Args:
            timeout_s: the longest wait.

        Returns:
            The pids that were frozen; empty if there was no answer in time.
        """
        self._frozen.clear()
        self._command({"cmd": "freeze"})
        return self._frozen_pids if self._frozen.wait(timeout_s) else []

    def release(self, timeout_s: float) -> str | None:
        """Have the helper let go of what runs and end; see `Supervisor.release`.

        Args:
            timeout_s: the longest wait.

        Returns:
            None when it was let go, else why not.
        """
        self._answered.clear()
        self._command({"cmd": "release"})
        self._answered.wait(timeout_s)
        ended = self.gone.is_set()  # asked first: its report is there before it is set
        if self._was_released:
            return None
        if ended:
            return "it has ended"
        return self._kept or f"its {self._helper} did not answer within {timeout_s:.0f} s"

    @property
    def _was_released(self) -> bool:
        return self.report is not None and self.report.why == "released"

    def _may_speak(self) -> bool:
        return self._socket is not None and not self.gone.is_set()

    def _command(self, command: dict[str, Any]) -> None:
        if self._may_speak():
            self._send(command)

    def _send(self, command: dict[str, Any]) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the helper has gone: the reader sees it and takes over
                self._socket.sendall(json.dumps(command).encode() + b"\n")

    def _listen(self) -> None:
        """Take what the helper says until it hangs up."""
        connection, buffer = self._socket, b""
        assert connection is not None
        while True:
            try:
                chunk = connection.recv(1 << 16)
            except OSError:
                return
            if not chunk:
                return
            buffer += chunk
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                message = json.loads(line)
                self._take(message.pop("ev"), message)

    def _take(self, event: str, message: dict[str, Any]) -> None:
        """Take one message; those that every helper sends are taken here."""
        if event == "frozen":
            self._frozen_pids = message["pids"]
            self._frozen.set()
        elif event == "kept":
            self._kept = message["reason"]
            self._answered.set()

    def _has_ended(self, report: StopReport | None = None) -> None:
        """Nothing is left, or no report can be had any more: whoever waits goes on."""
        self.report = report or self.report
        self.gone.set()
        self._answered.set()

    def _hang_up(self) -> None:
        if self._socket is not None:
            # The reader thread holds the same descriptor: shutdown wakes it, close alone would not.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(2)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _reap(self, timeout_s: float) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
            self._process.returncode = self._process.returncode or 0
