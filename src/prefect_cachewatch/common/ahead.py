"""What a run needs, looked at before anything is started: a file system that hangs is a reason not to start, not to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

__all__ = ["AHEAD_S", "look_ahead"]

AHEAD_S = 10.0


def look_ahead(
    files: Files, what: str, function: Callable[..., Any], *arguments: Any, instead: str = "check the mount"
) -> Any:
    """Look at something by whoever may be left behind.

    Args:
        files: who looks.
        what: is looked at, for the message.
        function: looks, and returns or raises.
        arguments: its.
        instead: what to do where it does not answer.

    Returns:
        What the function returns.

    Raises:
        InputError: its file system does not answer in time.
        Exception: whatever the function raises.
    """
    try:
        return files.run(function, *arguments, timeout_s=AHEAD_S)
    except TimeoutError as error:
        raise InputError(
            f"{for_terminal(what, 4096)} cannot be used: its file system does not answer within {AHEAD_S:.0f} s; {instead}"
        ) from error
