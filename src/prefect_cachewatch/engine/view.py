"""Base of what shows a run to a person: a reader of its events that shares the terminal with the generator's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_cachewatch.engine.events import Event


class View:
    """Shows nothing; `cli.progress.ProgressLine` is one that does."""

    def begin(self) -> None:
        """Take in that the flow's own work begins: its run is known to the API."""

    def take(self, event: Event, at: float) -> None:
        """Take in an event that was told at a wall time; must not block."""

    def lend(self, stream: int) -> None:
        """Leave the terminal to a copy of this stream of the generator, 1 or 2."""

    def wrote(self, stream: int, data: memoryview) -> None:
        """Take in that the copy has been written."""

    def close(self) -> None:
        """Leave the screen."""

    def end(self) -> None:
        """Take in that the run is over, and only waits for the API."""
