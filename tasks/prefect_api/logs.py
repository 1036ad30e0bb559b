"""Keeps log lines from ending the run that they are about."""

from __future__ import annotations

import atexit
import logging

from prefect_cachewatch.common.console import close_console, unblocked


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
