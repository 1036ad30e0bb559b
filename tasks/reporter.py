"""The best-effort reporter: log lines and progress, from a thread of its own that nobody waits for.

The monitor makes no API call; whatever the API does, this thread alone is late.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Sequence
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect_cachewatch.tasks.artifacts import AnyLogger

from prefect_cachewatch.rundir import slugify
from prefect_cachewatch.text import for_markdown, for_terminal, redact
from prefect_cachewatch.units import format_bytes, format_duration
from prefect_cachewatch.watch import Watch

__all__ = ["Reporter"]

# Together at most 5 requests a minute: logs go in one batch a tick, the progress artifact in one request.
LOG_EVERY_S = 20.0
PROGRESS_EVERY_S = 30.0
_LINES_MAX = 20


class Reporter:
    """Tells Prefect how an attempt is getting on.

    Args:
        watch: the attempt.
        logger: of the run.
        secrets: values that must not be logged.
        log_every_s: time between two log lines.
    """

    def __init__(
        self, watch: Watch, logger: AnyLogger, secrets: Sequence[str] = (), log_every_s: float = LOG_EVERY_S
    ) -> None:
        self._watch, self._logger, self._secrets = watch, logger, tuple(secrets)
        self._log_every_s = log_every_s
        self._stop = threading.Event()
        self._output_seen = 0
        self._suspicions_seen = 0
        self._artifact: UUID | None = None
        # A plain thread has no run logger and no run context: it is given this one's.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="cachewatch-reporter", daemon=True)

    def start(self) -> None:
        """Start reporting."""
        self._thread.start()

    def close(self, timeout_s: float = 0.5) -> None:
        """Stop reporting; a thread that hangs in the API is left behind.

        Args:
            timeout_s: the longest wait.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        next_progress_s = 0.0
        while not self._stop.wait(self._log_every_s):
            try:
                self._log()
                now_s = time.monotonic()
                if self._watch.job.expected_bytes and now_s >= next_progress_s:
                    next_progress_s = now_s + PROGRESS_EVERY_S
                    self._progress(self._watch.job.expected_bytes)
            except Exception as error:  # noqa: BLE001 - the API's troubles are not the generation's
                self._logger.debug("progress was not reported: %s", type(error).__name__)

    def _log(self) -> None:
        state = self._watch.state
        rule, growth = state.rule, state.growth
        self._log_output()
        for suspicion in rule.suspicions[self._suspicions_seen :]:
            self._suspicions_seen += 1
            self._logger.warning("suspected stall: %s", suspicion.message)
        self._logger.info(
            "%s in %s files, pause %s of %s",
            format_bytes(growth.bytes_present),
            f"{growth.files_present:,}",
            format_duration(round(rule.pause_s)),
            format_duration(rule.window_s),
        )

    def _log_output(self) -> None:
        output = self._watch.output
        new_bytes = output.total_bytes - self._output_seen
        if new_bytes <= 0:
            return
        self._output_seen += new_bytes
        lines = output.tail_lines(_LINES_MAX, new_bytes)
        shown = "\n".join(for_terminal(redact(line, self._secrets), 300) for line in lines)
        self._logger.info("generator's output, last lines of %s:\n%s", format_bytes(new_bytes), shown)

    def _progress(self, expected_bytes: int) -> None:
        growth = self._watch.state.growth
        percent = min(100.0, 100.0 * growth.bytes_present / expected_bytes)
        text = (
            f"{format_bytes(growth.bytes_present)} of {format_bytes(expected_bytes)} in {growth.files_present:,} files"
        )
        if self._artifact is None:
            made = create_progress_artifact(
                percent,
                key=f"cachewatch-{slugify(self._watch.job.name)}-progress",
                description=f"{for_markdown(self._watch.job.name)}: {text}",
            )
            assert isinstance(made, UUID)
            self._artifact = made
        else:
            update_progress_artifact(
                self._artifact, percent, description=f"{for_markdown(self._watch.job.name)}: {text}"
            )
