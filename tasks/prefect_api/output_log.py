"""The generator's output as log lines of its flow run, by the logger `cachewatch.output`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from prefect.logging import get_logger
from prefect.logging.handlers import APILogHandler

from prefect_cachewatch.config.outputs import StreamOutput
from prefect_cachewatch.run.output_lines import LAST_LINES, OutputLines
from prefect_cachewatch.tasks.prefect_api.origin import this_run

OUTPUT_LOGGER = "cachewatch.output"


class OutputLog:
    """Logs the output of one attempt; whoever calls it waits for no server.

    Prefect's handler puts the lines into a queue, and sends what is in it every 2 s. So the reporter calls `tell` where it
    logs anyway: the output costs no further request. Lines that a server does not take are lost there, and fill no memory: the file on the worker has them.

    Args:
        lines: the lines to log.
        stream: when the lines are logged while the generator runs; `auto` means in the run of a deployment.
        is_shown: whether a command copies the output to its terminal; then nothing of it is logged there.
    """

    def __init__(self, lines: OutputLines, stream: StreamOutput, *, is_shown: bool) -> None:
        self._lines = lines
        self._on = stream == "always" or (stream == "auto" and _is_deployed() and not is_shown)
        self._is_shown = is_shown

    def tell(self) -> None:
        """Log what has come since the last call."""
        if self._on:
            self._log(self._lines.look())

    def end(self, *, failed: bool) -> None:
        """Log the rest of an output that has ended; at least its last 50 lines, if the attempt failed."""
        if self._on or failed:
            self._log(self._lines.look(ended=True, most=None if self._on else LAST_LINES))

    def _log(self, lines: Sequence[str]) -> None:
        logger = _logger(to_console=not self._is_shown)
        for line in lines:
            logger.info("%s", line)


def _logger(*, to_console: bool) -> logging.Logger:
    logger = logging.getLogger(OUTPUT_LOGGER)
    if not logger.handlers:
        logger.addHandler(APILogHandler())
    logger.setLevel(get_logger().getEffectiveLevel())
    logger.propagate = to_console
    return logger


def _is_deployed() -> bool:
    run = this_run()
    return run is not None and run.deployment_id is not None
