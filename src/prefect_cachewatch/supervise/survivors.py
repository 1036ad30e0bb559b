"""Processes that a stop could not kill: whether they are still there, and the wait until they are not.

One that hangs in the kernel or is frozen may go on to write when it is let go of: no attempt starts beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect_cachewatch.common.text import for_terminal, redact_argv
from prefect_cachewatch.supervise.proc import is_alive, read_stat

__all__ = ["await_survivors", "describe_survivors", "still_there"]

_LOOK_EVERY_S = 0.5
_NAMED_MAX = 5


def still_there(survivors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Look again at processes that could not be killed.

    Args:
        survivors: of a `StopReport`: pid, start_ticks, state and argv.

    Returns:
        Those that have not ended, with their state now. One that cannot be seen from here counts as one of them.

    Example:
        >>> still_there([{"pid": 1, "start_ticks": 123456789012, "state": "D", "argv": []}])
        []
    """
    left = []
    for one in survivors:
        if not one["pid"] or not one["start_ticks"]:
            left.append(dict(one))  # of a container on another host
        elif is_alive(one["pid"], one["start_ticks"]):
            now = read_stat(one["pid"])
            left.append({**one, "state": now.state if now else one["state"]})
    return left


def await_survivors(
    survivors: Sequence[Mapping[str, Any]],
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[dict[str, Any]]:
    """Wait until none of them is left.

    Args:
        survivors: of a `StopReport`.
        timeout_s: the longest wait.
        clock: monotonic seconds.
        sleep: waits.

    Returns:
        Those that are still there.
    """
    end_s = clock() + timeout_s
    while (left := still_there(survivors)) and (rest_s := end_s - clock()) > 0:
        sleep(min(_LOOK_EVERY_S, rest_s))
    return left


def describe_survivors(left: Sequence[Mapping[str, Any]]) -> str:
    """Name processes that could not be killed, for a message.

    Args:
        left: of `still_there`, at least one.

    Returns:
        A clause, harmless for a terminal.

    Example:
        >>> describe_survivors([{"pid": 7, "state": "D", "argv": ["gen", "--token", "abc"]}])
        'pid 7 (gen --token ***, state D)'
    """
    named = (
        f"pid {one['pid']} ({for_terminal(' '.join(redact_argv(one['argv'])), 80)}, state {one['state']})"
        for one in left[:_NAMED_MAX]
    )
    more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
    return ", ".join(named) + more
