"""Where an engine copies its generator's output: straight to ours, or through pipes where a view shares the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_cachewatch.cli.progress import ProgressLine
    from prefect_cachewatch.supervise.output import OutputPump


class CopiedOutput:
    """The two streams that an engine writes to.

    Args:
        view: leaves the screen for each piece of output, if it is a live one.
    """

    def __init__(self, view: ProgressLine) -> None:
        self.streams = (1, 2)
        """Their descriptors."""
        self.passed: tuple[int, ...] = ()
        """Those of them that an engine does not inherit by itself."""
        self._pump: OutputPump | None = None
        if view.mode == "live":
            from prefect_cachewatch.supervise.output import OutputPump  # noqa: PLC0415 - for a terminal alone

            self._pump = OutputPump(pass_to=(1, 2), screen=view)
            self.streams = self.passed = self._pump.open_pipes()
            self._pump.start()

    def hand_over(self) -> None:
        """Close our ends: from now on the engine alone has them."""
        for fd in self.passed:
            os.close(fd)
        self.passed = ()

    def finish(self) -> None:
        """Copy what is left of an output that has ended."""
        self.hand_over()
        if self._pump is not None:
            self._pump.finish()
            self._pump = None
