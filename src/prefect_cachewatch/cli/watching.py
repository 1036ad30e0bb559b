"""`cachewatch watch`: stall rule and post-mortem for a process that cachewatch did not start. No Prefect."""

from __future__ import annotations

import signal
from collections.abc import Mapping
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
from prefect_cachewatch.cli.signals import ENDING, SignalRelay
from prefect_cachewatch.config import AttachJob, CacheJob, Outputs
from prefect_cachewatch.engine.client import EngineClient
from prefect_cachewatch.engine.events import Bye, Ready, Refused, Reported
from prefect_cachewatch.engine.spec import make_spec
from prefect_cachewatch.errors import CommandError, GuardError, InputError

# No command of ours is there to get USR1 and USR2.
_ENDING = ENDING | {signal.SIGUSR1, signal.SIGUSR2}


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
    quiet = options["quiet"]
    progress = ProgressLine(options["shown"], quiet, options["verbose"], each=options["verbose"])
    # What it is named and how its command line reads is known once the engine has found the process.
    job = CacheJob(
        name="cache", command=["?"], cache_dirs=attach.cache_dirs, ignore=attach.ignore, allow_empty=attach.allow_empty
    )
    outputs = Outputs(report=options["report"], bundle=not options["no_bundle"]).absolute()
    spec = make_spec(front="watch", attach=attach, job=job, stall=stall, stop=stop, outputs=outputs)
    engine = EngineClient(spec, attach.name or "watch")
    relay = SignalRelay(
        lambda: (),
        lambda number, at_once: engine.cancel(signal.Signals(number).name, number, at_once=at_once),
        ending=_ENDING,
        has_command=False,
    )
    relay.begin()
    report: Mapping[str, Any] | None = None
    try:
        for event, at in engine.events():
            progress.take(event, at)
            match event:
                case Ready() if not quiet and (note := poll_note(stall)) is not None:
                    say(note)
                case Reported(final=final):
                    report = event.report
                    progress.say_report(report, final=final)
                case Refused(message=message, status=status):
                    raise CommandError(message, exit_code=status)
                case Bye(status=status, message=message):
                    if report is None:
                        say(message)
                    elif options["as_json"]:
                        print_report(report)
                    return status
    finally:
        engine.close()
        progress.close()
        relay.close(last=True)
    raise GuardError(f"the watch has died; process {attach.pid} was left alone")


def _attach_from(options: dict[str, Any]) -> AttachJob:
    pid = options["pid"]
    if pid is None:
        raise InputError("say whom to watch: a process, with --pid PID (see ps -e)")
    if pid < 1:
        raise InputError(f"--pid {pid} is no process id: give the generator's, a number from 2 on (see ps -e)")
    if not options["cache_dirs"]:
        raise InputError(f"no cache directory given: say which one process {pid} writes to with --cache-dir DIR")
    return _FIELDS.build(options, cache_dirs=make_absolute(options["cache_dirs"]), ignore=ignored(options))
