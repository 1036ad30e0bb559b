"""Runs a short command under guard with a deadline: checks of a build, health checks of a deployment.

Its whole tree is gone when `run_guarded` returns or raises. Growth is not measured here (see `watching.attempt`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.supervise.client import GuardClient
from prefect_cachewatch.supervise.output import OutputPump
from prefect_cachewatch.supervise.proc import signal_name
from prefect_cachewatch.supervise.supervisor import Launch, wait_for_report

_WAIT_S = 0.5
_STOP_S = 15.0


@dataclass(frozen=True)
class GuardedResult:
    """How a command ended, and its last lines of output."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    duration_s: float
    tail: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True for exit code 0 within the deadline."""
        return self.exit_code == 0 and not self.timed_out

    def describe(self) -> str:
        """Describe how it ended, as the end of a sentence."""
        if self.timed_out:
            return f"did not end within {format_duration(self.duration_s)} and was stopped"
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        return f"ended with exit code {self.exit_code}"


def run_guarded(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    timeout_s: float,
    grace_s: float = 5.0,
    tail_lines: int = 20,
) -> GuardedResult:
    """Run a command to its end, or stop its whole tree at the deadline.

    Args:
        command: argv.
        env: its whole environment.
        cwd: its working directory; default this process's.
        timeout_s: seconds until it is stopped.
        grace_s: seconds between SIGTERM and SIGKILL.
        tail_lines: how many of its last output lines are kept.

    Returns:
        How it ended.

    Raises:
        CommandError: it cannot be executed.
        GuardError: the guard did not start, or died.

    Example:
        >>> run_guarded(["true"], env={"PATH": "/usr/bin:/bin"}, timeout_s=30).ok
        True
    """
    pump = OutputPump()
    out_fd, error_fd = pump.open_pipes()
    null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    guard = GuardClient(
        Launch(
            command,
            env=env,
            cwd=cwd or os.getcwd(),
            stdio=(null_fd, out_fd, error_fd),
            grace_s=grace_s,
            run_token=os.urandom(16).hex(),
        )
    )
    started_s = time.monotonic()
    try:
        try:
            guard.start()
        finally:
            for fd in (null_fd, out_fd, error_fd):
                os.close(fd)
            pump.start()
        timed_out = False
        while (report := wait_for_report(guard, _WAIT_S)) is None:
            elapsed_s = time.monotonic() - started_s
            if elapsed_s >= timeout_s and not timed_out:
                timed_out = True
                guard.stop()
            if elapsed_s >= timeout_s + grace_s + _STOP_S:
                break
    except BaseException:
        # Also on a cancellation, which arrives as a TerminationSignal: no tree is left behind.
        guard.stop()
        guard.wait(grace_s + _STOP_S)
        raise
    finally:
        guard.close()
        pump.finish()
    return GuardedResult(
        exit_code=report.exit_code if report else None,
        signal=report.signal if report else None,
        timed_out=timed_out,
        duration_s=timeout_s if timed_out else time.monotonic() - started_s,
        tail=tuple(pump.tail_lines(tail_lines)),
    )
