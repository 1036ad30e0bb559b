"""`cachewatch exec`: the front of an engine, like timeout(1) but by progress. No Prefect, no server.

`exec_command` reads the command line. The engine runs the generator; this process shows the events, passes signals on,
and keeps the exit status.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from prefect_cachewatch.cli.copied_output import CopiedOutput
from prefect_cachewatch.cli.progress import ProgressLine, print_report
from prefect_cachewatch.cli.saying import say, without_secrets
from prefect_cachewatch.cli.signals import SignalRelay
from prefect_cachewatch.common.console import standard_error
from prefect_cachewatch.engine.client import EngineClient, is_silent, silence
from prefect_cachewatch.engine.events import AttemptWanted, Bye, Gone, Refused, Reported, Step
from prefect_cachewatch.engine.spec import make_spec
from prefect_cachewatch.errors import CommandError, GuardError
from prefect_cachewatch.supervise.caller_signals import inherited_signals
from prefect_cachewatch.supervise.proc import descendants, process_name, send_signal, take_in_orphans
from prefect_cachewatch.supervise.tending import GUARD_NAME

_TREE_ENDS_S = 30.0  # beyond its grace period


def run_exec(run: Mapping[str, Any], options: Mapping[str, Any], note: str | None = None, *, last: bool = False) -> int:
    """Run a command and watch its cache directories grow; stop its whole process tree on a stall.

    Args:
        run: the checked job, stall, stop, outputs and metrics.
        options: as parsed: how the run is shown.
        note: remarks on the options, printed before the start.
        last: whether this process ends after it: later signals then change nothing any more.

    Returns:
        The exit status of `cachewatch exec`.

    Raises:
        CachewatchError: it cannot be run.
    """
    progress = ProgressLine(options["shown"], options["quiet"], options["verbose"])
    take_in_orphans()  # what a dead engine leaves behind: its end can be waited for
    front = _Front(run, options, progress)
    relay = SignalRelay(
        lambda: front.engines, front.cancel, before_start=_end_before_start, tell=_step if options["verbose"] else None
    )
    relay.begin()  # first: the signals that were held back since the start are not the command's to hold back
    try:
        if note and not options["quiet"]:
            say(note)
        return front.run(relay)
    finally:
        for engine in front.engines:
            engine.close()
        progress.close()
        relay.close(last=last)


def _end_before_start(number: int) -> None:
    """End while no generator runs that would have to be stopped."""
    _step(f"{signal.Signals(number).name} before the generator was started")
    raise SystemExit(128 + number)


class _Front:
    """Reads the engine's events to their end."""

    def __init__(self, run: Mapping[str, Any], options: Mapping[str, Any], progress: ProgressLine) -> None:
        self.engines: list[EngineClient] = []
        self._run, self._options, self._progress = run, options, progress
        self._output: CopiedOutput | None = None
        self._report: Mapping[str, Any] | None = None

    def cancel(self, number: int, at_once: bool) -> None:
        """Turn Ctrl-C and kill into an orderly stop; `at_once` ends the grace period."""
        for engine in self.engines:
            engine.cancel(signal.Signals(number).name, number, at_once=at_once)

    def run(self, relay: SignalRelay) -> int:
        """Start the engine, and read its events; returns the exit status."""
        engine = self._start()
        for event, at in engine.events():
            match event:
                case AttemptWanted():
                    relay.settle()  # from now on there is an attempt to cancel
                    self._progress.take(event, at)
                    engine.go()
                case Reported(report=report, final=final):
                    self._progress.take(event, at)
                    self._say_report(report, final)
                case Step(text=text):
                    self._progress.take(event, at)
                    _step(text)
                case Refused(message=message, status=status):
                    self._end_output()
                    self._progress.take(event, at)
                    raise CommandError(message, exit_code=status)
                case Gone() if is_silent(event):
                    raise silence(engine)
                case Bye(status=status):
                    self._progress.take(event, at)
                    if self._options["as_json"] and self._report is not None:
                        print_report(self._report)
                    return status
                case _:
                    self._progress.take(event, at)
        raise GuardError(self._mourn())

    def _start(self) -> EngineClient:
        self._output = output = CopiedOutput(self._progress)
        job, metrics = self._run["job"], self._run["metrics"]
        spec = make_spec(
            **{**self._run, "metrics": metrics.to if metrics is not None else None},
            needs_metrics=True,
            verbose=self._options["verbose"],
            streams=output.streams,
            # A server that is left running must not keep our terminal open.
            has_stdin=_is_open(0) and job.ready.kind == "exit",
            signals=inherited_signals(),
        )
        engine = EngineClient(spec, job.name, output.passed)
        self.engines.append(engine)
        output.hand_over()
        return engine

    def _say_report(self, report: Mapping[str, Any], final: bool) -> None:
        if final:
            self._end_output()
            self._report = report
        self._progress.say_report(report, final=final)

    def _end_output(self) -> None:
        if self._output is not None:
            self._output.finish()
            self._output = None

    def _mourn(self) -> str:
        """Wait until nothing of a run is left whose engine has died: a guard, our child by now, stops the tree.

        Without any guard the processes of the tree are our children, and are killed here.
        """
        self._end_output()
        end_s = time.monotonic() + self._run["stop"].grace_s + _TREE_ENDS_S
        while time.monotonic() < end_s:
            if not _reap():
                return "the engine of this run has died, and its generator was stopped"
            tree = descendants(os.getpid())
            if not any(process_name(pid) == GUARD_NAME for pid in tree):
                for pid, found in tree.items():
                    send_signal(pid, found.start_ticks, signal.SIGKILL)
            time.sleep(0.05)
        return "the engine of this run has died, and its generator could not be stopped: see what is left with ps"


def _reap() -> bool:
    """Reap the children that have ended; say whether any is left."""
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return False


def _step(line: str) -> None:
    standard_error().put(f"cachewatch: {without_secrets(line)}\n".encode())


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
