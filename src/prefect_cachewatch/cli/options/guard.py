"""Options that `exec` and `generate` share, and how they become the engine's models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem
from pydantic import BaseModel, ValidationError

from prefect_cachewatch.cli.options.container import CONTAINER_SECTION, container_from, environment_from
from prefect_cachewatch.cli.options.profile_choice import PROFILE_OPTIONS, profile_from
from prefect_cachewatch.cli.options.ready import READY_SECTION
from prefect_cachewatch.cli.options.sections import Section, option
from prefect_cachewatch.cli.options.units import DURATION, SIZE
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import DEFAULT_IGNORE, CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.config.container import VOLUME_PREFIX
from prefect_cachewatch.errors import CommandError, InputError
from prefect_cachewatch.watching.stall import effective_poll_s

__all__ = [
    "ALLOW_EMPTY",
    "CACHE_DIR",
    "COMMAND",
    "DURATION",
    "REPORTING",
    "RULE_OPTIONS",
    "SHARED_OUTPUT",
    "SIZE",
    "STALL_SECTION",
    "build_model",
    "guard_sections",
    "job_from",
    "make_absolute",
    "poll_note",
    "stall_from",
    "stop_from",
]

M = TypeVar("M", bound=BaseModel)

# The field of a model to the option that sets it, for messages.
_OPTION_OF = {
    "cache_dirs": "--cache-dir",
    "pid": "--pid",
    "container": "--container",
    "engine": "--engine",
    "start_ticks": "--start-ticks",
    "env": "--env",
    "cwd": "--cwd",
    "ignore": "--ignore",
    "name": "--name",
    "expected_bytes": "--expect",
    "stall_after_s": "--stall-after",
    "first_write_within_s": "--first-write-within",
    "warmup_within_s": "--warmup-within",
    "poll_s": "--poll",
    "min_growth_bytes": "--min-growth",
    "churn_after_s": "--churn-after",
    "max_duration_s": "--max-duration",
    "attribute_cache_s": "--attribute-cache",
    "grace_s": "--grace",
    "attempts": "--attempts",
    "backoff_s": "--backoff",
    "command": "COMMAND",
    "cache_dir_env": "--cache-dir-env",
    "cache_key": "--key",
    "check_command": "--check",
    "expected_files": "--expect-file",
    "min_bytes": "--min-bytes",
    "store": "--store",
}


RULE_OPTIONS = [
    option("--stall-after", type=DURATION, default="5m", show_default=True, help="No growth for this long is a stall."),
    option(
        "--first-write-within",
        type=DURATION,
        default="20m",
        show_default=True,
        help="The first byte must come within this.",
    ),
    option("--poll", type=DURATION, default="15s", show_default=True, help="Time between two measurements."),
    option("--min-growth", type=SIZE, default="4KiB", show_default=True, help="Less growth than this is no progress."),
    option(
        "--progress",
        type=click.Choice(["bytes", "any"]),
        default="bytes",
        show_default=True,
        help="any: changed modification times count too.",
    ),
    option("--churn-after", type=DURATION, help="Writing without keeping anything for this long; 4 x --stall-after."),
    option("--max-duration", type=DURATION, help="Time limit of an attempt, whatever it writes."),
    option(
        "--attribute-cache",
        type=DURATION,
        help="Network file system: sizes may be this old; windows are longer by it.",
    ),
    option("--adaptive", is_flag=True, help="Lengthen the window to 3 x the longest pause, at most 4 x."),
]


_RULE_FIELDS = {
    "stall_after_s": "stall_after",
    "first_write_within_s": "first_write_within",
    "poll_s": "poll",
    "min_growth_bytes": "min_growth",
    "progress": "progress",
    "churn_after_s": "churn_after",
    "max_duration_s": "max_duration",
    "attribute_cache_s": "attribute_cache",
}


_NAMES_OF_FILES = [
    option("--ignore", multiple=True, metavar="GLOB", help="Files that never count; repeatable."),
    option("--no-default-ignores", is_flag=True, help=f"Count {', '.join(DEFAULT_IGNORE)} too."),
    option("--grace", type=DURATION, default="10s", show_default=True, help="Between SIGTERM and SIGKILL."),
]


def _complete_directory(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _complete_command(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


COMMAND = click.Argument(
    ["command"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARG]...", shell_complete=_complete_command
)
CACHE_DIR = option(
    "--cache-dir",
    "cache_dirs",
    multiple=True,
    metavar="DIR",
    shell_complete=_complete_directory,
    help="Directory that must grow; repeatable.",
)
ALLOW_EMPTY = option(
    "--allow-empty", is_flag=True, help="A cache that is empty before and after is a success, not a failure."
)
STALL_SECTION = Section(
    "When it is a stall",
    "--stall-after --first-write-within --max-duration --grace",
    [*RULE_OPTIONS, *_NAMES_OF_FILES],
    shared="*",
)
REPORTING = [
    option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON."),
    option(
        "--bundle-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Where the post-mortem of a stall goes; default below ~/.local/state.",
    ),
    option("--no-bundle", is_flag=True, help="Write no post-mortem bundle."),
    option("--quiet", is_flag=True, help="Say nothing but what went wrong."),
]
SHARED_OUTPUT = "--quiet --verbose --bundle-dir --no-bundle --metrics-linger --api-patience --strict-secrets"
_BASICS = [
    CACHE_DIR,
    *PROFILE_OPTIONS,
    ALLOW_EMPTY,
    option("--no-create", is_flag=True, help="Refuse a cache directory that does not exist."),
    option(
        "--wait-for",
        type=click.Choice(["tree", "leader"]),
        default="tree",
        show_default=True,
        help="Whose end is the end: the command with all its descendants, or itself alone.",
    ),
    option("--expect", "expected_bytes", type=SIZE, help="Size of the finished cache, for a check of free space."),
    option("--env", multiple=True, metavar="NAME=VALUE", help="Variable for the generator; repeatable."),
    option("--cwd", type=click.Path(path_type=Path), metavar="DIR", help="Working directory of the generator."),
]
_OUTPUT = [
    *REPORTING,
    option(
        "--record",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Record the growth as a trace for cachewatch replay; into a directory under a name of its own.",
    ),
    option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Write the generator's output, capped."),
    option(
        "--metrics",
        metavar="WHERE",
        help="Prometheus metrics; HOST:PORT, :PORT on loopback, a range :9464-9479, or file:DIR for node-exporter.",
    ),
    option(
        "--metrics-linger",
        type=DURATION,
        default="1m",
        show_default=True,
        help="How long the endpoint stays at the end for whoever has scraped it, to see the end.",
    ),
]


def guard_sections(
    basics: Sequence[click.Option] = (), output: Sequence[click.Option] = (), further: Sequence[Section] = ()
) -> list[Section]:
    """List the options of the guarded generation.

    Args:
        basics: further ones of the command's own.
        output: likewise.
        further: sections of its own.
    """
    return [
        Section("Basics", "--name --cache-dir --profile --env", [*basics, *_BASICS]),
        STALL_SECTION,
        *further,
        Section("Output", "--report --log --metrics --quiet", [*_OUTPUT, *output], SHARED_OUTPUT),
        READY_SECTION,
        CONTAINER_SECTION,
    ]


def build_model(model: type[M], **values: Any) -> M:
    """Make a model, its validation errors turned into one sentence that names the option.

    Args:
        model: the model.
        values: its fields.

    Returns:
        The model.

    Raises:
        InputError: a field is not valid.
    """
    try:
        return model(**values)
    except ValidationError as error:
        raise InputError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """Say the first of a model's validation errors in one sentence.

    Args:
        error: from pydantic.

    Returns:
        The option or field, what is wrong, and what was given.
    """
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    where = _OPTION_OF.get(field, ".".join(map(str, first["loc"])))
    what = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # of the fields together
        return what
    limits = first.get("ctx", {})
    if field.endswith("_s") and isinstance(first["input"], int | float):
        for word, bound in (("at least", limits.get("ge")), ("at most", limits.get("le"))):
            if bound is not None:
                return f"{where} {format_duration(float(first['input']))} is out of range: give {word} {format_duration(bound)}"
    if first["type"].startswith("string_"):
        return f"{where}: {what[0].lower()}{what[1:]}"
    shown = for_terminal(repr(first["input"]), 80)
    return f"{where}: {what[0].lower()}{what[1:]}" + ("" if shown[1:-1] in what else f" (given: {shown})")


def job_from(name: str | None, options: dict[str, Any], published: bool = False) -> CacheJob:
    """Make the job from the parsed options.

    Args:
        name: of the job; default the last part of the first cache directory.
        options: of `guard_options`.
        published: whether it goes into a store, which gives it a directory of its own.

    Returns:
        The job, relative paths made absolute.

    Raises:
        CommandError: the command's name is empty.
        InputError: something is missing or malformed.
    """
    profile, container = profile_from(options), container_from(options)
    command = list(options["command"]) or list(profile.command if profile else ())
    if not command and container is None:
        raise InputError("no command given: write it after --, as in cachewatch exec --cache-dir DIR -- COMMAND")
    if command and not command[0] and container is None:
        raise CommandError("the command's name is empty: name the program to run", exit_code=127)
    if not options["cache_dirs"] and profile is None and not published:
        raise InputError("no cache directory given: say which directory must grow with --cache-dir DIR")
    env = environment_from(options["env"], inherit=container is not None)
    named = options["cache_dirs"]
    dirs = [path if path.startswith(VOLUME_PREFIX) else make_absolute([path])[0] for path in named]
    ignore = list(options["ignore"]) + ([] if options["no_default_ignores"] else list(DEFAULT_IGNORE))
    further: dict[str, Any] = {}
    if profile is not None:
        dirs = dirs or [str(path) for path in profile.cache_dirs]
        env = {**profile.env, **env}
        ignore += [glob for glob in profile.ignore if glob not in DEFAULT_IGNORE]
        name = name or (None if options["cache_dirs"] else profile.name)
        further = {"ready": profile.ready, "markers": profile.markers}
    return build_model(
        CacheJob,
        **{field: value for field, value in further.items() if value is not None},
        name=name or (for_terminal(os.path.basename(dirs[0]), 200) if dirs else "") or "cache",
        command=command,
        **({"cache_dirs": dirs} if dirs else {}),
        env=env,
        cwd=options["cwd"].absolute() if options["cwd"] else None,
        expected_bytes=options["expected_bytes"],
        ignore=ignore,
        wait_for=options["wait_for"],
        allow_empty=options["allow_empty"],
        container=container,
    )


def make_absolute(paths: Sequence[str]) -> list[str]:
    """Make the paths of `--cache-dir` absolute, `~` expanded.

    Args:
        paths: as given.

    Returns:
        The paths.

    Raises:
        InputError: one is empty.
    """
    if not all(paths):
        raise InputError("--cache-dir is empty: name the directory that must grow")
    return [os.path.abspath(os.path.expanduser(path)) for path in paths]


def stall_from(options: dict[str, Any]) -> StallPolicy:
    """Make the stall policy from the parsed options, those of a profile below them; raises InputError."""
    written = {field: options[option] for field, option in _RULE_FIELDS.items()}
    if (within := options.get("warmup_within")) is not None:
        written["warmup_within_s"] = within
    profile = profile_from(options)
    if profile is not None:
        context = click.get_current_context()
        given = {field for field, option in _RULE_FIELDS.items() if _is_given(context, option)}
        given |= {"warmup_within_s"} & written.keys()
        written |= {field: value for field, value in profile.stall.items() if field not in given}
    return build_model(StallPolicy, **written, adaptive="extend" if options["adaptive"] else "off")


def _is_given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT


def stop_from(options: dict[str, Any]) -> StopPolicy:
    """Make the stop policy from the parsed options; raises InputError."""
    return build_model(StopPolicy, grace_s=options["grace"])


def poll_note(stall: StallPolicy, asked: bool) -> str | None:
    """Say that the poll was shortened, if it was asked for and does not fit twice into the shortest window."""
    poll_s = effective_poll_s(stall)
    if poll_s >= stall.poll_s or not asked:
        return None
    return (
        f"the poll of {format_duration(stall.poll_s)} does not fit twice into the shortest window; "
        f"measuring every {format_duration(poll_s)} instead"
    )
