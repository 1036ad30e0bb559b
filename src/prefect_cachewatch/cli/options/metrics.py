"""`--metrics` and `--metrics-linger` of the commands: opened before anything is started, closed when all is said.

The engine's part is imported when it is asked for: `exec -- true` needs none of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration

if TYPE_CHECKING:
    from prefect_cachewatch.common.aside import Files
    from prefect_cachewatch.config import CacheJob
    from prefect_cachewatch.metrics.exporter import MetricsExporter
    from prefect_cachewatch.postmortem.examination import Examiner
    from prefect_cachewatch.watching.attempt import Outcome, Watch

__all__ = ["CommandMetrics", "absolute_destination", "check_metrics"]


class CommandMetrics:
    """The metrics that a command was asked for; without `--metrics` it does nothing.

    Args:
        where: of `--metrics`, or None.
        linger_s: how long an endpoint stays at the end for those who have scraped it.
        job: what runs.
        quiet: whether only what went wrong is said.
        files: who writes a metrics file; default this process.

    Raises:
        InputError: the destination or the linger cannot be used.
    """

    def __init__(
        self, where: str | None, linger_s: float, job: CacheJob, *, quiet: bool, files: Files | None = None
    ) -> None:
        self._exporter: MetricsExporter | None = None
        self._linger_s, self._quiet = linger_s, quiet
        if where is None:
            return
        from prefect_cachewatch.metrics.destination import check_linger  # noqa: PLC0415
        from prefect_cachewatch.metrics.exporter import open_metrics  # noqa: PLC0415

        check_linger(self._linger_s)
        self._exporter = open_metrics(where, job.name, job.cache_dirs, files)
        if not self._quiet:
            self._say(f"metrics: {for_terminal(self._exporter.where, 4096)}")

    def __enter__(self) -> CommandMetrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._exporter is not None:
            self._exporter.close()

    def began(self, watch: Watch) -> Watch:
        """Take in that the attempt begins; returns it."""
        if self._exporter is not None:
            self._exporter.attempt_began(1, watch.job.expected_bytes)
        return watch

    def sampled(self, watch: Watch) -> None:
        """Take in that the monitor has measured."""
        if self._exporter is not None:
            self._exporter.sampled(watch)

    def ended(self, outcome: Outcome, examiner: Examiner) -> Outcome:
        """Take in how the attempt, and with it the run, ended; returns it."""
        if self._exporter is not None:
            self._exporter.attempt_ended(outcome, examiner.diagnosis.category if examiner.diagnosis else None)
            self._exporter.run_ended(outcome.name)
        return outcome

    def finish(self, received: Sequence[int]) -> None:
        """Wait for whoever scrapes to see the end, say what went wrong with the metrics, and close them.

        Args:
            received: signals that have come, live; one ends the wait, and one that came before lets none begin.
        """
        if self._exporter is None:
            return
        if self._exporter.lingers and self._linger_s and not received and not self._quiet:
            self._say(f"metrics: open for up to {format_duration(self._linger_s)}, for a last scrape (Ctrl-C ends it)")
        self._exporter.close(self._linger_s, lambda: bool(received))
        if self._exporter.problem is not None:
            self._say(self._exporter.problem)

    def _say(self, text: str) -> None:
        print(f"cachewatch: {text}", file=sys.stderr, flush=True)


def absolute_destination(where: str | None) -> str | None:
    """Make a `file:` destination absolute, for a flow that runs elsewhere."""
    if where is None or not where.startswith("file:") or where == "file:":
        return where
    path = where.removeprefix("file:")
    return where if path.startswith("///") else f"file:{Path(path).expanduser().absolute()}"


def check_metrics(where: str | None, linger_s: float, job: CacheJob, files: Files) -> None:
    """See that the metrics of a flow's run can be had, before a server is started for it.

    Args:
        where: of `--metrics`, or None.
        linger_s: how long an endpoint stays at the end.
        job: what will run.
        files: who looks at a directory.

    Raises:
        InputError: the destination or the linger cannot be used.
    """
    if where is None:
        return
    from prefect_cachewatch.metrics.destination import check_linger  # noqa: PLC0415
    from prefect_cachewatch.metrics.exporter import check_destination  # noqa: PLC0415

    check_linger(linger_s)
    check_destination(where, job.cache_dirs, files)
