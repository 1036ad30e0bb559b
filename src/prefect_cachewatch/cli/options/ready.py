"""Options for a generator that is a server: when it is ready, and what is done then."""

from __future__ import annotations

from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from prefect_cachewatch.cli.options.fields import Fields, explain
from prefect_cachewatch.cli.options.sections import Section, option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob, ReadyOnExit, ReadyWhen, StallPolicy
from prefect_cachewatch.errors import InputError

_FORMS = "write exit, http=URL, tcp=HOST:PORT, file=PATH or log=PATTERN"
_EXAMPLES = {
    "http": "http=http://127.0.0.1:8000/health",
    "tcp": "tcp=127.0.0.1:8000",
    "file": "file=TT_METAL_CACHE_COMPLETED",
    "log": "log='startup complete'",
}
_THEN = option(
    "--then",
    type=click.Choice(["leave-running", "stop"]),
    help="Once ready, let it go on or stop it; default it goes on without its guard until cachewatch stop.",
)
WARMUP = Fields(StallPolicy, "warmup_within_s")
_READY = option(
    "--ready",
    default="exit",
    show_default=True,
    metavar="WHEN",
    help="When the job is done: exit, or for a server http=URL, tcp=HOST:PORT, file=PATH, log=PATTERN.",
)
# Options that apply to a server only.
_SERVER_ONLY = [_THEN, *WARMUP.options()]
READY_SECTION = Section("Server", "--ready --then", [_READY, *_SERVER_ONLY])


def with_ready(job: CacheJob, options: dict[str, Any]) -> CacheJob:
    """Give a job the readiness of the parsed options.

    Args:
        job: the job, made from the other options.
        options: those of `READY_SECTION`.

    Returns:
        The job.

    Raises:
        InputError: an option is malformed, or is given without the option that it belongs to.
    """
    if not is_ready_given() and job.ready.kind != "exit":  # the readiness of a profile
        return job.model_copy(update={"ready": job.ready.model_copy(update=_then(options))})
    return job.model_copy(update={"ready": _ready_from(options)})


def is_ready_given() -> bool:
    """Say whether the user has said when the job is ready, on the command line, in a file or in the environment."""
    context = click.get_current_context(silent=True)
    return context is None or context.get_parameter_source("ready") is not click.core.ParameterSource.DEFAULT


def _ready_from(options: dict[str, Any]) -> Any:
    text: str = options["ready"]
    kind, equals, value = text.partition("=")
    given = [each.opts[0] for each in _SERVER_ONLY if options[str(each.name)] is not None]
    if kind == "exit" and not equals:
        if given:
            raise InputError(f"{given[0]} is for a server: say when it is ready, as in --ready {_EXAMPLES['http']}")
        return ReadyOnExit()
    if kind not in _EXAMPLES:
        raise InputError(f"--ready {for_terminal(text, 60)!r} is none of the ways to be ready: {_FORMS}")
    if not value:
        raise InputError(
            f"--ready {for_terminal(text, 60)!r} does not say what to wait for: write it like --ready {_EXAMPLES[kind]}"
        )
    fields: dict[str, Any] = {"kind": kind}
    if kind == "http":
        fields["url"] = value
    elif kind == "tcp":
        fields |= _address(value)
    else:
        fields["path" if kind == "file" else "pattern"] = value
    try:
        return TypeAdapter[Any](ReadyWhen).validate_python(fields | _then(options))
    except ValidationError as error:
        raise InputError(explain(error, f"--ready {kind}")) from None


def _then(options: dict[str, Any]) -> dict[str, Any]:
    return {} if options["then"] is None else {"then": options["then"].replace("-", "_")}


def _address(value: str) -> dict[str, Any]:
    host, colon, port = value.rpartition(":")
    if not port.isdecimal() or (colon and not host):
        raise InputError(
            f"--ready tcp={for_terminal(value, 60)} is not HOST:PORT: write it like --ready {_EXAMPLES['tcp']}"
        )
    return {"port": int(port[:6])} | ({"host": host.strip("[]")} if host else {})
