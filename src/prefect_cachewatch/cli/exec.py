"""`cachewatch exec`: the engine alone, like timeout(1) but by progress. No Prefect, no server.

`exec_command` reads the command line.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prefect_cachewatch.cli.progress import Mode, ProgressLine, print_report
from prefect_cachewatch.cli.saying import say, without_secrets
from prefect_cachewatch.cli.signals import SignalRelay
from prefect_cachewatch.common.aside import Aside, Files
from prefect_cachewatch.common.console import standard_error
from prefect_cachewatch.common.secrets import hide, redact_all, secret_values
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.engine.events import AttemptWanted, Bye, Ready, Refused, Retry, Stream
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.run.learning import RunHistory, run_remembered
from prefect_cachewatch.run.outputs import check_outputs_ahead
from prefect_cachewatch.run.placement import Runtime, place_job
from prefect_cachewatch.run.runner import Runner, told_to
from prefect_cachewatch.supervise.helper_client import HelperClient
from prefect_cachewatch.supervise.supervisor import Launch
from prefect_cachewatch.watching.attempt import Watch
from prefect_cachewatch.watching.site import CacheDirectories

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from prefect_cachewatch.config import CacheJob, Outputs, StallPolicy, StopPolicy
    from prefect_cachewatch.metrics.run import RunMetrics
    from prefect_cachewatch.metrics.settings import Metrics
    from prefect_cachewatch.report.report import Report
    from prefect_cachewatch.watching.attempt import Outcome


@dataclass(frozen=True)
class ExecSettings:
    """The checked options of `cachewatch exec`."""

    job: CacheJob
    stall: StallPolicy
    stop: StopPolicy
    outputs: Outputs
    quiet: bool
    progress: Mode | None
    verbose: bool
    """Whether each step of the guard is told."""
    metrics: Metrics | None
    note: str | None
    """Remarks on the options, printed before the start."""
    as_json: bool = False
    """Whether the report is printed."""
    """What the command says of its cache's key, if a profile knows it."""


def run_exec(settings: ExecSettings, *, last: bool = False) -> int:
    """Run a command and watch its cache directories grow; stop its whole process tree on a stall.

    Args:
        settings: the checked options.
        last: whether this process ends after it: later signals then change nothing any more.

    Returns:
        The exit status of `cachewatch exec`.

    Raises:
        CachewatchError: it cannot be run.
    """
    if settings.metrics is not None:  # the helper process must hold what it may be asked to call
        importlib.import_module("prefect_cachewatch.metrics.outlets")
    with contextlib.closing(Aside.fork()) as files:  # before any thread is started
        return _run_with(settings, files, last=last)


def _run_with(settings: ExecSettings, files: Files, *, last: bool) -> int:
    job = settings.job
    record = check_outputs_ahead(files, job, settings.outputs)
    env = dict(os.environ) | job.env
    place = place_job(job, env, files)
    if job.ready.kind != "exit":
        importlib.import_module("prefect_cachewatch.watching.servers.serving")
    watches: list[Watch] = []
    relay = SignalRelay(
        lambda: _clients(watches),
        lambda number, at_once: _cancel(watches, number, at_once),
        before_start=_end_before_start,
        tell=_say if settings.verbose else None,
    )
    relay.begin()
    try:
        with _open_metrics(settings, files) as metrics:
            return _watch_command(settings, files, place, env, record, metrics, relay, watches)
    finally:
        relay.close(last=last)


def _watch_command(
    settings: ExecSettings,
    files: Files,
    place: Runtime,
    env: dict[str, str],
    record: Path | None,
    metrics: RunMetrics | None,
    relay: SignalRelay,
    watches: list[Watch],
) -> int:
    progress = ProgressLine(settings.progress, settings.quiet, settings.verbose)
    if settings.note and not settings.quiet:
        say(settings.note)
    secrets = secret_values(env)
    with told_to(progress, record, files, say) as stream:
        try:
            outcome, report = _make_attempts(settings, files, place, env, metrics, relay, watches, progress, stream)
        except CachewatchError as error:
            stream.tell(Refused(hide(error.message, secrets)))
            raise
        if metrics is not None:
            _finish_metrics(metrics, outcome.name)
        stream.tell(Bye(outcome.name))
    if settings.as_json:
        print_report(report)
    return report.exit_status(relay.received[0] if relay.received else None)


def _make_attempts(
    settings: ExecSettings,
    files: Files,
    place: Runtime,
    env: dict[str, str],
    metrics: RunMetrics | None,
    relay: SignalRelay,
    watches: list[Watch],
    progress: ProgressLine,
    stream: Stream,
) -> tuple[Outcome, Report]:
    job, quiet, secrets = place.job, settings.quiet, secret_values(env)

    def adapt(launch: Launch) -> Launch:
        relay.settle()
        return replace(launch, tell=_say if settings.verbose else None)

    def attempt(site: CacheDirectories, history: RunHistory, number: int) -> tuple[Outcome, Report]:
        def say_stall(report: Report) -> None:
            progress.say_stall(report)
            runner.write(report, settings.outputs.report)

        if number > 1:
            stream.tell(Retry(0.0, "the window was learned: once more with the configured one"))
        stream.tell(AttemptWanted(number))
        runner = Runner(
            files, secrets, attempt=number, bundles=settings.outputs.bundle,
            bundle_root=settings.outputs.bundle_dir, metrics=metrics, view=progress, tell=stream.tell, on_stall=say_stall,
            own=(settings.outputs.report, settings.outputs.record),
        )  # fmt: skip
        watch = runner.watch(
            place, site, settings.stall, settings.stop, env,
            log=settings.outputs.log, show_output=True, expected_bytes=job.expected_bytes, clock=relay.clock, adapt=adapt,
            # A server that is left running must not keep our terminal open.
            stdin_fd=0 if _is_open(0) and job.ready.kind == "exit" else None, history=history,
        )  # fmt: skip
        watches[:] = [watch]
        outcome = runner.run(watch)
        report = runner.report(watch, outcome)
        runner.write(report, settings.outputs.report)
        for problem in runner.problems:
            say(problem)
        progress.name_bundle(report)
        if outcome.name != "completed" or outcome.would_be_stops or not quiet:
            print(outcome.message, file=sys.stderr, flush=True)
        return outcome, report

    with place.open_site(files=files) as site:
        stream.tell(redact_all(Ready(job.name, tuple(site.paths), job.expected_bytes), secrets))
        history = RunHistory(job, settings.stall, site.paths, files, _say_nothing if quiet else _say)
        return run_remembered(history, lambda number: attempt(site, history, number), relay.received)


def _open_metrics(settings: ExecSettings, files: Files) -> AbstractContextManager[RunMetrics | None]:
    if settings.metrics is None:
        return contextlib.nullcontext()
    from prefect_cachewatch.metrics.outlets import open_metrics  # noqa: PLC0415 - most runs have none

    metrics = open_metrics(settings.metrics, settings.job.name, settings.job.cache_dirs, files)
    if not settings.quiet:
        say(f"metrics: {for_terminal(metrics.where, 4096)}", flush=True)
    return metrics


def _finish_metrics(metrics: RunMetrics, outcome: str) -> None:
    """Take in the run's end, close the metrics, and print what went wrong with them."""
    metrics.run_ended(outcome)
    metrics.close()
    if metrics.problem is not None:
        say(metrics.problem, flush=True)


def _clients(watches: list[Watch]) -> list[HelperClient]:
    supervisors: list[object] = [watch.supervisor for watch in watches]
    return [one for one in supervisors if isinstance(one, HelperClient)]


def _cancel(watches: list[Watch], number: int, at_once: bool) -> None:
    """Turn Ctrl-C and kill into an orderly stop; `at_once` ends the grace period."""
    for watch in watches:
        watch.cancel(signal.Signals(number).name, 0.0 if at_once else None)


def _say(line: str) -> None:
    standard_error().put(f"cachewatch: {without_secrets(line)}\n".encode())


def _say_nothing(line: str) -> None:
    """Say nothing, for --quiet."""


def _end_before_start(number: int) -> None:
    """End while the start is still being measured: no process is running yet that would have to be stopped."""
    _say(f"{signal.Signals(number).name} before the generator was started")
    raise SystemExit(128 + number)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
