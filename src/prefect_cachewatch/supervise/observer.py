"""What a watch needs of something that runs already, and what is the same for a process and a container.

An `Observer` is a thread that waits for the end, or to be told.
"""

from __future__ import annotations

import os
import select
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from prefect_cachewatch.supervise.supervisor import StopReport, Supervisor

__all__ = ["Observed", "Observer", "Subject"]


@dataclass(frozen=True)
class Subject:
    """Who is observed.

    Attributes:
        who: for a sentence, such as `process 48213`.
        argv: its command line.
        began_at: wall time at which it was started, in seconds since the epoch.
        pid: of its first process on this host; None if that is not to be seen.
        start_ticks: that process's start time, in clock ticks since boot.
        container: full identifier of a container.
    """

    who: str
    argv: tuple[str, ...]
    began_at: float
    pid: int | None
    start_ticks: int | None
    container: str | None = None


class Observed(Supervisor, Protocol):
    """A supervisor of what somebody else started."""

    subject: Subject

    def let_go(self) -> None:
        """End the observation and leave alone whom it observes; without effect once it is being stopped."""


class Observer:
    """Base of the supervisors of what somebody else started; a thread of its own runs `_observe`.

    Args:
        what: is observed, for a note: process or container.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    includes_roots = True

    def __init__(self, what: str, grace_s: float) -> None:
        self.pid: int | None = None
        self.root_pids: list[int] = []
        self.leader_exit: tuple[int | None, int | None] | None = None
        self.gone = threading.Event()
        self.report: StopReport | None = None
        self.notes: list[str] = []
        self._what, self._grace_s = what, grace_s
        self._lock = threading.RLock()  # a signal handler may ask while its own thread does
        self._asked, self._kill_by_s = "", float("inf")
        self._wake = -1
        self._thread = threading.Thread(target=self._run, name="cachewatch-adopted", daemon=True)

    def wait(self, timeout_s: float) -> StopReport | None:
        """Wait until it has ended or was let go, at most so long.

        Args:
            timeout_s: the longest wait.

        Returns:
            How it ended (`why` is exited, stop or released), or None.
        """
        return self.report if self.gone.wait(timeout_s) else None

    def stop(self, grace_s: float | None = None) -> None:
        """Ask for all of it to be stopped; returns at once, and a further call may only shorten the grace period.

        Args:
            grace_s: overrides the grace period.
        """
        self._ask("stop", time.monotonic() + (self._grace_s if grace_s is None else grace_s))

    def let_go(self) -> None:
        """End the observation and leave alone whom it observes; without effect once it is being stopped."""
        self._ask("released")

    def freeze(self, timeout_s: float) -> list[int]:
        """Freeze nothing: what is not ours would stay frozen if this process were killed meanwhile."""
        return []

    def release(self, timeout_s: float) -> str | None:
        """Let go of what was never held: returns None, or why there is nothing to let go of."""
        self.let_go()
        report = self.wait(timeout_s)
        return None if report is not None and report.why == "released" else "it has ended, or is being stopped"

    def _begin(self) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread.start()

    def _end(self, timeout_s: float) -> bool:
        """Let go, and wait at most so long for the thread; false if it has not ended."""
        self.let_go()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        with self._lock:
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1
        return True

    def _ask(self, what: str, kill_by_s: float = float("inf")) -> None:
        with self._lock:
            self._asked = self._asked or what
            self._kill_by_s = min(self._kill_by_s, kill_by_s)
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _asked_within(self, seconds: float) -> bool:
        """Wait at most so long for a further question, such as for a shorter grace period."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        os.eventfd_read(self._wake)
        return True

    def _run(self) -> None:
        try:
            self.report = self._observe()
        except Exception as error:  # noqa: BLE001 - whoever waits must not wait for ever
            self.notes.append(f"the {self._what} is no longer observed: {type(error).__name__}: {error}")
        finally:
            self.gone.set()

    def _observe(self) -> StopReport:
        raise NotImplementedError
