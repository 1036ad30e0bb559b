"""Bounds the time that `cachewatch generate` spends on a Prefect API, whatever the API does.

Prefect's clients wait for an API without end, and obey a `Retry-After` of a day. The generator's end does not
depend on them: the command prints it, and prints separately that the API could not be told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from prefect_cachewatch.cli.api import api_url
from prefect_cachewatch.cli.signals import ENDING
from prefect_cachewatch.common.files import write_within
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.engine.events import Bye, Event, Refused, Reported
from prefect_cachewatch.engine.view import View
from prefect_cachewatch.watching.outcomes import OWN_FAILURE

NOT_TOLD = "The Prefect API could not be told: the flow run's state there is out of date."
_LOOK_S = 0.25
_HURRY_S = 3.0


@contextlib.contextmanager
def logging_filtered(passes: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Ask before each log line, Prefect's too, whether it is shown.

    Args:
        passes: decides it; may clear the view from the screen first.
    """
    handlers = [handler for name in ("", "prefect") for handler in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(passes)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(passes)


class PatientView(View):
    """Shows a run, and ends the command where the run only waits for an API that takes too long or for a signal's end.

    Args:
        view: shows the run.
        patience_s: how long the API may take, each time that the run only waits for it.
        arrived: the signals that this process has got, live.
    """

    def __init__(self, view: View, patience_s: float, arrived: Sequence[int]) -> None:
        self.report: Mapping[str, Any] | None = None
        """The report of the last attempt that has ended."""
        self.bye: Bye | None = None
        """How the run ended, once it has."""
        self._view, self._patience_s, self._arrived = view, patience_s, arrived
        self._since_s: float | None = time.monotonic()  # since when the run only waits; None while it works
        self._has_begun = bool(api_url())  # a temporary server has a time limit of its own for its start
        self._finished = threading.Event()

    def __enter__(self) -> PatientView:
        threading.Thread(target=self._watch, name="cachewatch-api-patience", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()

    def begin(self) -> None:
        """Take in that the run is known to the API, and works."""
        self._has_begun, self._since_s = True, None

    def take(self, event: Event, at: float) -> None:
        """Take in an event; after the last one the run only waits."""
        match event:
            case Reported(final=True, report=report):
                self.report = report
            case Bye():
                self.bye = event
                self.end()
            case Refused():
                self.end()
        self._view.take(event, at)

    def close(self) -> None:
        """Leave the screen."""
        self._view.close()

    def end(self) -> None:
        """Take in that the run is over, and only waits for the API."""
        if self._since_s is None:
            self._since_s = time.monotonic()

    @property
    def exit_status(self) -> int:
        """The command's exit status by how the run ended; 128+N if signal N cancelled it."""
        if self.bye is None:
            return OWN_FAILURE
        number = next((each for each in self._arrived if each in ENDING), None)
        return 128 + number if self.bye.outcome == "cancelled" and number is not None else self.bye.status

    def _watch(self) -> None:
        signalled_s = None
        while not self._finished.wait(_LOOK_S):
            now_s, since_s = time.monotonic(), self._since_s
            number = next((each for each in self._arrived if each in ENDING), None)
            if number is not None and signalled_s is None:
                signalled_s = now_s
            if since_s is None:
                continue
            is_hurried = signalled_s is not None and now_s - max(since_s, signalled_s) >= min(
                _HURRY_S, self._patience_s
            )
            if is_hurried or (self._has_begun and now_s - since_s >= self._patience_s):
                self._leave(number)

    def _leave(self, number: int | None) -> NoReturn:
        status = self.exit_status
        if self.bye is not None:
            said = f"{self.bye.message} {NOT_TOLD}"
        elif number is not None:
            status = 128 + number
            said = f"cachewatch: {signal.Signals(number).name} while the Prefect API did not answer; nothing is running"
        else:
            said = f"cachewatch: the Prefect API at {api_url()} has not answered for {format_duration(self._patience_s)}: nothing is running"
        with contextlib.suppress(OSError):
            write_within(2, f"{said}\n".encode("utf-8", "backslashreplace"), 1.0)
        # Prefect's own threads wait for the API without end; the tree has gone and the report is on disk.
        os._exit(status)
