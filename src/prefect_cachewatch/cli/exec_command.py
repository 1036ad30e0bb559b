"""The options of `cachewatch exec`: read, checked, and passed to `cli.exec`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from prefect_cachewatch.cli.exec import run_exec
from prefect_cachewatch.cli.options.container import environment_from
from prefect_cachewatch.cli.options.guard import COMMAND, guard_sections, poll_note, run_from
from prefect_cachewatch.cli.options.ready import is_ready_given
from prefect_cachewatch.cli.options.sections import SectionedCommand, verbose_option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect_cachewatch.config.ready import ReadyWhen


def _recognize(options: dict[str, Any]) -> str | None:
    """Find the profile that knows the command, unless one is given; returns what to say about it."""
    if options["profile"] is not None or not options["command"]:
        return None
    from prefect_cachewatch.config.profiles.known import recognize_profile  # noqa: PLC0415 - only without --cache-dir

    env = {**os.environ, **environment_from(options["env"], inherit=False)}
    try:
        found = recognize_profile(options["command"], env, os.getcwd())
    except InputError:
        if not is_ready_given():
            raise
        return None  # when it is ready was said, so the profile is not asked
    if found is None:
        return None
    name, settings = found
    options["found_profile"] = settings
    dirs = ", ".join(for_terminal(str(path)) for path in settings.cache_dirs)
    said = f"profile {name}, by the command: watching {dirs}"
    if settings.ready is not None and not is_ready_given():
        then = "stopped" if options["then"] == "stop" else "left running (--then stop ends it)"
        said += f"; done when {_describe_ready(settings.ready)}, and then {then}"
    return f"{said}; --profile none turns this off"


def _describe_ready(ready: ReadyWhen) -> str:
    if ready.kind == "http":
        return f"{ready.url} answers 200"
    return f"{ready.host}:{ready.port} takes connections" if ready.kind == "tcp" else "it is ready"


_VERBOSE = verbose_option("Tell each signal and step. The growth is shown in lines then.")


@click.command(
    "exec",
    cls=SectionedCommand,
    params=[COMMAND],
    sections=guard_sections(output=[_VERBOSE], common="--on-stall"),
    needed={"--cache-dir": "required, unless a profile knows the command"},
    examples=[
        "cachewatch exec --cache-dir /mnt/cache --stall-after 10m -- python3 gen.py",
        "cachewatch exec --cache-dir /mnt/cache --ready tcp=8000 -- vllm serve MODEL",
    ],
    options_metavar="[--cache-dir DIR] [OPTIONS] --",
    context_settings={"allow_interspersed_args": False},
    epilog=(
    "Exit status: the command's own; 124 if it was stopped; 125 bad usage or cachewatch's own failure; 126 not executable; "
    "127 not found; 128+N if signal N ended it; 1 if the cache was empty before and is after exit code 0. With --ready: 0 when it is ready (and, unless "
    "--then stop, runs on); 1 if it ended with exit code 0 before it was."
),
)  # fmt: skip
def command(**options: Any) -> int:
    """Run COMMAND and watch its cache directories grow; stop its whole process tree on a stall."""
    said = _recognize(options) if not (options["cache_dirs"] or options["image"]) else None
    run = run_from(options)
    # Called by other code, this process goes on, with the signals that it had.
    last = bool(click.get_current_context().find_root().obj)
    return run_exec(run, options, "; ".join(filter(None, (said, poll_note(run["stall"])))), last=last)
