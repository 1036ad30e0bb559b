"""The shared base of a guard's and a warden's client: a conversation in JSON lines.

Every request has a deadline. A stopped helper is continued. A helper that still does not do what it was asked is
killed, and the next line of defence acts: the outer guard, another warden, or a sweep by run token and recorded tree.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect_cachewatch.supervise.guard_signals import DEAF
from prefect_cachewatch.supervise.proc import ProcessStat, children, descendants, read_stat
from prefect_cachewatch.supervise.supervisor import Supervised, TreeEnd
from prefect_cachewatch.supervise.tending import Tended

_TEND_EVERY_S, _TEND_WANTED_S = 1.0, 0.25
# How long a helper may stay stopped (a tracer may hold it despite SIGCONT); the second when a stop is wanted.
_HELD_S, _HELD_WANTED_S = 10.0, 2.0
_SEND_S, _HANG_UP_S = 5.0, 2.0

#: Directory that a helper process, which starts without site-packages, imports this package from.
IMPORT_FROM = str(Path(__file__).resolve().parents[2])


_helpers: set[int] = set()
_made: weakref.WeakSet[HelperClient] = weakref.WeakSet()
_made_lock = threading.Lock()  # a signal handler may list the clients while another thread makes one


class _Starts:
    """Starts of commands in this process, so that none is half done while the process suspends itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way, self._held = 0, False

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Start a command within; waits while starts are held."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Let no command start within; waits for those under way.

        Args:
            timeout_s: the longest wait for them.
        """
        with self._changed:
            self._held = True
            self._changed.wait_for(lambda: not self._under_way, timeout_s)
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()


STARTS = _Starts()
"""Held while this process is suspended: a guard that is just starting a command cannot be asked to suspend it yet."""


def running_clients() -> list[HelperClient]:
    """List this process's clients whose helpers run a command, or are about to."""
    with _made_lock:
        made = list(_made)
    return [client for client in made if not client.gone.is_set()]


class HelperClient(Supervised):
    """Base of the supervisors that run the generator in a helper process; a separate thread reads its messages.

    Args:
        helper: name of the helper process, for a message.
        run_token: identifier of the run.
        grace_s: seconds between SIGTERM and SIGKILL, unless `stop` overrides it.
    """

    stop_takes_s = 30.0  # at most, beyond the grace period

    def __init__(self, helper: str, run_token: str, grace_s: float = 0.0) -> None:
        super().__init__()
        self.run_token = run_token
        self._helper = helper
        self._start_ticks = 0
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._frozen, self._answered, self._suspended = threading.Event(), threading.Event(), threading.Event()
        self._frozen_pids: list[int] = []
        self._kept = ""
        self.first_signal = 0
        """The signal that ends the run, if any: the command gets it before SIGTERM."""
        self._grace_s = grace_s
        self._tended: list[Tended] = []
        self._stop_command: dict[str, Any] | None = None
        self._stop_left_s = 0.0  # remaining time for a stop; it runs only while this process runs
        self._tended_at_s = 0.0
        self._given_up = False
        with _made_lock:  # last, so that a thread that finds the client finds it complete
            _made.add(self)

    def stop(self, grace_s: float | None = None) -> None:
        """Request a stop of the whole tree and return at once; `wait` reports when it is gone.

        Args:
            grace_s: overrides the grace period.
        """
        command: dict[str, Any] = {"cmd": "stop"} | ({} if grace_s is None else {"grace_s": grace_s})
        if self.first_signal:
            command["first"] = self.first_signal
        left_s = (self._grace_s if grace_s is None else grace_s) + self.stop_takes_s
        self._stop_left_s = left_s if self._stop_command is None else min(self._stop_left_s, left_s)
        self._stop_command = command
        self._command(command)
        for one in self._tended:
            one.look(_HELD_WANTED_S)

    def freeze(self, timeout_s: float) -> list[int]:
        """Freeze its processes, so that a snapshot of them is consistent; `stop` still works afterwards.

        Args:
            timeout_s: the longest wait.

        Returns:
            The pids that were frozen; empty if there was no answer in time.
        """
        self._frozen.clear()
        self._command({"cmd": "freeze"})
        return self._frozen_pids if self._frozen.wait(timeout_s) else []

    def signal(self, numbers: Sequence[int]) -> bool:
        """Pass signals on to the command; never blocks.

        Args:
            numbers: the signals, in order.

        Returns:
            False if nothing was passed on, since it has not started yet or its helper is busy: try again.
        """
        if self.gone.is_set():
            return True
        return self._may_speak() and self._send_now({"cmd": "signal", "numbers": list(numbers)})

    def suspend(self, timeout_s: float) -> None:
        """Suspend the whole tree, as by Ctrl-Z, until `resume`.

        Args:
            timeout_s: the longest wait, in seconds.
        """
        if self._may_speak():
            self._suspended.clear()
            self._send_now({"cmd": "suspend"})
            self._suspended.wait(timeout_s)

    def resume(self) -> None:
        """Continue what `suspend` stopped."""
        self._command({"cmd": "resume"})

    def release(self, timeout_s: float) -> str | None:
        """Have the helper release what runs and end; see `Supervisor.release`.

        Args:
            timeout_s: the longest wait.

        Returns:
            None if it was released, else the reason why not.
        """
        self._answered.clear()
        self._command({"cmd": "release"})
        if not self.gone.is_set():  # it may have ended just before: then no answer comes
            self._answered.wait(timeout_s)
        ended = self.gone.is_set()  # read first: the report is set before this event
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
            with contextlib.suppress(OSError):  # the helper has gone: the reader thread notices and takes over
                self._socket.settimeout(_SEND_S)  # a stopped helper reads nothing
                self._socket.sendall(json.dumps(command).encode() + b"\n")

    def _send_now(self, command: dict[str, Any]) -> bool:
        """Send without blocking; false if the helper does not take it at once, since it may be stopped."""
        if self._socket is None:
            return False
        with contextlib.suppress(OSError, ValueError):  # the helper has gone: the reader thread notices and takes over
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if not poll.poll(0):
                return False
            self._socket.send(json.dumps(command).encode() + b"\n")
        return True

    def _listen(self) -> None:
        """Read the helper's messages until it hangs up."""
        connection, buffer = self._socket, b""
        assert connection is not None
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        while True:
            # Read its messages before judging it: after a pause of this very process both may be due.
            if not poll.poll((_TEND_EVERY_S if self._stop_command is None else _TEND_WANTED_S) * 1000):
                if self._tend():
                    return
                continue
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

    def _tend(self) -> bool:
        """Handle helpers that are stopped, and a stop that takes too long; return whether to stop listening to them."""
        now_s = time.monotonic()
        if self._stop_command is not None:
            # At most two rounds at once: time in which the machine was suspended does not count.
            self._stop_left_s -= min(now_s - self._tended_at_s, 2 * _TEND_WANTED_S) if self._tended_at_s else 0.0
            self._tended_at_s = now_s
        wanted = self._stop_command is not None
        for one in self._tended:
            one.look(_HELD_WANTED_S if wanted else _HELD_S)
        if wanted and self._stop_left_s <= 0 and not self._given_up:
            self._given_up = True
            self._give_up()
        # A helper that hangs in the kernel does not even hang up.
        return self._given_up and self._stop_left_s <= -_HANG_UP_S

    def _give_up(self) -> None:
        """Kill the helpers, which do not do what was asked; the thread that listens to them takes over."""
        for one in self._tended:
            one.kill()

    def _take(self, event: str, message: dict[str, Any]) -> None:
        """Handle one message; the messages that every helper sends are handled here."""
        if event == "frozen":
            self._frozen_pids = message["pids"]
            self._frozen.set()
        elif event == "suspended":
            self._suspended.set()
        elif event == "kept":
            self._kept = message["reason"]
            self._answered.set()

    def _has_ended(self, report: TreeEnd | None = None) -> None:
        """Nothing is left, or no report can arrive any more: wake the waiting threads."""
        self.report = report or self.report
        self.gone.set()
        self._answered.set()

    def _hang_up(self) -> None:
        if self._socket is not None:
            # The reader thread uses the same descriptor: shutdown wakes it, close alone would not.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(2)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _reap(self, timeout_s: float) -> None:
        if self._process is None:
            return
        end_s = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < end_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TEND_WANTED_S)
                break
            for one in self._tended:
                one.look(timeout_s / 2)
        self._process.returncode = self._process.returncode or 0


def spawn_helper(module: str, fd: int, pass_fds: Sequence[int], title: str) -> subprocess.Popen[bytes]:
    """Start a standard-library-only helper process of this package, which ignores signals, in a session of its own.

    Args:
        module: dotted module whose `main(fd)` is run.
        fd: its control socket.
        pass_fds: every descriptor it inherits, including `fd`; no other is inherited.
        title: a word for process listings.

    Returns:
        The running process; its standard streams are /dev/null.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _code(module, fd), title],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
        env={"LC_ALL": "C.UTF-8", "PYTHONNODEBUGRANGES": "1"},
    )
    _helpers.add(process.pid)
    return process


def adopted() -> dict[int, ProcessStat]:
    """List the processes that fell to this one when their guard died, and reap those of them that have ended.

    For a process that is a subreaper and starts nothing but helpers.
    """
    found: dict[int, ProcessStat] = {}
    for pid in children(os.getpid()):
        if pid in _helpers:
            continue
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                continue
        if (status := read_stat(pid)) is not None:
            found |= {pid: status, **descendants(pid)}
    return found


def _code(module: str, fd: int) -> str:
    return f"{DEAF}import sys;sys.path.append({IMPORT_FROM!r});from {module} import main;main({fd})"
