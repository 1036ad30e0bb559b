"""Prefect's log lines made fit to read, and unable to end the run that they tell of."""

from __future__ import annotations

import logging
import os
import select

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
    """Let a run go on whose console nobody reads any more, as when its worker has been killed.

    A worker reads its flows' output through a pipe. Without a reader the next log line makes Prefect's console
    handler, through rich, raise SystemExit in the flow's main thread: the run ends Crashed, a healthy generator is
    stopped. Log lines reach the API as before.
    """
    names = [None, *(name for name in logging.root.manager.loggerDict if name.startswith("prefect"))]
    for name in names:
        for handler in logging.getLogger(name).handlers:
            console = getattr(handler, "console", None)
            if console is not None and hasattr(console, "on_broken_pipe"):
                console.on_broken_pipe = _leave_unread_streams


def _leave_unread_streams() -> None:
    """Point those of standard output and error at nothing that are pipes without a reader."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            poll = select.poll()
            poll.register(stream, select.POLLOUT)
            if any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0)):
                os.dup2(nothing, stream)
    finally:
        os.close(nothing)
