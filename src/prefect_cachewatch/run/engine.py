"""The engine: a process of its own that runs the attempts of one run, tells its front the events, and outlives it.

The front may die or stop at any time: the tree is stopped then, and report, history and bundle are written all the same.
The front never waits for this process, which may be left behind in a file system that hangs. It loads neither pydantic
nor Prefect.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import socket
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.secrets import hide, redact_all, secret_values
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.within import Threads
from prefect_cachewatch.engine.events import (
    AttemptWanted,
    Bye,
    Event,
    Note,
    Progress,
    Ready,
    Refused,
    Retry,
    Step,
    Stream,
    to_line,
)
from prefect_cachewatch.engine.recorder import Recorder
from prefect_cachewatch.engine.spec import Plain, from_plain
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.run.learning import RunHistory, run_remembered
from prefect_cachewatch.run.outputs import check_outputs_ahead
from prefect_cachewatch.run.placement import Runtime, place_job
from prefect_cachewatch.run.runner import Runner
from prefect_cachewatch.supervise.helper_client import STARTS, HelperClient
from prefect_cachewatch.supervise.proc import take_in_orphans
from prefect_cachewatch.supervise.supervisor import Alone, Launch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prefect_cachewatch.metrics.run import RunMetrics
    from prefect_cachewatch.report.report import Report
    from prefect_cachewatch.watching.attempt import Outcome, Watch
    from prefect_cachewatch.watching.site import CacheDirectories

_WAITING_MOST = 500  # samples beyond that are dropped, since nobody reads them
_SUSPEND_WITHIN_S, _STARTED_WITHIN_S = 1.0, 10.0
_TOLD_WITHIN_S, _AGAIN_S = 10.0, 0.02
_SILENT_S = 60.0


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
    threading.Thread(target=engine.listen, args=(lines,), name="cachewatch-front", daemon=True).start()
    engine.run()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in {0, 1, 2, *spec.streams}:  # a reader of them must see their end, also if this process is left behind
        os.dup2(null, fd)
    os._exit(0)


class _FrontGone(Exception):
    """The front has died before an attempt began: there is nothing to do."""


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


class Engine:
    """One run.

    Args:
        front: the connection to the front.
        spec: the checked inputs.
        files: the helper process that accesses what may hang.
    """

    def __init__(self, front: socket.socket, spec: Plain, files: Files) -> None:
        self._spec, self._files = spec, files
        self._front = _Outlet(front)
        self._stream = Stream([self._front.take])
        self._recorder: Recorder | None = None
        self._clock = _Clock()
        self._suspension = contextlib.ExitStack()
        self._signals: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        threading.Thread(target=self._pass_on, name="cachewatch-signals", daemon=True).start()
        self._may_go = threading.Semaphore(0)
        self._has_front = True
        self._received: list[int] = []
        self._watch: Watch | None = None

    def run(self) -> None:
        """Make the attempts, and tell how it ended."""
        secrets = secret_values(self._env())
        try:
            self._stream.tell(self._run())
        except _FrontGone:
            return
        except CachewatchError as error:
            self._stream.tell(Refused(hide(error.message, secrets), error.exit_code))
        except Exception as error:  # noqa: BLE001 - the front says it, and ends with our own failure
            traceback.print_exc()
            told = hide(f"{type(error).__name__}: {error}", secrets)
            self._stream.tell(Refused(f"internal error, please report it with the lines above: {told}"))
        finally:
            self._front.close()

    def listen(self, lines: Any) -> None:
        """Do what the front says; at its end, have the tree stopped."""
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._obey(json.loads(line))
        self._has_front = False
        self._go_on()
        self._may_go.release()
        if self._watch is not None:
            self._watch.cancel("the command was killed")

    def _go_on(self) -> None:
        """Continue what was suspended, if it was."""
        for client in self._clients():
            client.resume()
        self._clock.go_on()
        self._suspension.close()

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "go":
                self._may_go.release()
            case "signal":
                self._signals.put(command["numbers"])
            case "suspend":
                self._clock.stop()
                # A command that is just being started is suspended too, and one that is not waits.
                self._suspension.enter_context(STARTS.held(_STARTED_WITHIN_S))
                for client in self._clients():
                    client.suspend(_SUSPEND_WITHIN_S)
                self._front.put(b"suspended\n")
            case "resume":
                self._go_on()
            case "cancel":
                self._cancel(**{name: value for name, value in command.items() if name != "do"})

    def _pass_on(self) -> None:
        """Pass signals on in their order; those that the command cannot take yet wait until it has started."""
        while True:
            numbers = self._signals.get()
            while not any(client.signal(numbers) for client in self._clients()):
                time.sleep(_AGAIN_S)

    def _cancel(self, signal: int, at_once: bool, first: int) -> None:
        self._received.append(signal)
        for client in self._clients():
            client.first_signal = client.first_signal or first
        if self._watch is not None:
            self._watch.cancel(_name_of(signal), 0.0 if at_once else None)

    def _clients(self) -> list[HelperClient]:
        supervisor: object = self._watch.supervisor if self._watch is not None else None
        return [supervisor] if isinstance(supervisor, HelperClient) else []

    def _env(self) -> dict[str, str]:
        job_env: dict[str, str] = self._spec.job.env
        return dict(os.environ) | job_env

    def _run(self) -> Bye:
        spec, files = self._spec, self._files
        if spec.job.ready.kind != "exit":
            importlib.import_module("prefect_cachewatch.watching.servers.serving")
        record = check_outputs_ahead(files, spec.job, spec.outputs)
        env = self._env()
        place = place_job(spec.job, env, files)
        with contextlib.ExitStack() as stack:
            if record is not None:
                self._stream = self._recorded(record, stack)
            metrics = stack.enter_context(self._metrics())
            site = stack.enter_context(place.open_site(files=files))
            history = RunHistory(place.job, spec.stall, site.paths, files, self._note)
            ready = Ready(place.job.name, tuple(site.paths), place.job.expected_bytes)
            self._stream.tell(redact_all(ready, secret_values(env)))
            outcome, report = run_remembered(
                history, lambda number: self._attempt(place, site, history, env, metrics, number), self._received
            )
            site.close()
            if metrics is not None:
                self._finish_metrics(metrics, outcome.name)
            bye = Bye(outcome.name, report.exit_status(self._received[0] if self._received else None))
            self._keep(bye)
        return bye

    def _attempt(
        self,
        place: Runtime,
        site: CacheDirectories,
        history: RunHistory,
        env: dict[str, str],
        metrics: RunMetrics | None,
        number: int,
    ) -> tuple[Outcome, Report]:
        spec, outputs = self._spec, self._spec.outputs

        silent_s = max(_SILENT_S, spec.stall.unresponsive_after_s or 0.0)
        alone = Alone(self._front.fileno(), silent_s, stops=place.job.on_stall == "stop")

        def adapt(launch: Launch) -> Launch:
            tell = (lambda text: self._stream.tell(Step(text))) if spec.verbose else None
            return replace(launch, tell=tell, signals=vars(spec.signals), alone=alone)

        if number > 1:
            self._stream.tell(Retry(0.0, "the window was learned: once more with the configured one"))
        self._stream.tell(AttemptWanted(number))
        self._may_go.acquire()
        if not self._has_front:
            raise _FrontGone
        runner = Runner(
            self._files, secret_values(env), attempt=number, bundles=outputs.bundle, bundle_root=outputs.bundle_dir,
            metrics=metrics, tell=self._stream.tell, on_stall=lambda report: runner.write(report, outputs.report),
            own=(outputs.report, outputs.record),
        )  # fmt: skip
        watch = runner.watch(
            place, site, spec.stall, spec.stop, env,
            log=outputs.log, show_output=True, streams=tuple(spec.streams), expected_bytes=place.job.expected_bytes, clock=self._clock,
            adapt=adapt, stdin_fd=0 if spec.has_stdin else None, history=history,
        )  # fmt: skip
        self._watch = watch
        outcome = runner.run(watch)
        report = runner.report(watch, outcome)
        runner.write(report, outputs.report)
        for problem in runner.problems:
            self._note(problem, fault=True)
        return outcome, report

    def _note(self, text: str, *, fault: bool = False) -> None:
        self._stream.tell(Note(hide(text, secret_values(self._env())), fault))

    def _recorded(self, record: Path, stack: contextlib.ExitStack) -> Stream:
        recorder = self._recorder = Recorder(record, self._files)

        def finish() -> None:
            self._stream = Stream([self._front.take])
            if (problem := recorder.finish()) is not None:
                self._note(problem, fault=True)

        stack.callback(finish)
        return Stream([self._front.take, recorder.take])

    def _keep(self, bye: Bye) -> None:
        """Record the last event before the front is told, which may yet be told of a fault of the recording."""
        if self._recorder is not None:
            self._recorder.take(bye, time.time())

    def _metrics(self) -> AbstractContextManager[RunMetrics | None]:
        if self._spec.metrics is None:
            return contextlib.nullcontext()
        from prefect_cachewatch.metrics.outlets import open_metrics  # noqa: PLC0415 - most runs have none
        from prefect_cachewatch.metrics.settings import Metrics  # noqa: PLC0415

        job = self._spec.job
        metrics = open_metrics(Metrics(to=self._spec.metrics), job.name, job.cache_dirs, self._files)
        self._note(f"metrics: {for_terminal(metrics.where, 4096)}")
        return metrics

    def _finish_metrics(self, metrics: RunMetrics, outcome: str) -> None:
        metrics.run_ended(outcome)
        metrics.close()
        if metrics.problem is not None:
            self._note(metrics.problem, fault=True)


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
        """Give the front a last chance to read, and hang up."""
        self._waiting.put(None)
        self._thread.join(_TOLD_WITHIN_S)
        with contextlib.suppress(OSError):
            self._front.shutdown(socket.SHUT_RDWR)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            with contextlib.suppress(OSError):  # the front has died
                self._front.sendall(line)


def _name_of(number: int) -> str:
    return signal.Signals(number).name
