"""Requests to a Prefect API that is away for a while, for example while its server is restarted.

A Prefect client tries again if it has had an answer before, and gives up at once if it has not; each part of a run
has a client of its own. Requests through this module are repeated until the API has been away for too long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import InputError

T = TypeVar("T")
Logger = logging.Logger | logging.LoggerAdapter[Any]

PATIENCE_S = 180.0  # long enough to restart a server, or to move it to another machine
_LONGEST_PAUSE_S = 5.0


def is_outage(error: BaseException | None) -> bool:
    """Say whether an error means that the API could not be reached or failed, rather than that it refused.

    Args:
        error: what a Prefect client raised; its causes are looked at too.

    Returns:
        True for broken and refused connections, timeouts and answers of 500 and above.

    Example:
        >>> is_outage(httpx.ConnectError("refused")), is_outage(ValueError())
        (True, False)
    """
    while error is not None:
        if isinstance(error, httpx.TransportError):
            return True
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.status_code >= 500
        error = error.__cause__
    return False


def ask_patiently(
    ask: Callable[[], T],
    logger: Logger,
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Send a request to the API, and repeat it while the API is away.

    Args:
        ask: sends the request; must be safe to repeat.
        logger: told once that the API is away, and once that it is back.
        patience_s: how long it may be away, in seconds.
        clock: monotonic time in seconds.
        sleep: waits for so many seconds.

    Returns:
        The answer.

    Raises:
        InputError: it was away for longer.
    """
    began_s, pause_s = clock(), 1.0
    while True:
        try:
            answer = ask()
        except Exception as error:
            if not is_outage(error):
                raise
            away_s = clock() - began_s
            if away_s >= patience_s:
                raise InputError(
                    f"the Prefect API has not answered for {format_duration(away_s)} ({type(error).__name__}): "
                    "start it with `prefect server start`, or set PREFECT_API_URL"
                ) from error
            if pause_s == 1.0:
                logger.warning(
                    "The Prefect API does not answer (%s): asking again for %s",
                    type(error).__name__,
                    format_duration(patience_s),
                )
        else:
            if pause_s > 1.0:
                logger.info("The Prefect API answers again after %s", format_duration(clock() - began_s))
            return answer
        sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
