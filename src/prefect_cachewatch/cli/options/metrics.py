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
        self.exporter: MetricsExporter | None = None
        self._linger_s, self._quiet = linger_s, quiet
        if where is None:
            return
        from prefect_cachewatch.metrics.destination import check_linger  # noqa: PLC0415
        from prefect_cachewatch.metrics.exporter import open_metrics  # noqa: PLC0415

        check_linger(self._linger_s)
        self.exporter = open_metrics(where, job.name, job.cache_dirs, files)
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
