"""`cachewatch exec`: the engine alone, like timeout(1) but for progress. No Prefect, no server."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.cli.options import check_log_path, guard_options, job_from, poll_note, stall_from, stop_from
from prefect_cachewatch.cli.progress import ProgressLine
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.examination import Examiner, secret_values
from prefect_cachewatch.output import OutputPump
from prefect_cachewatch.recorder import TraceRecorder, trace_path
from prefect_cachewatch.report import build_report, check_report_path, write_report
from prefect_cachewatch.site import CacheSite, check_command
from prefect_cachewatch.text import for_terminal, redact
from prefect_cachewatch.watch import Outcome, Watch, run_watch

__all__ = ["STOPPED", "command", "exit_status"]

STOPPED = 124
_OWN_FAILURE = 125
_CANCELLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("exec", context_settings={"allow_interspersed_args": False}, epilog=(
    "Exit status: the command's own; 124 if it was stopped; 125 bad usage or cachewatch's own failure; "
    "126 not executable; 127 not found; 128+N if signal N ended it."
))  # fmt: skip
@guard_options
def command(**options: Any) -> int:
    """Run COMMAND and watch its cache directories grow; stop its whole process tree on a stall."""
    job, stall, stop = job_from(None, options), stall_from(options), stop_from(options)
    report_path: Path | None = options["report"]
    if report_path is not None:
        check_report_path(report_path)
    if options["log"] is not None:
        check_log_path(options["log"], job)
    record = trace_path(options["record"], job) if options["record"] is not None else None
    env = dict(os.environ) | job.env
    check_command(job.command, env, str(job.cwd) if job.cwd else None)
    progress = ProgressLine(options["quiet"])
    context = click.get_current_context()
    note = poll_note(stall, context.get_parameter_source("poll") is click.core.ParameterSource.COMMANDLINE)
    if note and not options["quiet"]:
        print(f"cachewatch: {note}", file=sys.stderr)
    with CacheSite(
        job.cache_dirs, ignore=job.ignore, create=not options["no_create"], expected_bytes=job.expected_bytes
    ) as site:
        output = OutputPump(options["log"], pass_through=True, before_write=progress.clear if progress.live else None)
        stdin_fd = 0 if _is_open(0) else None
        examiner = Examiner(
            secrets=secret_values(env), bundles=not options["no_bundle"], bundle_root=options["bundle_dir"]
        )

        recorder = TraceRecorder(record) if record is not None else None

        def on_sample(watch: Watch) -> None:
            if recorder is not None:
                recorder.sampled(watch)
            progress.sampled(watch)
            examiner.sampled(watch)

        watch = Watch(
            site, job, stall, stop, env=env, output=output, stdin_fd=stdin_fd,
            on_sample=on_sample, before_stop=examiner.before_stop,
        )  # fmt: skip
        received = _cancel_on_signals(watch)
        try:
            outcome = examiner.conclude(watch, run_watch(watch))
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
    if report_path is not None:
        try:
            write_report(report, report_path)
        except CachewatchError as error:
            print(f"cachewatch: {error.message}", file=sys.stderr)
    if report.bundle is not None and not options["quiet"]:
        print(f"cachewatch: post-mortem: cachewatch report {for_terminal(report.bundle, 4096)}", file=sys.stderr)
    if outcome.name != "completed" or not options["quiet"]:
        print(outcome.message, file=sys.stderr, flush=True)
    return exit_status(outcome, received[0] if received else None)


def exit_status(outcome: Outcome, received: int | None = None) -> int:
    """Say how the command ends after an outcome.

    Args:
        outcome: of the attempt.
        received: the signal that cancelled it, if one did.

    Returns:
        The exit status.
    """
    if outcome.name in ("stalled", "deadline_exceeded"):
        return STOPPED
    if outcome.name == "cancelled":
        return 128 + received if received else _OWN_FAILURE
    if outcome.stop is None or outcome.stop.why != "exited":
        return _OWN_FAILURE
    if outcome.signal is not None:
        return 128 + outcome.signal
    return outcome.exit_code if outcome.exit_code is not None else _OWN_FAILURE


def _cancel_on_signals(watch: Watch) -> list[int]:
    """Turn Ctrl-C and kill into an orderly stop; a second one ends the grace period. Returns what came, live."""
    received: list[int] = []

    def cancel(number: int, frame: object) -> None:
        received.append(number)
        if watch.guard is None:  # still measuring the start: nothing is running that would have to be stopped
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
