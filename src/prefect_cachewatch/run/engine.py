"""The engine: a process of its own that runs the attempts of one run, tells its front the events, and outlives it.

The front may die or stop at any time: the tree is stopped then, and report, history and bundle are written all the same.
The front never waits for this process, which may be left behind in a file system that hangs. It loads neither pydantic
nor Prefect.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.secrets import hide, redact_all, secret_values, worth_hiding
from prefect_cachewatch.common.text import describe_refusal
from prefect_cachewatch.common.within import Threads
from prefect_cachewatch.engine.events import (
    AttemptWanted,
    Bye,
    Event,
    Note,
    Progress,
    Refused,
    Step,
    Stream,
    Tell,
    to_line,
)
from prefect_cachewatch.engine.recorder import Recorder
from prefect_cachewatch.engine.spec import Plain, from_plain
from prefect_cachewatch.engine.status import StatusFile
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.run.generation import Generation
from prefect_cachewatch.supervise.helper_client import STARTS, running_clients
from prefect_cachewatch.supervise.proc import take_in_orphans
from prefect_cachewatch.supervise.supervisor import Alone, Launch
from prefect_cachewatch.watching.outcomes import exit_status

if TYPE_CHECKING:
    from prefect_cachewatch.watching.attempt import Watch

_WAITING_MOST = 500  # samples beyond that are dropped, since nobody reads them
_SUSPEND_WITHIN_S, _STARTED_WITHIN_S = 1.0, 10.0
_AGAIN_S = 0.02
_SILENT_S = 60.0
_WAKES = signal.SIGUSR2  # nobody else's does anything: see `Engine.interrupt`
_NOTHING_RAN = "Cancelled while no generator was running."


def main(control: int) -> NoReturn:
    """Run one run to its end; never returns.

    Args:
        control: descriptor of the connected socket; its first line is the spec.
    """
    os.set_inheritable(control, False)
    connection = socket.socket(fileno=control)
    lines = connection.makefile("rb")
    if not (line := lines.readline()):
        os._exit(97)  # the front has died
    spec = from_plain(json.loads(line))
    take_in_orphans()
    engine = Engine(connection, spec, Threads())
    # A run that waits, checks or publishes ends where it is: a signal of our own raises that in this thread.
    signal.signal(_WAKES, engine.interrupt)
    threading.Thread(target=engine.listen, args=(lines,), name="cachewatch-front", daemon=True).start()
    engine.run()
    null = os.open(os.devnull, os.O_RDWR)
    # A reader of them must see their end, also if this process is left behind.
    for fd in {0, 1, 2, *(spec.streams or ())}:
        os.dup2(null, fd)
    os._exit(0)


class _Clock:
    """Monotonic seconds, without the time for which the tree was suspended."""

    def __init__(self) -> None:
        self._lost_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        since_s = self._since_s
        return (time.monotonic() if since_s is None else since_s) - self._lost_s

    def stop(self) -> None:
        """Stand still from now on."""
        if self._since_s is None:
            self._since_s = time.monotonic()

    def go_on(self) -> None:
        """Run on."""
        if (since_s := self._since_s) is not None:
            self._lost_s += time.monotonic() - since_s
            self._since_s = None


class _Cancelled(BaseException):
    """The run is to end, and no attempt is under way that could be stopped."""

    def __init__(self, headline: str, message: str) -> None:
        super().__init__(message)
        self.headline, self.message = headline, message


class Engine:
    """What a run has to do with its front: events, the gate of each attempt, cancellation, suspension.

    Args:
        front: the connection to the front.
        spec: the checked inputs.
        files: accesses what may hang.
    """

    def __init__(self, front: socket.socket, spec: Plain, files: Files) -> None:
        self.clock = _Clock()
        """Monotonic seconds in which the tree was not suspended."""
        self.received: list[int] = []
        """The signals that have ended the run, live."""
        self._spec, self._files = spec, files
        self._front = _Outlet(front)
        status = [StatusFile(spec.status).take] if spec.status is not None else []
        self._readers: list[Tell] = [self._front.take, *status]
        self._stream = Stream(self._readers)
        self._recorder: Recorder | None = None
        self._suspension = contextlib.ExitStack()
        self._signals: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        threading.Thread(target=self._pass_on, name="cachewatch-signals", daemon=True).start()
        self._may_go = threading.Semaphore(0)
        self._watch: Watch | None = None
        self._cancelled_by: str | None = None
        self._at_once = False
        self._in_short = "", _NOTHING_RAN
        self._is_settled = True
        self.env: dict[str, str] = dict(os.environ) | spec.job.env | spec.secrets
        """The generator's environment, before the container or the store has its say."""
        self.secrets = tuple({*worth_hiding(spec.secrets.values()), *secret_values(self.env)})
        """Values that nothing that is told may hold."""

    def run(self) -> None:
        """Make the run, and tell how it ended."""
        try:
            self._is_settled = False
            self.look_up()  # the front may have had enough before there was anybody to tell
            self._finish(self._run())
        except _Cancelled as cancelled:
            self._finish(self._bye(cancelled))
        except CachewatchError as error:
            self.settle()
            kind, data = type(error).__name__, _plain(error.data)
            self.tell(redact_all(Refused(hide(error.message, self.secrets), error.exit_code, kind, data), self.secrets))
        except OSError as error:
            self.settle()
            self.tell(Refused(hide(describe_refusal(error), self.secrets), kind="InputError"))
        except Exception as error:  # noqa: BLE001 - the front says it, and ends with our own failure
            self.settle()
            traceback.print_exc()
            told = hide(f"{type(error).__name__}: {error}", self.secrets)
            self.tell(Refused(f"internal error, please report it with the lines above: {told}"))
        finally:
            self.settle()
            self._front.close()

    def _run(self) -> Bye:
        if self._spec.attach is None:
            return Generation(self, self._spec, self._files).run()
        from prefect_cachewatch.run.attached import watch_attached  # noqa: PLC0415 - most runs start their generator

        return watch_attached(self, self._spec, self._files)

    def listen(self, lines: Any) -> None:
        """Do what the front says; at its end, have the tree stopped."""
        while line := _next_line(lines):
            try:
                self._obey(json.loads(line))
            except Exception:  # noqa: BLE001 - the next command is obeyed in any case
                traceback.print_exc()
        self._go_on()
        self._end(f"the {self._spec.front} was killed", at_once=False)

    def tell(self, event: Event) -> None:
        """Tell an event."""
        self._stream.tell(event)

    def note(self, text: str, *, fault: bool = False) -> None:
        """Tell what a person should know at once."""
        self.tell(Note(hide(text, self.secrets), fault))

    def wait_for_go(self, number: int, most: int | None) -> None:
        """Say that an attempt is due, and wait until the front lets it begin."""
        self.tell(AttemptWanted(number, most))
        self.look_up()
        self._may_go.acquire()

    @contextlib.contextmanager
    def attempt(self, watch: Watch) -> Iterator[None]:
        """Have an attempt stopped if the run is to end within; an attempt is concluded and reported whatever happens."""
        self._watch = watch
        if self._cancelled_by is not None:
            watch.cancel(self._cancelled_by, 0.0 if self._at_once else None)
        try:
            yield
        finally:
            self._watch = None

    @contextlib.contextmanager
    def pausing(self, headline: str, message: str) -> Iterator[None]:
        """Say what is told of a run that is cancelled within."""
        self._in_short = headline, message
        self.look_up()
        try:
            yield
        finally:
            self._in_short = "", _NOTHING_RAN

    def adapt(self, launch: Launch) -> Launch:
        """Change how a generator is started: with the front's signals, and a guard that knows of us alone."""
        spec = self._spec
        silent_s = max(_SILENT_S, spec.stall.unresponsive_after_s or 0.0)
        alone = Alone(self._front.fileno(), silent_s, stops=spec.job.on_stall == "stop")
        tell = (lambda text: self.tell(Step(text))) if spec.verbose else None
        return replace(launch, tell=tell, signals=vars(spec.signals), alone=alone)

    def record(self, path: Path, stack: contextlib.ExitStack) -> None:
        """Record the events from now on, to the end of the stack."""
        recorder = self._recorder = Recorder(path, self._files)
        self._stream = Stream([*self._readers, recorder.take])

        def finish(kind: Any, error: BaseException | None, trace: Any) -> None:
            if isinstance(error, _Cancelled):
                self.keep(self._bye(error))
            self._stream, self._recorder = Stream(self._readers), None
            if (problem := recorder.finish()) is not None:
                self.note(problem, fault=True)

        stack.push(finish)

    def keep(self, bye: Bye) -> None:
        """Record the last event before the front is told, which may yet be told of a fault of the recording."""
        if self._recorder is not None:
            self._recorder.take(bye, time.time())

    def settle(self) -> None:
        """From now on the end of the run is known, and no cancellation changes it."""
        self._is_settled = True

    def look_up(self) -> None:
        """End the run here if it is to end, and no attempt is under way."""
        if self._cancelled_by is not None and self._watch is None and not self._is_settled:
            raise _Cancelled(*self._in_short)

    def _bye(self, cancelled: _Cancelled) -> Bye:
        status = exit_status("cancelled", received=self.received[0] if self.received else None)
        return Bye("cancelled", status, cancelled.message, cancelled.headline)

    def _finish(self, bye: Bye) -> None:
        self.settle()
        self.tell(replace(bye, message=hide(bye.message, self.secrets), headline=hide(bye.headline, self.secrets)))

    def interrupt(self, number: int, frame: object) -> None:
        """End the run here; the handler of our own signal."""
        self.look_up()

    def _go_on(self) -> None:
        """Continue what was suspended, if it was."""
        for client in running_clients():
            client.resume()
        self.clock.go_on()
        self._suspension.close()

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "go":
                self._may_go.release()
            case "signal":
                self._signals.put(command["numbers"])
            case "suspend":
                self.clock.stop()
                # A command that is just being started is suspended too, and one that is not waits.
                self._suspension.enter_context(STARTS.held(_STARTED_WITHIN_S))
                for client in running_clients():
                    client.suspend(_SUSPEND_WITHIN_S)
                self._front.put(b"suspended\n")
            case "resume":
                self._go_on()
            case "cancel":
                for client in running_clients():
                    client.first_signal = client.first_signal or command["first"]
                if (number := command["signal"]) is not None:
                    self.received.append(number)
                self._end(command["why"], at_once=command["at_once"])

    def _end(self, why: str, *, at_once: bool) -> None:
        """Have the run end, at its front's wish or for want of one."""
        self._cancelled_by, self._at_once = self._cancelled_by or why, at_once
        if (watch := self._watch) is not None:
            watch.cancel(why, 0.0 if at_once else None)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, _WAKES)

    def _pass_on(self) -> None:
        """Pass signals on in their order; those that the command cannot take yet wait until it has started."""
        while True:
            numbers = self._signals.get()
            while not any(client.signal(numbers) for client in running_clients()):
                time.sleep(_AGAIN_S)


class _Outlet:
    """Writes lines to the front from a thread of its own: samples are dropped where it does not read, nothing else is."""

    def __init__(self, front: socket.socket) -> None:
        self._front = front
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="cachewatch-outlet", daemon=True)
        self._thread.start()

    def take(self, event: Event, at: float) -> None:
        """Take in an event that was told at a wall time."""
        if not isinstance(event, Progress) or self._waiting.qsize() < _WAITING_MOST:
            self.put(to_line(event, at).encode() + b"\n")

    def fileno(self) -> int:
        """The connection's descriptor."""
        return self._front.fileno()

    def put(self, line: bytes) -> None:
        """Queue a line."""
        self._waiting.put(line)

    def close(self) -> None:
        """Hang up once the front has read everything."""
        self._waiting.put(None)
        self._thread.join()  # a front that is stopped for a while hears the end all the same; a dead one reads no more
        with contextlib.suppress(OSError):
            self._front.shutdown(socket.SHUT_RDWR)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            with contextlib.suppress(OSError):  # the front has died
                self._front.sendall(line)


def _next_line(lines: Any) -> bytes:
    """Wait for the front's next command; empty once it has hung up."""
    try:
        line: bytes = lines.readline()
    except (OSError, ValueError):
        return b""
    return line


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Return what an error knows as what JSON holds."""
    plain: dict[str, Any] = json.loads(json.dumps(data, default=str))
    return plain
