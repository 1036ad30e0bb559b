"""The options of `cachewatch exec`: read, checked, and passed to `cli.exec`."""

from __future__ import annotations

import signal
from typing import Any

import click

from prefect_cachewatch.cli.apart import ExecSettings
from prefect_cachewatch.cli.options.guard import (
    COMMAND,
    guard_sections,
    job_from,
    metrics_from,
    outputs_from,
    poll_note,
    stall_from,
    stop_from,
)
from prefect_cachewatch.cli.options.ready import with_ready
from prefect_cachewatch.cli.options.sections import SectionedCommand, option
from prefect_cachewatch.cli.signals import RELAYED
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

__all__ = ["command"]


def _rewrite_from(pair: str) -> tuple[int, int]:
    came, _, then = pair.partition(":")
    try:
        return _number_of(came), 0 if then == "0" else _number_of(then)
    except (KeyError, ValueError):
        raise InputError(
            f"--rewrite {for_terminal(pair)!r} is not SIGNAL:SIGNAL: two names or numbers of signals that exec acts on, such as "
            "TERM:INT, or :0 to ignore the first"
        ) from None


def _number_of(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    number = signal.Signals(int(text)) if text.isdecimal() else signal.Signals[f"SIG{name}"]
    if number not in RELAYED:
        raise ValueError(text)
    return int(number)


_PROCESS = [
    option(
        "--foreground",
        is_flag=True,
        help="Let the command stay in this session and process group: it can read the terminal, and Ctrl-C reaches both.",
    ),
    option(
        "--rewrite",
        "-r",
        metavar="SIGNAL:SIGNAL",
        multiple=True,
        callback=lambda context, parameter, pairs: dict(map(_rewrite_from, pairs)),
        help="Act on the first as if the second had come, such as TERM:INT; :0 ignores it. Repeatable.",
    ),
]
_VERBOSE = option("--verbose", is_flag=True, help="Say what is done about each signal, and each step of the guard.")


@click.command(
    "exec",
    cls=SectionedCommand,
    params=[COMMAND],
    sections=guard_sections(basics=_PROCESS, output=[_VERBOSE]),
    needed={"--cache-dir": "required, or --profile"},
    examples=[
        "cachewatch exec --cache-dir /mnt/cache --stall-after 10m -- python3 gen.py",
        "cachewatch exec --cache-dir /mnt/cache --ready tcp=8000 -- vllm serve MODEL",
    ],
    options_metavar="--cache-dir DIR [OPTIONS] --",
    context_settings={"allow_interspersed_args": False},
    epilog=(
    "Exit status: the command's own; 124 if it was stopped; 125 bad usage or cachewatch's own failure; 126 not executable; "
    "127 not found; 128+N if signal N ended it; 1 if the cache was empty before and is after exit code 0. With --ready: 0 when it is ready (and, unless "
    "--then stop, runs on); 1 if it ended with exit code 0 before it was."
),
)  # fmt: skip
def command(foreground: bool, rewrite: dict[int, int], verbose: bool, **options: Any) -> int:
    """Run COMMAND and watch its cache directories grow; stop its whole process tree on a stall."""
    context = click.get_current_context()
    job, stall, stop = with_ready(job_from(None, options), options), stall_from(options), stop_from(options)
    if foreground and job.container is not None:
        raise InputError("--foreground is for a command on this host: a container has a session of its own")
    if foreground and job.ready.kind != "exit":
        raise InputError(
            "--foreground and --ready exclude each other: a server does not stay in the terminal's session"
        )
    settings = ExecSettings(
        job=job,
        stall=stall,
        stop=stop,
        outputs=outputs_from(options),
        create=not options["no_create"],
        quiet=options["quiet"],
        foreground=foreground,
        verbose=verbose,
        rewrite=rewrite,
        metrics=metrics_from(options),
        note=poll_note(stall, context.get_parameter_source("poll_s") is not click.core.ParameterSource.DEFAULT),
    )
    if context.obj is not None:  # another process runs it, without the libraries loaded to read it
        status: int = context.obj(settings)
        return status
    from prefect_cachewatch.cli.exec import run_exec  # noqa: PLC0415 - the other process has it already

    return run_exec(settings)
