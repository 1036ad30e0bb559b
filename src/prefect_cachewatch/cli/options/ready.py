"""Options for a generator that is a server: when it is ready, and what is done then."""

from __future__ import annotations

from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from prefect_cachewatch.cli.options.fields import Fields, explain
from prefect_cachewatch.cli.options.sections import Section, option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob, ReadyOnExit, ReadyOnHttp, ReadyWhen, StallPolicy
from prefect_cachewatch.errors import InputError

_FORMS = "write exit, http=URL, tcp=HOST:PORT, file=PATH or log=PATTERN"
_EXAMPLES = {
    "http": "http=http://127.0.0.1:8000/health",
    "tcp": "tcp=127.0.0.1:8000",
    "file": "file=TT_METAL_CACHE_COMPLETED",
    "log": "log='startup complete'",
}
_HTTP = Fields(
    ReadyOnHttp,
    "status --ready-status STATUS, body_pattern --ready-body PATTERN, check_every_s --ready-every, then",
    then={
        "type": click.Choice(["leave-running", "stop"]),
        "help": "Once ready, let it go on or stop it; default it goes on without its guard until cachewatch stop.",
    },
)
WARMUP = Fields(StallPolicy, "warmup_within_s")
_BEGINS = option(
    "--warmup-begins",
    metavar="MARK",
    help="What begins the warm-up; log=PATTERN or file=PATH, default by what has been written.",
)
_READY = option(
    "--ready",
    default="exit",
    show_default=True,
    metavar="WHEN",
    help="When the job is done: exit, or for a server http=URL, tcp=HOST:PORT, file=PATH, log=PATTERN.",
)
# Options that apply to a server only.
_SERVER_ONLY = [*_HTTP.options(), *WARMUP.options(), _BEGINS]
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
        return job.model_copy(update={"ready": _adjusted(job.ready, options)})
    return job.model_copy(update={"ready": _ready_from(options)})


def is_ready_given() -> bool:
    """Say whether the user has said when the job is ready, on the command line, in a file or in the environment."""
    context = click.get_current_context(silent=True)
    return context is None or context.get_parameter_source("ready") is not click.core.ParameterSource.DEFAULT


def _adjusted(ready: Any, options: dict[str, Any]) -> Any:
    given = [each.opts[0] for each in _HTTP.options("check_every_s", "then") if options[str(each.name)]]
    if given and ready.kind != "http":
        raise InputError(f"{given[0]} belongs to --ready http=URL, and the profile's is {ready.kind}: leave it out")
    try:
        return type(ready)(**{**ready.model_dump(), **_further(options)})
    except ValidationError as error:
        raise InputError(explain(error, f"--ready {ready.kind}")) from None


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
    if kind != "http" and (wrong := next((name for name in ("--ready-status", "--ready-body") if name in given), None)):
        raise InputError(f"{wrong} belongs to --ready http=URL, and this is --ready {kind}=...: leave it out")
    try:
        return TypeAdapter[Any](ReadyWhen).validate_python(fields | _further(options))
    except ValidationError as error:
        raise InputError(explain(error, f"--ready {kind}")) from None


def _further(options: dict[str, Any]) -> dict[str, Any]:
    fields = _HTTP.given(options)
    if "check_every_s" in fields:
        fields["timeout_s"] = min(5.0, max(0.5, fields["check_every_s"]))
    if "then" in fields:
        fields["then"] = fields["then"].replace("-", "_")
    return fields if options["warmup_begins"] is None else fields | _mark(options["warmup_begins"])


def _address(value: str) -> dict[str, Any]:
    host, colon, port = value.rpartition(":")
    if not port.isdecimal() or (colon and not host):
        raise InputError(
            f"--ready tcp={for_terminal(value, 60)} is not HOST:PORT: write it like --ready {_EXAMPLES['tcp']}"
        )
    return {"port": int(port[:6])} | ({"host": host.strip("[]")} if host else {})


def _mark(text: str) -> dict[str, Any]:
    kind, _, value = text.partition("=")
    if kind not in ("log", "file") or not value:
        raise InputError(
            f"--warmup-begins {for_terminal(text, 60)!r} is neither log=PATTERN nor file=PATH: write it like "
            "--warmup-begins log='model loaded'"
        )
    return {f"warmup_begins_{kind}": value}
