"""Runs the command that the user wants before each further attempt, such as one that resets a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from prefect_cachewatch.common.secrets import LineRedactor, redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.supervise.guarded import run_guarded

#: The longest time of the command; then its whole tree is stopped.
WITHIN_S = 300.0
_OUTPUT_LINES = 200


def run_before_retry(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    secrets: tuple[str, ...],
    say: Callable[[str], object],
) -> None:
    """Run the command under guard; its whole tree is gone when this returns or raises.

    Args:
        command: argv.
        env: its whole environment.
        cwd: its working directory.
        secrets: values that no line of its output may hold.
        say: takes a line of the log.

    Raises:
        InputError: it could not be run, failed, or was stopped at its deadline.
    """
    shown = redact(for_terminal(" ".join(command), 200), secrets)
    say(f"before the next attempt, for at most {format_duration(WITHIN_S)}: {shown}")
    try:
        result = run_guarded(command, env=env, cwd=cwd, timeout_s=WITHIN_S, tail_lines=_OUTPUT_LINES)
    except CachewatchError as error:
        raise InputError(f"the command before it, {shown}, could not be run: {error.message}") from error
    lines = LineRedactor(secrets).lines(list(result.tail))
    for line in lines:
        say(f"{os.path.basename(command[0])}: {for_terminal(line, 1000)}")
    if not result.ok:
        last = f": {for_terminal(lines[-1], 200)}" if lines else ""
        raise InputError(f"the command before it, {shown}, {result.describe()}{last}")
