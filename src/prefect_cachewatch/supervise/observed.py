"""What a watch needs of something that runs already: a supervisor that knows whom it observes, and can let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from prefect_cachewatch.supervise.supervisor import Supervisor

__all__ = ["Observed", "Subject"]


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
