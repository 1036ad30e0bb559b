"""Makes Prefect's log lines readable, and keeps them from ending the run that they are about."""

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

    Prefect logs a task that returns a Failed state with a traceback, even if there was no exception.
    """
    logger = logging.getLogger("prefect.task_runs")
    if not any(isinstance(found, _NoEmptyTraceback) for found in logger.filters):
        logger.addFilter(_NoEmptyTraceback())


def outlive_readers() -> None:
    """Let a run go on if the reader of its console has stopped or was killed, as a worker may be.

    A worker reads its flows' output through a pipe. Once the pipe is full, the next log line would block without end,
    and with it every thread that logs, the watch's too. Without a reader, Prefect's console handler (through rich)
    raises SystemExit in the flow's main thread. Log lines still reach the API.
    """
    names = [None, *(name for name in logging.root.manager.loggerDict if name.startswith("prefect"))]
    for name in names:
        for handler in logging.getLogger(name).handlers:
            console = getattr(handler, "console", None)
            if console is not None and hasattr(console, "file"):
                console.file = unblocked(console.file)
    atexit.unregister(close_console)
    atexit.register(close_console)
