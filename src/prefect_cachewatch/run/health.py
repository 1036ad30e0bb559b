"""Checks that the users of the cache work with it: runs a command or asks an HTTP address until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from prefect_cachewatch.common.http_address import HttpAddress
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import Duration
from prefect_cachewatch.errors import CommandError, GuardError
from prefect_cachewatch.store.key import expand_placeholder
from prefect_cachewatch.supervise.guarded import run_guarded

_Url = Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=2000)]
_REQUEST_S = 10.0
_LEAST_S = 0.05


class HealthCheck(InputModel):
    """What tells that a deployed cache is good: exactly one of command and url."""

    command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="A command that ends with exit code 0 when all is well; {cache_dir} in it is the activated build. "
        "An argument list, no shell reads it.",
    )
    url: _Url | None = Field(
        default=None,
        description="An http or https address that answers 200 when all is well, for example the server's /health; "
        "asked again and again until the deadline.",
    )
    deadline_s: Duration = Field(
        default=300,
        ge=0.1,
        le=7 * 86400,
        description="The check has failed when it is not well after this many seconds; warm-ups of 5 to 30 minutes are usual.",
    )
    interval_s: Duration = Field(default=5, ge=0.05, le=3600, description="Pause between two requests to the address.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give a health check either a command or a url, not both and not none")
        return self


@dataclass(frozen=True)
class HealthResult:
    """The result of a health check: the reason is the end of a sentence."""

    ok: bool
    reason: str
    duration_s: float


def check_health(
    check: HealthCheck,
    cache_dir: str,
    env: Mapping[str, str],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HealthResult:
    """Repeat the check until it succeeds or the deadline has passed.

    Args:
        check: the health check.
        cache_dir: path of the activated build.
        env: the whole environment of a command.
        clock: monotonic seconds.
        sleep: waits between two requests.

    Returns:
        The result, within the deadline + one request's time limit.
    """
    started_s = clock()
    if check.command is not None:
        return _check_command(check, check.command, cache_dir, env)
    assert check.url is not None
    deadline_s, reason = started_s + check.deadline_s, "was not asked"
    address = HttpAddress(check.url)
    while (left_s := deadline_s - clock()) > 0:
        wrong = address.ask(min(_REQUEST_S, max(left_s, _LEAST_S)))
        if wrong is None:
            return HealthResult(True, "answered 200", clock() - started_s)
        reason = wrong if wrong.startswith("answered") else f"did not answer ({wrong})"
        sleep(max(0.0, min(check.interval_s, deadline_s - clock())))
    shown = for_terminal(redact(check.url), 200)
    return HealthResult(
        False, f"{shown} {reason} until the deadline of {format_duration(check.deadline_s)}", clock() - started_s
    )


def _check_command(check: HealthCheck, command: list[str], cache_dir: str, env: Mapping[str, str]) -> HealthResult:
    shown = for_terminal(command[0], 100)
    try:
        result = run_guarded(expand_placeholder(command, cache_dir), env=env, timeout_s=check.deadline_s)
    except (CommandError, GuardError) as error:
        return HealthResult(False, f"{shown} could not be run: {error.message}", 0.0)
    last = next((line for line in reversed(result.tail) if line.strip()), "")
    said = f" ({for_terminal(redact(last.strip()), 300)})" if last and not result.ok else ""
    return HealthResult(result.ok, f"{shown} {result.describe()}{said}", result.duration_s)
