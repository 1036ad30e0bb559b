"""The front of an engine for a process with several readers: a thread reads the events, the others wait for facts.

Standard library only.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from prefect_cachewatch import errors
from prefect_cachewatch.engine.client import EngineClient, is_silent
from prefect_cachewatch.engine.events import (
    AttemptWanted,
    Bye,
    Checked,
    Event,
    Gone,
    Progress,
    Published,
    Refused,
    Reported,
    Started,
    Unpublished,
    Verdict,
)
from prefect_cachewatch.errors import CachewatchError, GuardError
from prefect_cachewatch.supervise.janitor import stop_leftovers

AWAKE_S = 1.0
_KILLED_S = 10.0


class ToldAttempt:
    """What is known of one attempt; live.

    Args:
        number: of the attempt, from 1.
        most: how many there may be.
    """

    def __init__(self, number: int, most: int | None) -> None:
        self.number, self.most = number, most
        self.started: Started | None = None
        self.began_s = time.monotonic()
        self.progress = Progress(0.0)
        """The last measurement, or what was there at the start."""
        self.verdict: Verdict | None = None
        """The one that stopped it."""
        self.gone: Gone | None = None
        self.stalls = 0
        """How many stalls were reported that stopped nothing."""
        self.reported: Reported | None = None


class Front:
    """Starts an engine and reads what it tells.

    Args:
        spec: what to run, from `engine.spec.make_spec`.
        name: of the job.
        pass_fds: descriptors that the engine inherits.
        view: takes each event too; must not block.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        name: str,
        pass_fds: tuple[int, ...] = (),
        view: Callable[[Event, float], None] = lambda event, at: None,
    ) -> None:
        self.attempt: ToldAttempt | None = None
        self.checked: Checked | None = None
        self.published: Published | Unpublished | None = None
        self.token = ""
        """What marks the processes of the last attempt; empty before there is one."""
        self.is_over = False
        """Whether nothing more is told: the run has ended, or the engine has died."""
        self._view = view
        self._changed = threading.Condition()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.engine = EngineClient(spec, name, pass_fds)
        threading.Thread(target=self._read, name="cachewatch-events", daemon=True).start()

    def next(self, seconds: float = math.inf) -> Event | None:
        """Wait for the next event, in short pieces: a signal that the kernel gives to another thread wakes nobody.

        Args:
            seconds: the longest wait.

        Returns:
            The event; None once the engine has hung up.

        Raises:
            TimeoutError: there was none by then.
        """
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                return self._events.get(timeout=min(left_s, AWAKE_S))
            except queue.Empty:
                continue
        raise TimeoutError

    def wait(self, fact: Callable[[], bool]) -> None:
        """Wait in another thread until something is so, or nothing more is told."""
        with self._changed:
            self._changed.wait_for(lambda: fact() or self.is_over)

    def close(self) -> None:
        """Hang up; an engine that still runs stops its tree, and writes its report."""
        self.engine.close()

    def _read(self) -> None:
        for event, at in self.engine.events():
            with self._changed:
                self._take(event)
                self._changed.notify_all()
            self._view(event, at)
            if not isinstance(event, Progress):
                self._events.put(event)
            if isinstance(event, Bye | Refused) or is_silent(event):
                break
        with self._changed:
            self.is_over = True
            self._changed.notify_all()
        self._events.put(None)

    def _take(self, event: Event) -> None:
        attempt = self.attempt
        match event:
            case AttemptWanted(n=number, most=most):
                self.attempt = ToldAttempt(number, most)
            case Checked():
                self.checked = event
            case Published() | Unpublished():
                self.published = event
        if attempt is None:
            return
        match event:
            case Started():
                attempt.started, attempt.began_s, self.token = event, time.monotonic(), event.token
                attempt.progress = Progress(0.0, bytes_present=event.bytes_present, files_present=event.files_present)
            case Progress():
                attempt.progress = event
            case Verdict(stops=True):
                attempt.verdict = event
            case Gone():
                attempt.gone = event
            case Reported(final=False):
                attempt.stalls += 1
            case Reported():
                attempt.reported = attempt.reported or event


def mourn(token: str) -> str:
    """Kill what is left of a run whose engine has died, and say so; its guard, if there is one, has stopped the tree by then.

    Args:
        token: what marks the processes of its last attempt; empty before there was one.
    """
    left = stop_leftovers(token, (), time.monotonic() + _KILLED_S) if token else []
    if any(not one.killed for one in left):
        return "the engine of this run has died, and its generator could not be stopped: see what is left with ps"
    return "the engine of this run has died, and its generator was stopped"


def error_of(refused: Refused) -> CachewatchError:
    """Return the error that an engine has told of, as if it had been raised here."""
    kind: type[CachewatchError] = getattr(errors, refused.kind, GuardError)
    return kind(refused.message, **refused.data)
