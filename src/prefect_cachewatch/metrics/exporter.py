"""A run's metrics and their destination, as the run holds them.

A failure after `open_metrics` is kept as `problem`, for a log line, and never changes how the run goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.metrics.destination import HttpAddress, parse_destination
from prefect_cachewatch.metrics.outlets import Endpoint, Textfile, check_directory
from prefect_cachewatch.metrics.run import RunMetrics
from prefect_cachewatch.watching.attempt import Outcome, Watch


class MetricsExporter(Closing):
    """A run's metrics and their way to Prometheus; made by `open_metrics`.

    Args:
        run: the values.
        outlet: their destination.
    """

    def __init__(self, run: RunMetrics, outlet: Endpoint | Textfile) -> None:
        self.run = run
        self._outlet = outlet
        self._problem: str | None = None
        self._closed = False

    @property
    def where(self) -> str:
        """The URL, or the file."""
        return self._outlet.where

    @property
    def problem(self) -> str | None:
        """What went wrong, in one sentence; None without a fault."""
        return self._problem or self._outlet.problem

    def attempt_began(self, number: int, expected_bytes: int | None) -> None:
        """See `RunMetrics.attempt_began`."""
        self._safely(lambda: self.run.attempt_began(number, expected_bytes))

    def sampled(self, watch: Watch) -> None:
        """See `RunMetrics.sampled`; the monitor calls this, and an error must not end it."""
        self._safely(lambda: self.run.sampled(watch))

    def attempt_ended(self, outcome: Outcome, cause: str | None) -> None:
        """See `RunMetrics.attempt_ended`."""
        self._safely(lambda: self.run.attempt_ended(outcome, cause))

    @contextmanager
    def waiting(self, storage: str) -> Iterator[None]:
        """See `RunMetrics.waiting`."""
        self._safely(lambda: self.run.wait_began(storage))
        try:
            yield
        finally:
            self._safely(self.run.wait_ended)

    def run_ended(self, outcome: str) -> None:
        """See `RunMetrics.run_ended`."""
        self._safely(lambda: self.run.run_ended(outcome))

    def close(self) -> None:
        """Close the outlet; a run whose end was not reported has failed, or was refused before it began."""
        if not self._closed:
            self._closed = True
            if not self.run.ended:
                self.run_ended("failed" if self.run.began else "refused")
            self._safely(self._outlet.close)

    def _safely(self, take: Callable[[], None]) -> None:
        try:
            take()
            self._outlet.changed()
        except Exception as error:  # noqa: BLE001 - metrics must not harm the generation
            self._problem = self._problem or f"metrics are incomplete: {type(error).__name__}: {error}"


def open_metrics(where: str, name: str, cache_dirs: Sequence[Path] = (), files: Files | None = None) -> MetricsExporter:
    """Open the destination of a run's metrics.

    Args:
        where: as `parse_destination` reads it.
        name: name of the job.
        cache_dirs: watched directories; no metrics file may be in them.
        files: the helper process that writes a metrics file; default this process.

    Returns:
        The exporter; close it when the run has ended.

    Raises:
        MetricsPortTaken: another process listens there.
        InputError: the destination cannot be used.

    Example:
        >>> with open_metrics("127.0.0.1:0", "llama") as exporter:
        ...     exporter.where.startswith("http://127.0.0.1:")
        True
    """
    target, run = parse_destination(where), RunMetrics(name)
    if isinstance(target, HttpAddress):
        return MetricsExporter(run, Endpoint(target, run))
    return MetricsExporter(run, Textfile(target, run, cache_dirs, files or InPlace()))


def check_destination(where: str, cache_dirs: Sequence[Path] = (), files: Files | None = None) -> None:
    """Check that `open_metrics` would work, and change nothing.

    Args:
        where: as `parse_destination` reads it.
        cache_dirs: watched directories; no metrics file may be in them.
        files: the helper process that checks a directory; default this process.

    Raises:
        InputError: as `open_metrics`.
    """
    target = parse_destination(where)
    if isinstance(target, HttpAddress):
        Endpoint(target, RunMetrics("")).close()
    else:
        check_directory(target, cache_dirs, files or InPlace())
