"""`--metrics` and `--metrics-linger` of the commands: opened before anything is started, closed when all is said.

The engine's part is imported when it is asked for: `exec -- true` needs none of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration

if TYPE_CHECKING:
    from prefect_cachewatch.common.aside import Files
    from prefect_cachewatch.config import CacheJob
    from prefect_cachewatch.metrics.exporter import MetricsExporter
    from prefect_cachewatch.metrics.settings import Metrics

__all__ = ["CommandMetrics"]


class CommandMetrics:
    """The metrics that a command was asked for; without `--metrics` it does nothing.

    Args:
        metrics: as asked for, or None.
        job: what runs.
        quiet: whether only what went wrong is said.
        files: who writes a metrics file; default this process.

    Raises:
        InputError: the destination cannot be used.
    """

    def __init__(self, metrics: Metrics | None, job: CacheJob, *, quiet: bool, files: Files | None = None) -> None:
        self.exporter: MetricsExporter | None = None
        self._linger_s, self._quiet = metrics.linger_s if metrics is not None else 0.0, quiet
        if metrics is None:
            return
        from prefect_cachewatch.metrics.exporter import open_metrics  # noqa: PLC0415

        self.exporter = open_metrics(metrics.to, job.name, job.cache_dirs, files)
        if not self._quiet:
            self._say(f"metrics: {for_terminal(self.exporter.where, 4096)}")

    def __enter__(self) -> CommandMetrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.exporter is not None:
            self.exporter.close()

    def finish(self, outcome: str, received: Sequence[int]) -> None:
        """Wait for whoever scrapes to see the end, say what went wrong with the metrics, and close them.

        Args:
            outcome: name of the run's outcome.
            received: signals that have come, live; one ends the wait, and one that came before lets none begin.
        """
        if self.exporter is None:
            return
        self.exporter.run_ended(outcome)
        if self.exporter.lingers and self._linger_s and not received and not self._quiet:
            self._say(f"metrics: open for up to {format_duration(self._linger_s)}, for a last scrape (Ctrl-C ends it)")
        self.exporter.close(self._linger_s, lambda: bool(received))
        if self.exporter.problem is not None:
            self._say(self.exporter.problem)

    def _say(self, text: str) -> None:
        print(f"cachewatch: {text}", file=sys.stderr, flush=True)
