"""`cachewatch exec`: the engine alone, like timeout(1) but for progress. No Prefect, no server.

It stays in memory for as long as the generator runs, hence the standard library only: what reads the
command line is `exec_command`, in a process of its own (`apart`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from prefect_cachewatch.cli.apart import ExecSettings
from prefect_cachewatch.cli.metrics import CommandMetrics
from prefect_cachewatch.cli.progress import ProgressLine
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.examination import Examiner, secret_values
from prefect_cachewatch.output import OutputPump
from prefect_cachewatch.placement import Placement, place_job
from prefect_cachewatch.report import build_report, check_report_path, write_report
from prefect_cachewatch.text import for_terminal, redact
from prefect_cachewatch.watch import Outcome, Watch, run_watch

if TYPE_CHECKING:
    from pathlib import Path

    from prefect_cachewatch.config import CacheJob
    from prefect_cachewatch.recorder import TraceRecorder

__all__ = ["STOPPED", "exit_status", "run_exec"]

STOPPED = 124
_OWN_FAILURE = 125
_NEVER_READY = 1
_CANCELLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_exec(settings: ExecSettings) -> int:
    """Run a command and watch its cache directories grow; stop its whole process tree on a stall.

    Args:
        settings: what was asked for, checked.

    Returns:
        The exit status of `cachewatch exec`.

    Raises:
        CachewatchError: it cannot be run.
    """
    job = settings.job
    if settings.report is not None:
        check_report_path(settings.report)
    record = None if settings.record is None else _checked_recording(settings.record, job)
    env = dict(os.environ) | job.env
    place = place_job(job, env)
    with CommandMetrics(settings.metrics, settings.metrics_linger_s, job, quiet=settings.quiet) as metrics:
        return _watch_command(settings, place, place.environment(env), record, metrics)


def _watch_command(
    settings: ExecSettings,
    place: Placement,
    env: dict[str, str],
    record: Callable[[], TraceRecorder] | None,
    metrics: CommandMetrics,
) -> int:
    job, stall, stop, quiet = place.job, settings.stall, settings.stop, settings.quiet
    progress = ProgressLine(quiet)
    if settings.note and not quiet:
        print(f"cachewatch: {settings.note}", file=sys.stderr)
    with place.open_site(create=settings.create) as site:
        output = OutputPump(settings.log, pass_through=True, before_write=progress.clear if progress.live else None)
        # A server that is left running must not hold on to our terminal.
        stdin_fd = 0 if _is_open(0) and job.ready.kind == "exit" else None
        examiner = Examiner(secrets=secret_values(env), bundles=settings.bundles, bundle_root=settings.bundle_dir)

        recorder = None if record is None else record()

        def on_sample(watch: Watch) -> None:
            if recorder is not None:
                recorder.sampled(watch)
            progress.sampled(watch)
            examiner.sampled(watch)
            metrics.sampled(watch)

        watch = Watch(
            site, job, stall, stop, env=env, output=output, stdin_fd=stdin_fd,
            on_sample=on_sample, before_stop=examiner.before_stop,
            make_supervisor=place.supervisor(site.paths),
        )  # fmt: skip
        received = _cancel_on_signals(watch)
        try:
            outcome = metrics.ended(examiner.conclude(watch, run_watch(metrics.began(watch))), examiner)
        finally:
            progress.close()
            problem = recorder.finish(watch) if recorder is not None else None
    if problem is not None:
        print(f"cachewatch: {problem}", file=sys.stderr)
    secrets = secret_values(env)
    tail = [redact(line, secrets) for line in output.tail_lines(50)]
    report = examiner.write_bundle(
        build_report(outcome, name=job.name, command=job.command, log_tail=tail, secrets=secrets), output
    )
    if settings.report is not None:
        try:
            write_report(report, settings.report)
        except CachewatchError as error:
            print(f"cachewatch: {error.message}", file=sys.stderr)
    if report.bundle is not None and not quiet:
        print(f"cachewatch: post-mortem: cachewatch report {for_terminal(report.bundle, 4096)}", file=sys.stderr)
    if outcome.name != "completed" or not quiet:
        print(outcome.message, file=sys.stderr, flush=True)
    metrics.finish(received)
    return exit_status(outcome, received[0] if received else None)


def exit_status(outcome: Outcome, received: int | None = None) -> int:
    """Say how the command ends after an outcome.

    Args:
        outcome: of the attempt.
        received: the signal that cancelled it, if one did.

    Returns:
        The exit status.
    """
    if outcome.name == "completed":
        return 0
    if outcome.name in ("stalled", "deadline_exceeded"):
        return STOPPED
    if outcome.name == "cancelled":
        return 128 + received if received else _OWN_FAILURE
    if outcome.stop is None or outcome.stop.why != "exited":
        return _OWN_FAILURE
    if outcome.signal is not None:
        return 128 + outcome.signal
    if outcome.exit_code == 0:
        return _NEVER_READY
    return outcome.exit_code if outcome.exit_code is not None else _OWN_FAILURE


def _checked_recording(path: Path, job: CacheJob) -> Callable[[], TraceRecorder]:
    """See that a run can be recorded; returns what begins the recording."""
    from prefect_cachewatch.recorder import TraceRecorder, trace_path  # noqa: PLC0415 - most runs are not recorded

    where = trace_path(path, job)
    return lambda: TraceRecorder(where)


def _cancel_on_signals(watch: Watch) -> list[int]:
    """Turn Ctrl-C and kill into an orderly stop; a second one ends the grace period. Returns what came, live."""
    received: list[int] = []

    def cancel(number: int, frame: object) -> None:
        received.append(number)
        if watch.supervisor is None:  # still measuring the start: nothing is running that would have to be stopped
            print(f"cachewatch: {signal.Signals(number).name} before the generator was started", file=sys.stderr)
            raise SystemExit(128 + number)
        watch.cancel(signal.Signals(number).name, 0.0 if len(received) > 1 else None)

    for number in _CANCELLING:
        # nohup's and a background shell's choice to ignore a signal is respected.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, cancel)
    return received


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
