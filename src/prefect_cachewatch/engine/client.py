"""The front's side of an engine: starts the process, tells it what to do, and reads its events.

The spec goes through the socket, never through argv or the environment. The front never waits for the engine's end: an
engine whose thread hangs in a file system is left behind. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefect_cachewatch.engine.events import Event, Gone, MalformedEvent, told_in
from prefect_cachewatch.errors import GuardError
from prefect_cachewatch.supervise.guard_signals import DEAF
from prefect_cachewatch.supervise.helper_client import IMPORT_FROM
from prefect_cachewatch.supervise.tending import Tended

_READ_BYTES = 1 << 16
_TEND_EVERY_S = 1.0
_GUARD_ENDS_S = 30.0  # beyond the grace period
_HELD_S = 10.0  # how long a tracer may hold it despite SIGCONT


_made: weakref.WeakSet[EngineClient] = weakref.WeakSet()
_made_lock = threading.Lock()  # a relay may list the engines while another thread starts one


def running_engines() -> list[EngineClient]:
    """List the engines that this process has started and not hung up on."""
    with _made_lock:
        made = list(_made)
    return [engine for engine in made if not engine.is_closed]


class EngineClient:
    """One engine, for one run.

    Args:
        spec: what to run, as JSON; it may hold secrets.
        name: of the job, for process listings.
        pass_fds: descriptors that the engine inherits, besides its standard streams.

    The first command is the spec itself; then `go` (an attempt may begin), `cancel`, `signal`, `suspend`, `resume`.
    """

    def __init__(self, spec: Mapping[str, Any], name: str, pass_fds: Sequence[int] = ()) -> None:
        self.first_signal = 0
        """The signal that ends the run, if any: the command gets it before SIGTERM."""
        self._suspended = threading.Event()
        self._lock = threading.Lock()
        self.is_closed = False
        self._patience_s = float(spec["model"]["stop"]["model"]["grace_s"]) + _GUARD_ENDS_S
        self.has_gone = False
        """Whether an attempt may have begun."""
        ours, theirs = map(_above_standard, socket.socketpair())
        stdin = 0 if spec["model"]["has_stdin"] else subprocess.DEVNULL
        code = (
            f"{DEAF}import sys;sys.path.extend({[IMPORT_FROM, *_site()]!r});"
            f"from prefect_cachewatch.run.engine import main;main({theirs.fileno()})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code, f"cachewatch: engine {name}"],
                stdin=stdin,
                stdout=_if_open(1),
                stderr=_if_open(2),
                pass_fds=(theirs.fileno(), *pass_fds),
                start_new_session=True,
            )
        self._socket = ours
        self._send(spec)
        with _made_lock:
            _made.add(self)

    @property
    def pid(self) -> int:
        """The engine's pid."""
        return self._process.pid

    def events(self) -> Iterator[tuple[Event, float]]:
        """Read the events, each with its wall time, until the engine hangs up; `bye` is the last one unless it has died."""
        buffer = b""
        tended, poll, died_s = Tended(self._process.pid), select.poll(), math.inf
        poll.register(self._socket, select.POLLIN)
        while True:
            if not poll.poll(_TEND_EVERY_S * 1000):
                if self.ended() is None:
                    tended.look(_HELD_S)  # one that is stopped is continued, or it could stop nothing
                    continue
                # Its guard hangs up when it has stopped the tree; one that is stopped itself never does.
                died_s = min(died_s, time.monotonic())
                if time.monotonic() - died_s > self._patience_s:
                    return
                continue
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except OSError:
                return
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                if line == b"suspended":
                    self._suspended.set()
                    continue
                with contextlib.suppress(MalformedEvent):
                    event, at = told_in(line)
                    if event is not None:
                        yield event, at

    def go(self) -> None:
        """Let the attempt begin that the engine has asked for."""
        self.has_gone = True
        self._send({"do": "go"})

    def cancel(self, why: str, number: int | None = None, *, at_once: bool = False) -> None:
        """Have the run ended, and the tree stopped if there is one.

        Args:
            why: for the message.
            number: the signal that it is because of, if it is.
            at_once: whether it ends the grace period.
        """
        command = {"do": "cancel", "why": why, "signal": number, "at_once": at_once, "first": self.first_signal}
        self._send(command)

    def signal(self, numbers: Sequence[int]) -> bool:
        """Pass signals on to the command, in order; returns whether the engine has taken them."""
        return self.has_gone and self._send({"do": "signal", "numbers": list(numbers)})

    def suspend(self, timeout_s: float) -> None:
        """Suspend the whole tree, as by Ctrl-Z, until `resume`."""
        self._suspended.clear()
        if self.has_gone and self._send({"do": "suspend"}):
            self._suspended.wait(timeout_s)

    def resume(self) -> None:
        """Continue what `suspend` stopped."""
        self._send({"do": "resume"})

    def ended(self) -> int | None:
        """The signal or exit status that the engine has ended with, as of `Popen`; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill an engine that does nothing any more."""
        self._process.kill()

    def close(self) -> None:
        """Hang up; an engine that still runs stops its tree, and writes its report."""
        if not self.is_closed:
            self.is_closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # this wakes the reader; the number may be another file's soon
            self._socket.close()
            # Whoever lives on wants no zombie, and nobody waits for an engine that hangs.
            threading.Thread(target=self._process.wait, name="cachewatch-reaper", daemon=True).start()

    def _send(self, command: Mapping[str, Any]) -> bool:
        with self._lock, contextlib.suppress(OSError):  # it has died: its events end
            self._socket.sendall(json.dumps(command).encode() + b"\n")
            return True
        return False


def is_silent(event: Event | None) -> bool:
    """Say whether the guard has stopped the tree because the engine had gone silent; nothing follows then."""
    return isinstance(event, Gone) and event.why == "watch_silent"


def silence(engine: EngineClient) -> GuardError:
    """Kill an engine that has gone silent, and return the error that says so."""
    engine.kill()
    return GuardError("the watch of this run went silent, and its guard has stopped the generator")


def _above_standard(made: socket.socket) -> socket.socket:
    """Move a socket off the numbers of the standard streams, which it gets where one of them is closed."""
    if made.fileno() > 2:
        return made
    with made:
        return socket.socket(fileno=fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _if_open(fd: int) -> int:
    try:
        os.fstat(fd)
    except OSError:
        return subprocess.DEVNULL
    return fd


def _site() -> list[str]:
    """Where this interpreter's other packages lie, for an engine that is started without them."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
