"""Makes Prefect's log lines readable, and keeps them from ending the run that they are about."""

from __future__ import annotations

import atexit
import logging
import re
from collections import deque
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State

from prefect_cachewatch.common.console import close_console, unblocked
from prefect_cachewatch.tasks.prefect_api.origin import this_run

_ENGINE_EXITED = "Engine execution exited with unexpected exception"
_FINISHED = re.compile(r"Finished in state \w+")
_SAID_MAX = 20
_RUNS_MAX = 100


class _TaskLines(logging.Filter):
    """Takes away what Prefect logs about a task that returns a Failed state: one line too many, `NoneType: None`."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[0] is None:
            record.exc_info = None
            # The next line, `Finished in state ...`, says the same.
            return (
                not record.getMessage().startswith("Task run failed with state: ") or " - Retr" in record.getMessage()
            )
        return True


class _FlowLines(logging.Filter):
    """Takes away repetitions from the logs of flow runs, and tracebacks of ends that their flow chose."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, deque[str]] = {}
        self._chosen: set[str] = set()

    def begin(self, run_id: str) -> None:
        """Forget what was said in an earlier pass of this run."""
        while len(self._said) >= _RUNS_MAX:
            oldest = next(iter(self._said))
            del self._said[oldest]
            self._chosen.discard(oldest)
        self._said[run_id] = deque(maxlen=_SAID_MAX)
        self._chosen.discard(run_id)

    def knows(self, run_id: str) -> bool:
        """Say whether this run has begun."""
        return run_id in self._said

    def choose(self, run_id: str) -> None:
        """Note that the flow itself has chosen how this run ends."""
        self._chosen.add(run_id)

    def was_said(self, run_id: str, text: str) -> bool:
        """Say whether one of the run's last lines was this text."""
        return text in self._said.get(run_id, ())

    def filter(self, record: logging.LogRecord) -> bool:
        run_id = str(getattr(record, "flow_run_id", ""))
        if not self.knows(run_id):
            return True
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a line with wrong arguments is reported by logging itself
            return True
        if record.exc_info and record.exc_info[0] is not None and run_id in self._chosen:
            if text.startswith(_ENGINE_EXITED):
                return False  # The engine raises for each Failed state that a flow returns.
            if text.startswith("Encountered exception during execution"):
                record.exc_info = None
        if (found := _FINISHED.match(text)) and any(repr(said) in text for said in tuple(self._said.get(run_id, ()))):
            record.msg, record.args = found[0], ()
        if (last := self._said.get(run_id)) is not None:  # another thread may have dropped the oldest
            last.append(text)
        return True


def tidy_run_logs() -> None:
    """Take away from this run's log what Prefect says twice; called where a flow begins.

    Prefect logs a returned Failed state of a task twice, and repeats the message of a flow's final state. If a process
    runs nothing but the flow, as a worker's does, a returned Failed state is logged with a traceback of Prefect's own
    frames. Exceptions that no flow of ours has chosen keep theirs.
    """
    for name, found in (("prefect.task_runs", _task_lines), ("prefect.flow_runs", _flow_lines)):
        logging.getLogger(name).addFilter(found)  # once: the same filter is not added again
    if (run_id := _this_run()) is not None:
        _flow_lines.begin(run_id)


def say_end(state: State[Any]) -> State[Any]:
    """Log the message of a final state that this run's flow has chosen, unless it was said.

    Args:
        state: what the flow is about to return.

    Returns:
        The same state.
    """
    if (run_id := _this_run()) is None:
        return state
    if not _flow_lines.knows(run_id):
        tidy_run_logs()
    _flow_lines.choose(run_id)
    if state.is_failed() and state.message and not _flow_lines.was_said(run_id, state.message):
        get_run_logger().error("%s", state.message)
    return state


def _this_run() -> str | None:
    run = this_run()
    return str(run.id) if run is not None else None


_task_lines, _flow_lines = _TaskLines(), _FlowLines()


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
