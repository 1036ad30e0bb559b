"""Prefect's log lines made fit to read, and unable to end the run that they tell of."""

from __future__ import annotations

import atexit
import logging

from prefect_cachewatch.common.console import close_console, unblocked

__all__ = ["drop_empty_tracebacks", "outlive_readers"]


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


def outlive_readers() -> None:
    """Let a run go on whose console nobody reads, or nobody any more, as when its worker stands still or was killed.

    A worker reads its flows' output through a pipe. Once that is full, the next log line would wait without end, and
    whoever logs after it, the watch too; without a reader it makes Prefect's console handler, through rich, raise
    SystemExit in the flow's main thread. Log lines reach the API as before.
    """
    names = [None, *(name for name in logging.root.manager.loggerDict if name.startswith("prefect"))]
    for name in names:
        for handler in logging.getLogger(name).handlers:
            console = getattr(handler, "console", None)
            if console is not None and hasattr(console, "file"):
                console.file = unblocked(console.file)
    atexit.unregister(close_console)
    atexit.register(close_console)
