"""The best-effort reporter: log lines and progress, from a thread of its own. No other thread waits for it.

The monitor makes no API call, so an API that is slow delays this thread alone.
"""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Any
from uuid import UUID

from prefect_cachewatch.common.text import for_markdown, slugify
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.engine.events import Phase, Suspected
from prefect_cachewatch.engine.front import ToldAttempt
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger, create_artifact, update_artifact
from prefect_cachewatch.tasks.prefect_api.events import emit_generation_event, emit_run_event

# At most 5 requests a minute in all: one batch of logs per tick, and one request for the progress artifact; after half
# an hour 2 a minute where the generator prints nothing.
LOG_EVERY_S = 20.0
PROGRESS_EVERY_S = 30.0
# From 10 minutes on the line and the artifact come less often, from 30 minutes on a third as often.
_UNHURRIED_S, _MOST_TIMES = 600.0, 3.0
# Events are not requests: they have a connection of their own.
EVENT_EVERY_S = 60.0
_TICK_S = 1.0
_FIRST_PROGRESS_S = 5.0


def times_as_long(elapsed_s: float) -> float:
    """Say how much longer the pause between two progress lines is than at the start of the attempt.

    Example:
        >>> [times_as_long(elapsed_s) for elapsed_s in (20, 900, 7200)]
        [1.0, 1.5, 3.0]
    """
    return min(_MOST_TIMES, max(1.0, elapsed_s / _UNHURRIED_S))


class Reporter:
    """Reports the progress of an attempt to Prefect.

    Args:
        job: the job.
        attempt: what is told of the attempt.
        logger: the run's logger.
        log_every_s: time between two log lines.
        storage: the cache's storage, for its events.
    """

    def __init__(
        self,
        job: CacheJob,
        attempt: ToldAttempt,
        logger: AnyLogger,
        log_every_s: float = LOG_EVERY_S,
        storage: dict[str, str] | None = None,
    ) -> None:
        self._job, self._attempt, self._logger, self._storage = job, attempt, logger, storage
        self._log_every_s = log_every_s
        self._stop = threading.Event()
        self._sampled_s = -1.0
        self._artifact: UUID | None = None
        # A plain thread has no run logger and no run context: it gets those of the calling thread.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="cachewatch-reporter", daemon=True)

    def start(self) -> None:
        """Say that the generator runs, and report from now on."""
        command = self._job.container.image if self._job.container else self._job.command[0]
        self._emit("started", {"command": command, "expected_bytes": self._expected_bytes})
        self._sample()
        self._thread.start()

    def tell(self, event: Suspected | Phase) -> None:
        """Tell of a suspicion, or of the phase that a server's start has come to."""
        match event:
            case Suspected(message=message):
                self._logger.warning("suspected stall: %s", message)
                self._emit("suspected", {**self._numbers(), "message": message})
            case Phase(phase=phase, why=why):
                self._logger.info("%s: %s", "warm-up begins" if phase == "warm_up" else "writing", why)
                if phase == "warm_up":
                    self._emit("warming_up", {**self._numbers(), "message": why})

    def close(self, timeout_s: float = 0.5) -> None:
        """Stop reporting; a thread that hangs in the API is left behind.

        Args:
            timeout_s: the longest wait.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def _expected_bytes(self) -> int | None:
        return self._attempt.started.expected_bytes if self._attempt.started is not None else None

    def _run(self) -> None:
        now_s = time.monotonic()
        next_line_s = now_s + self._log_every_s
        next_progress_s, next_event_s = now_s + min(_FIRST_PROGRESS_S, self._log_every_s), now_s + EVENT_EVERY_S
        ended = False
        while not ended:
            ended = self._stop.wait(min(_TICK_S, self._log_every_s))
            now_s = time.monotonic()
            elapsed_s = now_s - self._attempt.began_s
            try:
                if now_s >= next_event_s and not ended:
                    next_event_s = now_s + EVENT_EVERY_S
                    self._emit("progress", self._numbers())
                    self._sample()
                if now_s >= next_line_s and not ended:
                    next_line_s = now_s + self._log_every_s * times_as_long(elapsed_s)
                    self._log()
                # Also at the end, if it was ever shown: the artifact then stands at the attempt's last figures.
                if (now_s >= next_progress_s and not ended) or (ended and self._artifact is not None):
                    next_progress_s = now_s + PROGRESS_EVERY_S * times_as_long(elapsed_s)
                    self._progress()
            except Exception as error:  # noqa: BLE001 - a failing API must not end the generation
                self._logger.debug("progress was not reported: %s", type(error).__name__)
        emit_run_event("paused", {"attempt": self._attempt.number})

    def _sample(self) -> None:
        """Say that the run is measured; without a new measurement there is nothing to say."""
        last = self._attempt.progress
        if last.at_s != self._sampled_s:
            self._sampled_s = last.at_s
            emit_run_event("sampled", {"attempt": self._attempt.number, "bytes_present": last.bytes_present})

    def _emit(self, kind: str, payload: dict[str, Any]) -> None:
        emit_generation_event(kind, self._job.name, {"attempt": self._attempt.number, **payload}, self._storage)

    def _numbers(self) -> dict[str, Any]:
        last = self._attempt.progress
        return {
            "bytes_present": last.bytes_present,
            "bytes_written": last.bytes_written,
            "files_present": last.files_present,
            "pause_s": round(last.pause_s, 1),
            "window_s": last.window_s,
            "expected_bytes": self._expected_bytes,
            "phase": last.phase,
        }

    def _log(self) -> None:
        last = self._attempt.progress
        self._logger.info(
            "%s in %s files, %s %s of %s%s",
            format_bytes(last.bytes_present),
            f"{last.files_present:,}",
            "warm-up" if last.phase == "warm_up" else "pause",
            format_duration(round(last.pause_s)),
            format_duration(last.window_s),
            f", waiting for {last.waiting_for}" if last.waiting_for else "",
        )

    def _progress(self) -> None:
        percent, text = self._share()
        description = f"{for_markdown(self._job.name)}: {text}"
        if self._artifact is None:
            key = f"cachewatch-{slugify(self._job.name)}-progress"
            self._artifact = create_artifact("progress", key, percent, description)
        else:
            update_artifact(self._artifact, percent, description)

    def _share(self) -> tuple[float, str]:
        """Per cent and text; without an expected size the text has the bytes, and the bar stands at zero."""
        last, expected = self._attempt.progress, self._expected_bytes
        files = format_count(last.files_present, "file")
        if not expected or self._attempt.started is None:
            return 0.0, f"{format_bytes(last.bytes_present)} in {files} so far; the size to expect is not known"
        percent = min(100.0, 100.0 * last.bytes_present / expected)
        origin = self._attempt.started.expected_from
        text = f"{format_bytes(last.bytes_present)} of {format_bytes(expected)}{origin} in {files}"
        elapsed_s = time.monotonic() - self._attempt.began_s
        left = expected - last.bytes_present
        if left > 0 and last.bytes_written > 0 and elapsed_s > 0 and not self._stop.is_set():
            text += f"; about {format_duration(float(round(left / (last.bytes_written / elapsed_s))))} left"
        return percent, text
