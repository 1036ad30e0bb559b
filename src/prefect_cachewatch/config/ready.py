"""When a job is done: its exit, or the moment at which the server that it starts is ready."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config.quantities import InputModel

if TYPE_CHECKING:
    import regex

_PATTERN_MAX = 500


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compile a regular expression for lines of output.

    Args:
        pattern: as the user wrote it.

    Raises:
        ValueError: it does not compile, or matches an empty text.

    Example:
        >>> compile_pattern(r"Application startup complete").groups
        0
    """
    import regex  # noqa: PLC0415 - most jobs have no pattern, and it costs 2 MB

    try:
        compiled = regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern '{for_terminal(pattern)}' is not a regular expression: {error}") from None
    if compiled.search("") is not None:
        raise ValueError(
            f"pattern '{for_terminal(pattern)}' matches an empty text, so any output at all: write the words that it prints"
        )
    return compiled


class ReadyOnExit(InputModel):
    """Done when the generator ends with exit code 0."""

    kind: Literal["exit"] = Field(default="exit", description="The generator's exit code 0 is the end.")


class _Server(InputModel):
    """What all jobs that start a server have in common."""

    then: Literal["leave_running", "stop"] = Field(
        default="leave_running",
        description="When ready - leave_running: hand the server over, it goes on without its guard until "
        "`cachewatch stop`; stop: stop it, its cache was all that was wanted.",
    )


class ReadyOnHttp(_Server):
    """Ready when an address answers 200; a redirect is an answer and is not followed."""

    kind: Literal["http"] = Field(default="http", description="Ready when an HTTP address answers 200.")
    url: str = Field(max_length=2000, description="The address, for example http://127.0.0.1:8000/health.")

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        return _check_url(url)


class ReadyOnTcp(_Server):
    """Ready when a port takes connections."""

    kind: Literal["tcp"] = Field(default="tcp", description="Ready when a TCP port takes connections.")
    host: str = Field(
        default="127.0.0.1", pattern=r"^[^\s/]+$", max_length=253, description="Host name or address of the server."
    )
    port: int = Field(ge=1, le=65535, description="Its port.")


class ReadyOnFile(_Server):
    """Ready when a marker file has been written."""

    kind: Literal["file"] = Field(default="file", description="Ready when a marker file has been written.")
    path: Path = Field(
        description="The marker, for example TT_METAL_CACHE_COMPLETED: absolute, or relative to the first cache "
        "directory. One that was there before the start counts only when it has been written again."
    )

    @field_validator("path")
    @classmethod
    def _marker(cls, path: Path) -> Path:
        return _check_marker(path)


class ReadyOnLog(_Server):
    """Ready when the generator has printed a line."""

    kind: Literal["log"] = Field(default="log", description="Ready when its output has a line that matches.")
    pattern: str = Field(
        min_length=1,
        max_length=_PATTERN_MAX,
        description="A regular expression for a line of its output, for example `Application startup complete`; "
        "of each line the first 4,096 bytes are looked at.",
    )

    @field_validator("pattern")
    @classmethod
    def _line(cls, pattern: str) -> str:
        return compile_pattern(pattern).pattern


ReadyServer = ReadyOnHttp | ReadyOnTcp | ReadyOnFile | ReadyOnLog
"""Every readiness except an exit."""

ReadyWhen = Annotated[
    ReadyOnExit | ReadyOnHttp | ReadyOnTcp | ReadyOnFile | ReadyOnLog,
    Field(discriminator="kind"),
]


def prefer_any_of(schema: dict[str, Any]) -> None:
    """Write a union as `anyOf` in a JSON schema, since one of Prefect's two UIs does not draw `oneOf`.

    Args:
        schema: the field's; changed in place.
    """
    if "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")


def _check_url(url: str) -> str:
    example = "write it like http://127.0.0.1:8000/health"
    if any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError(f"URL {url!r} has a blank or control character in it: {example}")
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"URL {url!r} is not one ({error}): {example}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"URL {url!r} does not begin with http:// or https://: {example}")
    if not host or port == 0:
        raise ValueError(f"URL {url!r} names no {'port' if host else 'host'}: {example}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL has a user name or password in it, which is not sent: leave it out")
    return url


def _check_marker(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a marker file's path has a NUL character in it")
    if path.name in ("", ".."):
        raise ValueError(f"marker file {str(path)!r} names no file: write for example TT_METAL_CACHE_COMPLETED")
    return path
