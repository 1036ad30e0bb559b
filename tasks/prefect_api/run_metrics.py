"""Metrics of a flow run, on the machine that runs it: opened before the run changes anything, closed at its end.

A destination that cannot be used refuses the run. A port that another run has taken is only logged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State
from prefect.exceptions import Pause

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.errors import InputError, MetricsPortTaken
from prefect_cachewatch.metrics.outlets import open_metrics
from prefect_cachewatch.metrics.run import RunMetrics
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.watching.outcomes import ending_named, ending_of


class FlowMetrics:
    """The metrics of one run; without a destination it does nothing.

    Args:
        metrics: their destination, on the machine that runs the flow, or None.
        job: the run's job.
        logger: the run's logger.
    """

    def __init__(self, metrics: Metrics | None, job: CacheJob, logger: AnyLogger) -> None:
        self.run: RunMetrics | None = None
        self._metrics, self._job, self._logger = metrics, job, logger

    def open(self, files: Files) -> RunMetrics | None:
        """Open the destination.

        Args:
            files: the helper process that writes a metrics file.

        Returns:
            The metrics; None if none was asked for, or its port is taken.

        Raises:
            InputError: the destination cannot be used.
        """
        if self._metrics is None:
            return None
        target = self._metrics.target
        if isinstance(target, str) and not Path(target).is_absolute():
            raise InputError(
                f"metrics directory {for_terminal(target)} is not an absolute path: write it from / on, "
                "as in file:/var/lib/prometheus/node-exporter"
            )
        try:
            self.run = open_metrics(self._metrics, self._job.name, self._job.cache_dirs, files)
        except MetricsPortTaken as error:
            # Two runs on one host at night: the second one's cache is worth more than its metrics.
            self._logger.warning("no metrics of this run: %s", error.message)
            return None
        self._logger.info("metrics: %s", self.run.where)
        return self.run

    def ended(self, state: State[Any]) -> State[Any]:
        """Take in how the run ended, and close.

        Args:
            state: the run's final state.

        Returns:
            The same state.
        """
        if self.run is not None:
            ending = ending_named(state.name or "") or ending_of("completed" if state.is_completed() else "failed")
            self.run.run_ended(ending.outcome)
            self.run.close()
            if self.run.problem is not None:
                self._logger.warning(self.run.problem)
        return state

    def abandon(self, error: BaseException) -> None:
        """Close at once: the run was cancelled or goes on in another process, or cachewatch itself has failed.

        Args:
            error: the exception that ends it; a cancellation arrives as an exception that is no `Exception`.
        """
        if self.run is not None:
            self.run.run_ended("failed" if isinstance(error, (Exception, Pause)) else "cancelled")
            self.run.close()
