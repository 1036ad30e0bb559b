"""Bounds the time that a command spends on the Prefect API or a temporary server, whatever the API does.

Prefect's clients wait for an API without end, and obey a `Retry-After` of a day. The generator's end does not
depend on them: the command prints it, and prints separately that the API could not be told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from prefect_cachewatch.cli.api_address import api_url, require_address, with_end
from prefect_cachewatch.common.console import lent_streams
from prefect_cachewatch.common.files import write_within
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.common.within import within
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.watching.outcomes import OWN_FAILURE

if TYPE_CHECKING:
    from prefect_cachewatch.flows.telling import Telling
    from prefect_cachewatch.report.report import Report

NOT_TOLD = "The Prefect API could not be told: the flow run's state there is out of date."
_LOOK_S = 0.25
_HURRY_S = 3.0


def check_api(patience_s: float, instead: str = ", or unset PREFECT_API_URL to use a temporary server") -> str:
    """Check that the configured Prefect API answers as one; without one, Prefect starts a temporary server.

    Args:
        patience_s: the longest wait.
        instead: what else the user can do, as the end of a sentence.

    Returns:
        The server's version; empty for Prefect Cloud and for a temporary server.

    Raises:
        InputError: it does not answer, or something else answers at its address.
    """
    url = api_url()
    if not url:
        return ""
    require_address(url)
    version: object = None
    try:
        version = within(patience_s, _ask_api)
    except TimeoutError:
        why = f"has not answered within {format_duration(patience_s)}"
    except ValueError:
        why = ""
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"answers {status}" if status is not None else "cannot be reached"
        if status in (401, 403):
            raise InputError(
                f"the Prefect API at {url} {why}: check PREFECT_API_KEY, or PREFECT_API_AUTH_STRING"
            ) from error
    else:
        why = ""
    if why:
        address = f"PREFECT_API_URL ends with /api: write {with_end(url)}; or " if with_end(url) != url else ""
        raise InputError(f"the Prefect API at {url} {why}: {address}start it with `prefect server start`{instead}")
    if not isinstance(version, str):
        raise InputError(
            f"what answers at {url} is no Prefect API (a login page, a proxy?): check PREFECT_API_URL, which ends with /api"
        )
    return version


def _ask_api() -> object:
    from prefect.client.base import ServerType  # noqa: PLC0415 - Prefect is imported when it is used
    from prefect.client.orchestration import get_client  # noqa: PLC0415

    with get_client(sync_client=True) as client:
        if (error := client.api_healthcheck()) is not None:
            raise error
        if client.server_type != ServerType.CLOUD:
            return client.api_version()
        client.read_flows(limit=1)  # Prefect's own clients never ask Cloud for its version: it may have none to tell
        return ""


def prepare_api(patience_s: float) -> None:
    """Check that the Prefect API answers, or prepare for a temporary server, before a flow runs in this process.

    Args:
        patience_s: the longest wait for an API.

    Raises:
        InputError: see `check_api`.
    """
    # A temporary server that sends telemetry delays its start by it, and most clusters have no way out.
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Prefect gives a temporary server 20 s; a busy machine with two cores sometimes needs longer.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    if api_url():
        check_api(patience_s)
    else:
        _start_temporary_server()


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


def _start_temporary_server() -> None:
    """Start Prefect's temporary server, if there is no API, with its output passed on as cachewatch's own.

    A server that waits for a reader of its output answers no request. The server stays until this process ends.
    """
    import httpx  # noqa: PLC0415 - comes with Prefect, which is imported when it is used
    from prefect.client.orchestration import get_client  # noqa: PLC0415

    try:
        with lent_streams():
            get_client(sync_client=True)
    except (RuntimeError, ValueError, httpx.HTTPError) as error:
        told = for_terminal(" ".join(str(error).split()) or type(error).__name__, 300).rstrip(".")
        raise InputError(
            f"the temporary Prefect server did not start ({told}): try again when this machine is less busy, or start "
            "one of your own (prefect server start) and set PREFECT_API_URL"
        ) from None


class ApiWatchdog:
    """Ends the command if it only waits for an API that takes too long, or if a signal asks for the end.

    Args:
        telling: the run's progress.
        patience_s: how long the API may take, each time that the run only waits for it.
    """

    def __init__(self, telling: Telling, patience_s: float) -> None:
        self.finished = threading.Event()
        self._telling, self._patience_s = telling, patience_s
        self._bounds_start = bool(api_url())  # a temporary server has a time limit of its own for its start
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._signal: int | None = None
        self._signalled_s = 0.0
        self._before = -1

    def start(self) -> None:
        """Start watching, in a thread of its own; call in the main thread."""
        with contextlib.suppress(ValueError):  # not the main thread: no signals arrive here
            # The main thread may be in a call that no handler interrupts: the number of a signal arrives here.
            self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="cachewatch-api-watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self.finished.set()
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(self._before)

    def exit_status(self, report: Report) -> int:
        """Return the command's exit status if the API could not be told of the end.

        Args:
            report: report of the last attempt.

        Returns:
            The exit status: 128+N for a run that signal N cancelled, with or without a temporary server.
        """
        if self._signal is not None and self._telling.interrupted:
            return 128 + self._signal
        return report.exit_status(self._signal)

    def _watch(self) -> None:
        while not self.finished.is_set():
            if select.select([self._read], [], [], _LOOK_S)[0]:
                numbers = os.read(self._read, 1 << 16)
                if self._before >= 0:
                    with contextlib.suppress(OSError):
                        os.write(self._before, numbers)  # the earlier wake-up descriptor gets the signals too
                for number in numbers:
                    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and self._signal is None:
                        self._signal, self._signalled_s = number, time.monotonic()
            if not self.finished.is_set() and self._is_over():
                self._leave()

    def _is_over(self) -> bool:
        now_s, since_s = time.monotonic(), self._telling.since_s
        if since_s is None:
            return False
        if self._signal is not None and now_s - max(since_s, self._signalled_s) >= min(_HURRY_S, self._patience_s):
            return True
        return (self._telling.has_begun or self._bounds_start) and now_s - since_s >= self._patience_s

    def _leave(self) -> NoReturn:
        report = self._telling.report
        if report is not None:
            then = " The run was cancelled then." if self._telling.interrupted else ""
            status, said = self.exit_status(report), f"{report.message}{then} {NOT_TOLD}"
        elif self._signal is not None:
            status = 128 + self._signal
            said = f"cachewatch: {signal.Signals(self._signal).name} while the Prefect API did not answer; nothing is running"
        else:
            status = OWN_FAILURE
            said = f"cachewatch: the Prefect API at {api_url()} has not answered for {format_duration(self._patience_s)}: nothing is running"
        with contextlib.suppress(OSError):
            write_within(2, f"{said}\n".encode("utf-8", "backslashreplace"), 1.0)
        # Prefect's own threads wait for the API without end; the tree has gone and the report is on disk.
        os._exit(status)
