"""Options that `exec` and `generate` share, and the engine's models made from them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from prefect_cachewatch.cli.options.container import CONTAINER_SECTION, container_from, environment_from
from prefect_cachewatch.cli.options.fields import Fields, QuantityType, build_model
from prefect_cachewatch.cli.options.profile_choice import PROFILE_OPTIONS, profile_from
from prefect_cachewatch.cli.options.ready import READY_SECTION, WARMUP, with_ready
from prefect_cachewatch.cli.options.sections import Section, option
from prefect_cachewatch.common.aside import Aside, look_ahead
from prefect_cachewatch.common.secrets import hide, secret_values
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import DEFAULT_IGNORE, CacheJob, Outputs, StallPolicy, StopPolicy
from prefect_cachewatch.config.container import VOLUME_PREFIX
from prefect_cachewatch.config.policies import WINDOW, split_learned
from prefect_cachewatch.errors import CommandError, InputError
from prefect_cachewatch.metrics.settings import Metrics

RULES = Fields(
    StallPolicy,
    "stall_after_s, first_write_within_s, poll_s, progress --progress-by, max_duration_s",
    stall_after_s={
        "type": QuantityType(WINDOW),
        "help": "No growth for this long is a stall; counted once writing has begun. learned, or learned:10m: learned from "
        "earlier runs, never longer than this.  [default: 5m]",
    },
)


class _Progress(click.Choice):  # type: ignore[type-arg]  # generic in click 8.2 and later only
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("any", "bytes"):
            self.fail(f"{value!r} says what counts as progress: that is --progress-by {value}", param, ctx)
        return super().convert(value, param, ctx)


class _File(click.Path):
    """A file to write; a name that ends with / is of a directory, and is not taken for a file's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).endswith("/"):
            shown = f"{for_terminal(str(value), 4096)!r} names a directory"
            if param is None or "--record" not in param.opts:
                self.fail(f"{shown}: name a file in it", param, ctx)
            with contextlib.closing(Aside.fork()) as files:
                if not look_ahead(files, f"recording {value}", os.path.isdir, os.path.abspath(value)):
                    self.fail(f"{shown} that does not exist: create it first", param, ctx)
        return super().convert(value, param, ctx)


_JOB = Fields(
    CacheJob,
    "cache_dirs --cache-dir DIR, allow_empty, wait_for, expected_bytes --expect, ignore GLOB, on_stall, "
    "progress_log PATTERN",
)
_STOP = Fields(StopPolicy, "grace_s")
COMMAND = click.Argument(
    ["command"],
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="COMMAND [ARG]...",
    shell_complete=lambda context, parameter, incomplete: [CompletionItem(incomplete, type="file")],
)
_FILE: dict[str, Any] = {"type": _File(path_type=Path), "metavar": "FILE"}
REPORTING = [
    option("--report", **_FILE, help="Write the report as JSON."),
    option("--json", "as_json", is_flag=True, help="Print the report as JSON, the last line of standard output."),
    option("--no-bundle", is_flag=True, help="Write no post-mortem bundle."),
    option("-q", "--quiet", is_flag=True, help="Say nothing but what went wrong."),
    option(
        "--progress",
        "shown",
        type=_Progress(["live", "plain", "json", "none"]),
        help="How to show the growth on standard error: a live view, a line a minute (with --expect, for each tenth if that is rarer), the events as JSON lines, or "
        "nothing; default live in a terminal, else plain; none with --quiet.",
    ),
]
_BASICS = [
    *_JOB.options("ignore", "on_stall", "progress_log"),
    *PROFILE_OPTIONS,
    option("--env", multiple=True, metavar="NAME=VALUE", help="Variable for the generator; repeatable."),
]
_OUTPUT = [
    *REPORTING,
    option(
        "--record",
        **_FILE,
        help="Record the run's events for cachewatch replay; into a directory under a name of its own.",
    ),
    option("--log", **_FILE, help="Write the generator's output, capped."),
    option(
        "--metrics",
        metavar="WHERE",
        help="Prometheus metrics; HOST:PORT, :PORT on loopback, or file:DIR for node-exporter.",
    ),
]


def stall_section(*of_job: click.Option, common: str = "") -> Section:
    """List the options that say when silence is a stall; those given here belong to the job."""
    common = f"--stall-after --first-write-within --max-duration --grace {common}"
    return Section(
        "When it is a stall",
        common,
        [*RULES.options(), *of_job, *_STOP.options()],
    )


def guard_sections(
    basics: Sequence[click.Option] = (),
    output: Sequence[click.Option] = (),
    further: Sequence[Section] = (),
    common: str = "",
) -> list[Section]:
    """List the options of the guarded generation.

    Args:
        basics: further options of the command.
        output: further output options of the command.
        further: further sections of the command.
        common: options of the stall that `--help` shows as well.
    """
    return [
        Section("Basics", "--name --cache-dir --profile --env", [*basics, *_BASICS]),
        stall_section(_JOB["on_stall"], _JOB["progress_log"], _JOB["ignore"], common=common),
        *further,
        Section("Output", "--report --log --metrics --quiet --verbose", [*_OUTPUT, *output]),
        READY_SECTION,
        CONTAINER_SECTION,
    ]


def job_from(name: str | None, options: dict[str, Any], published: bool = False) -> CacheJob:
    """Make the job from the parsed options.

    Args:
        name: name of the job; default the last part of the first cache directory.
        options: those of `guard_sections`.
        published: whether it goes into a store, which gives it a directory of its own.

    Returns:
        The job; relative paths are made absolute.

    Raises:
        CommandError: the command's name is empty.
        InputError: an option is missing or malformed.
    """
    profile, container = profile_from(options), container_from(options)
    command = list(options["command"]) or list(profile.command if profile else ())
    if not command and container is None:
        raise InputError("no command given: write it after --, as in cachewatch exec --cache-dir DIR -- COMMAND")
    if command and not command[0] and container is None:
        raise CommandError("the command's name is empty: name the program to run", exit_code=127)
    if not options["cache_dirs"] and not (published or (profile is not None and profile.cache_dirs)):
        raise InputError(
            "no cache directory given: say which directory must grow with --cache-dir DIR, or name the generator's --profile "
            "(cachewatch profiles lists them)"
        )
    env = environment_from(options["env"], inherit=container is not None)
    given, named = _JOB.given(options), options["cache_dirs"]
    if named:
        given["cache_dirs"] = [path if path.startswith(VOLUME_PREFIX) else make_absolute([path])[0] for path in named]
    elif profile is not None:
        name = name or profile.name
    job = build_model(CacheJob, **{
        **given,
        "name": name or _name_of((given.get("cache_dirs") or command[:1] or [""])[0], env),
        "command": command,
        "env": env,
        "ignore": ignored(options, profile.ignore if profile is not None else ()),
        "container": container,
    })  # fmt: skip
    return job if profile is None else profile.under_job(job)


def _name_of(path: str, env: Mapping[str, str]) -> str:
    """Name a job after a path; the name is in logs, states and file names, so a secret in the path is not in it."""
    return for_terminal(hide(os.path.basename(path), secret_values({**os.environ, **env})), 200) or "cache"


def ignored(options: dict[str, Any], further: Sequence[str] = ()) -> list[str]:
    """List the globs that never count: those of the options, the usual ones, and the profile's."""
    return [*options["ignore"], *DEFAULT_IGNORE, *(glob for glob in further if glob not in DEFAULT_IGNORE)]


def make_absolute(paths: Sequence[str]) -> list[str]:
    """Make the paths of `--cache-dir` absolute, `~` expanded.

    Args:
        paths: as given.

    Returns:
        The absolute paths.

    Raises:
        InputError: one is empty.
    """
    if not all(paths):
        raise InputError("--cache-dir is empty: name the directory that must grow")
    return [os.path.abspath(os.path.expanduser(path)) for path in paths]


def stall_from(options: dict[str, Any]) -> StallPolicy:
    """Make the stall policy from the parsed options, with the profile's values below them; raises InputError."""
    profile = profile_from(options)
    below = profile.stall if profile is not None else {}
    return build_model(StallPolicy, **{**below, **WARMUP.given(options), **split_learned(RULES.given(options))})


def stop_from(options: dict[str, Any]) -> StopPolicy:
    """Make the stop policy from the parsed options, with the profile's values below them; raises InputError."""
    profile = profile_from(options)
    return build_model(StopPolicy, **{**(profile.stop if profile is not None else {}), **_STOP.given(options)})


def run_from(options: dict[str, Any], name: str | None = None, published: bool = False) -> dict[str, Any]:
    """Make what a run is made of from the parsed options of `guard_sections`; relative paths are made absolute.

    Args:
        options: as parsed.
        name: as for `job_from`.
        published: as there.

    Returns:
        Job, stall, stop, outputs and metrics by their names.

    Raises:
        CommandError: as `job_from`.
        InputError: an option is missing or malformed.
    """
    named = {name: options[name] for name in ("report", "log", "record")}
    return {
        "job": with_ready(job_from(name, options, published), options),
        "stall": stall_from(options),
        "stop": stop_from(options),
        "outputs": Outputs(bundle=not options["no_bundle"], **named).absolute(),
        "metrics": _metrics_from(options["metrics"]),
    }


def _metrics_from(where: str | None) -> Metrics | None:
    if where is None:
        return None
    if where.startswith("file:") and where != "file:" and not where.startswith("file:///"):
        where = f"file:{make_absolute([where.removeprefix('file:')])[0]}"
    return build_model(Metrics, to=where)


def poll_note(stall: StallPolicy) -> str | None:
    """Say that the poll was shortened, if the user set it and two polls do not fit into the shortest window."""
    if click.get_current_context().get_parameter_source("poll_s") is click.core.ParameterSource.DEFAULT:
        return None
    from prefect_cachewatch.watching.stall import effective_poll_s  # noqa: PLC0415 - seldom

    poll_s = effective_poll_s(stall)
    if poll_s >= stall.poll_s:
        return None
    return (
        f"the poll of {format_duration(stall.poll_s)} does not fit twice into the shortest window; "
        f"measuring every {format_duration(poll_s)} instead"
    )
