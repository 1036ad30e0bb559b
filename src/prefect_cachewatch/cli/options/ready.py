"""Options for a generator that is a server: when it is ready, and what then."""

from __future__ import annotations

from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from prefect_cachewatch.cli.options.sections import Section, option
from prefect_cachewatch.cli.options.units import DURATION
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import CacheJob, ReadyOnExit, ReadyWhen
from prefect_cachewatch.errors import InputError

__all__ = ["READY_SECTION", "with_ready"]

_FORMS = "write exit, http=URL, tcp=HOST:PORT, file=PATH or log=PATTERN"
_EXAMPLES = {
    "http": "http=http://127.0.0.1:8000/health",
    "tcp": "tcp=127.0.0.1:8000",
    "file": "file=TT_METAL_CACHE_COMPLETED",
    "log": "log='startup complete'",
}
# The field of a readiness to the option that sets it.
_OPTION_OF = {
    "status": "--ready-status",
    "body_pattern": "--ready-body",
    "check_every_s": "--ready-every",
    "warmup_begins_log": "--warmup-begins",
    "warmup_begins_file": "--warmup-begins",
}
# Options that mean something for a server only.
_SERVER_ONLY = {
    "--ready-status": "ready_status",
    "--ready-body": "ready_body",
    "--ready-every": "ready_every",
    "--then": "then",
    "--warmup-begins": "warmup_begins",
    "--warmup-within": "warmup_within",
}
READY_SECTION = Section(
    "Server",
    "--ready --then",
    [
        option(
            "--ready",
            default="exit",
            show_default=True,
            metavar="WHEN",
            help="When the job is done: exit, or for a server http=URL, tcp=HOST:PORT, file=PATH, log=PATTERN.",
        ),
        option("--ready-status", type=int, metavar="STATUS", help="HTTP status that means ready; 200."),
        option("--ready-body", metavar="PATTERN", help="Regular expression that the body must match too."),
        option("--ready-every", type=DURATION, help="Time between two looks whether it is ready; 5s."),
        option(
            "--then",
            type=click.Choice(["leave-running", "stop"]),
            help="Once ready, let it go on or stop it; default it goes on without its guard until cachewatch stop.",
        ),
        option(
            "--warmup-within",
            type=DURATION,
            help="Longest silence of a server after its last byte until it is ready; 30m.",
        ),
        option(
            "--warmup-begins",
            metavar="MARK",
            help="What begins the warm-up: log=PATTERN or file=PATH; default by what has been written.",
        ),
    ],
)


def with_ready(job: CacheJob, options: dict[str, Any]) -> CacheJob:
    """Give a job the readiness that the parsed options ask for.

    Args:
        job: made from the other options.
        options: of `READY_SECTION`.

    Returns:
        The job.

    Raises:
        InputError: something is malformed, or is given without what it belongs to.
    """
    context = click.get_current_context(silent=True)
    asked = context is None or context.get_parameter_source("ready") is not click.core.ParameterSource.DEFAULT
    if not asked and job.ready.kind != "exit":  # a profile's
        return job.model_copy(update={"ready": _adjusted(job.ready, options)})
    return job.model_copy(update={"ready": _ready_from(options)})


def _adjusted(ready: Any, options: dict[str, Any]) -> Any:
    given = [name for name, key in (("--ready-status", "ready_status"), ("--ready-body", "ready_body")) if options[key]]
    if given and ready.kind != "http":
        raise InputError(f"{given[0]} belongs to --ready http=URL, and the profile's is {ready.kind}: leave it out")
    try:
        return type(ready)(**{**ready.model_dump(), **_further(options)})
    except ValidationError as error:
        raise InputError(_explain(error, ready.kind)) from None


def _ready_from(options: dict[str, Any]) -> Any:
    text: str = options["ready"]
    kind, equals, value = text.partition("=")
    given = [name for name, key in _SERVER_ONLY.items() if options[key] is not None]
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
        raise InputError(_explain(error, kind)) from None


def _further(options: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, field in (("ready_status", "status"), ("ready_body", "body_pattern"), ("ready_every", "check_every_s")):
        if options[key] is not None:
            fields[field] = options[key]
    if options["ready_every"] is not None:
        fields["timeout_s"] = min(5.0, max(0.5, options["ready_every"]))
    if options["then"] is not None:
        fields["then"] = options["then"].replace("-", "_")
    if options["warmup_begins"] is not None:
        fields |= _mark(options["warmup_begins"])
    return fields


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


def _explain(error: ValidationError, kind: str) -> str:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][-1])
    what = first["msg"].removeprefix("Value error, ")
    where = _OPTION_OF.get(field, f"--ready {kind}")
    bound = first.get("ctx", {})
    if field.endswith("_s") and isinstance(first["input"], int | float):
        for word, limit in (("at least", bound.get("ge")), ("at most", bound.get("le"))):
            if limit is not None:
                return f"{where} {format_duration(float(first['input']))} is out of range: give {word} {format_duration(limit)}"
    shown = for_terminal(repr(first["input"]), 80)
    given = "" if shown.strip("'\"") in what or first["type"] == "value_error" else f" (given: {shown})"
    return f"{where}: {what if what[:3].isupper() else what[0].lower() + what[1:]}{given}"
