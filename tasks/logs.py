"""Prefect's log lines made fit to read."""

from __future__ import annotations

import logging

__all__ = ["drop_empty_tracebacks"]


class _NoEmptyTraceback(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[0] is None:
            record.exc_info = None
        return True


def drop_empty_tracebacks() -> None:
    """Keep `NoneType: None` out of the logs of task runs.

    Prefect logs a task that returns a Failed state with a traceback, though there is no exception to trace.
    """
    logger = logging.getLogger("prefect.task_runs")
    if not any(isinstance(found, _NoEmptyTraceback) for found in logger.filters):
        logger.addFilter(_NoEmptyTraceback())
