"""`cachewatch watch`: stall rule and post-mortem for a process that cachewatch did not start. No Prefect."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from prefect_cachewatch.cli.options.fields import Fields
from prefect_cachewatch.cli.options.guard import (
    REPORTING,
    ignored,
    make_absolute,
    poll_note,
    stall_from,
    stall_section,
    stop_from,
)
from prefect_cachewatch.cli.options.sections import Section, SectionedCommand, verbose_option
from prefect_cachewatch.cli.progress import ProgressLine, print_report
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.cli.signals import ENDING
from prefect_cachewatch.common.aside import Aside
from prefect_cachewatch.common.text import for_terminal, show_argv
from prefect_cachewatch.config import AttachJob
from prefect_cachewatch.engine.events import Bye, Stream
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.attached import AttachedRun
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.outcomes import STOPPED
from prefect_cachewatch.watching.outcomes import exit_status as status_of

# No command of ours is there to get USR1 and USR2.
_ENDING = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)


_FIELDS = Fields(
    AttachJob,
    "pid PID, cache_dirs --cache-dir DIR, on_stall, name NAME, allow_empty, ignore GLOB",
    pid={"type": int},
)


_VERBOSE = verbose_option("Show each measurement as a line.")


@click.command(
    "watch",
    cls=SectionedCommand,
    sections=[
        Section("Basics", "--pid --cache-dir --on-stall --name", _FIELDS.options("ignore")),
        stall_section(_FIELDS["ignore"]),
        Section("Output", "--report --quiet --verbose", [*REPORTING, _VERBOSE]),
    ],
    needed={"--pid": "required", "--cache-dir": "required"},
    options_metavar="--pid PID --cache-dir DIR [OPTIONS]",
    examples=[
        "cachewatch watch --pid 4711 --cache-dir /mnt/cache",
        "cachewatch watch --pid 4711 --cache-dir /mnt/cache --on-stall stop",
    ],
    epilog=(
    "Exit status: 124 if a stall was seen, whether it was stopped or only reported; else as the process ended: its own "
    "exit code, 128+N if signal N ended it, 1 if the cache was empty before and after, 123 if that is not known to an observer. 125 bad usage or cachewatch's own "
    "failure; 128+N if signal N ended the watch (Ctrl-C: 130), which leaves the process alone."
),
)  # fmt: skip
def command(**options: Any) -> int:
    """Watch the cache directories of a running process grow; report a stall, or stop the process on one."""
    attach, stall, stop = _attach_from(options), stall_from(options), stop_from(options)
    progress = ProgressLine(options["shown"], options["quiet"], options["verbose"], each=options["verbose"])

    stream = Stream([progress.take])
    files = Aside.fork()  # before any thread is started
    run = AttachedRun(
        attach, stall, stop,
        report=options["report"], bundles=not options["no_bundle"],
        tell=stream.tell, on_stall=progress.say_stall,
        files=files,
    )  # fmt: skip
    with run:
        if not options["quiet"]:
            who = f"{run.watch.who} ({show_argv(run.watch.job.command, 100)})"
            say(f"watching {who}; Ctrl-C leaves it alone", flush=True)
            if (note := poll_note(stall)) is not None:
                say(note, flush=True)
        received = _end_on_signals(run)
        try:
            outcome, report = run.run()
        finally:
            progress.close()
    for problem in run.problems:
        say(problem)
    if outcome.was_stopped:
        progress.name_bundle(report.bundle)
    for note in outcome.notes if not options["quiet"] else ():
        say(for_terminal(note, 1000))
    if outcome.name != "completed" or not options["quiet"]:
        print(outcome.message, file=sys.stderr, flush=True)
    if options["as_json"]:
        print_report(report)
    stream.tell(Bye(outcome.name))
    return exit_status(outcome, stalls=len(run.watch.stalls), received=received[0] if received else None)


def exit_status(outcome: Outcome, *, stalls: int = 0, received: int | None = None) -> int:
    """Return the exit status after a watch.

    Args:
        outcome: outcome of the watch.
        stalls: number of stalls that were only reported.
        received: the signal that ended the watch, if one did.

    Returns:
        The exit status.
    """
    if stalls and outcome.name != "detached":
        return STOPPED
    by_itself = outcome.stop is not None and outcome.stop.why == "exited"
    return status_of(
        outcome.name, exit_code=outcome.exit_code, signal=outcome.signal, by_itself=by_itself, received=received
    )


def _attach_from(options: dict[str, Any]) -> AttachJob:
    pid = options["pid"]
    if pid is None:
        raise InputError("say whom to watch: a process, with --pid PID (see ps -e)")
    if pid < 1:
        raise InputError(f"--pid {pid} is no process id: give the generator's, a number from 2 on (see ps -e)")
    if not options["cache_dirs"]:
        raise InputError(f"no cache directory given: say which one process {pid} writes to with --cache-dir DIR")
    return _FIELDS.build(options, cache_dirs=make_absolute(options["cache_dirs"]), ignore=ignored(options))


def _end_on_signals(run: AttachedRun) -> list[int]:
    """Turn Ctrl-C and kill into the end of the watch. Returns the signals that have arrived, live."""
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        received.append(number)
        run.watch.cancel(signal.Signals(number).name)

    for number in _ENDING:
        # nohup's and a background shell's choice to ignore a signal is respected.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    return received
