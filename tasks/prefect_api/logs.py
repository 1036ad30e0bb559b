"""Log lines of a run: they do not end the run that they are about; and the generator's output among them."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Sequence

from prefect.logging import get_logger
from prefect.logging.handlers import APILogHandler

from prefect_cachewatch.common.console import close_console, unblocked
from prefect_cachewatch.config.outputs import StreamOutput
from prefect_cachewatch.tasks.prefect_api.origin import this_run

OUTPUT_LOGGER = "cachewatch.output"


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


def streams_output(asked: StreamOutput, *, is_shown: bool) -> bool:
    """Say whether the output is logged while the generator runs.

    Args:
        asked: `auto` means in the run of a deployment.
        is_shown: whether a command copies the output to its terminal.
    """
    run = this_run()
    is_deployed = run is not None and run.deployment_id is not None
    return asked == "always" or (asked == "auto" and is_deployed and not is_shown)


def log_output(lines: Sequence[str], *, is_shown: bool) -> None:
    """Log lines of the generator's output; whoever calls it waits for no server.

    Prefect's handler puts the lines into a queue, and sends what is in it every 2 s: the output costs no further request.
    Lines that a server does not take are lost there, and fill no memory: the file on the worker has them.

    Args:
        lines: the lines, without secrets.
        is_shown: whether a command copies the output to its terminal; then nothing of it is logged there.
    """
    logger = logging.getLogger(OUTPUT_LOGGER)
    if not logger.handlers:
        logger.addHandler(APILogHandler())
    logger.setLevel(get_logger().getEffectiveLevel())
    logger.propagate = not is_shown
    for line in lines:
        logger.info("%s", line)
