"""Waits for a server to be ready, in a thread of its own that nobody waits for.

It looks again and again and says so once; an address that hangs delays neither measurements nor verdicts.
What follows from it, the hand-over or the stop, is `watching.attempt`'s.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError, ScanError
from prefect_cachewatch.watching.servers.checks import (
    FileCheck,
    HttpCheck,
    LogSearch,
    ReadyCheck,
    describe_wanted,
    make_check,
)

if TYPE_CHECKING:  # pydantic stays out of a process that watches for hours
    from prefect_cachewatch.config import ReadyServer

__all__ = ["ReadyWatch"]

_LAST_LOOK_S = 2.0


class ReadyWatch:
    """Looks for one attempt's readiness, and for the mark of its warm-up if the job names one.

    Args:
        ready: what to wait for.
        first_dir: first cache directory, resolved.
        clock: monotonic seconds.
        check: looks; default by the kind of `ready`.

    Example:
        >>> from prefect_cachewatch.config import ReadyOnLog
        >>> waiting = ReadyWatch(ReadyOnLog(pattern="startup complete"), "/mnt/cache")
        >>> waiting.prepare(); waiting.feed(memoryview(b"startup complete")); waiting.look()
        True
        >>> waiting.close()
    """

    def __init__(
        self,
        ready: ReadyServer,
        first_dir: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        check: ReadyCheck | None = None,
    ) -> None:
        self.ready = ready
        self.ready_s: float | None = None
        """Monotonic time at which it was seen to be ready."""
        self.mark_s: float | None = None
        """Monotonic time at which the mark of its warm-up was seen."""
        self.last_answer: str | None = None
        self._clock = clock
        self._check = check or make_check(ready, first_dir)
        self._mark_log = LogSearch(ready.warmup_begins_log) if ready.warmup_begins_log is not None else None
        self._mark_file = (
            FileCheck([os.path.join(first_dir, ready.warmup_begins_file)], ready.timeout_s)
            if ready.warmup_begins_file is not None
            else None
        )
        self._on_mark: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Look before the start: markers that are there already are remembered, and a server that is, is refused.

        Raises:
            InputError: an address is ready before anything was started, or a marker cannot be looked for.
        """
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def start(self, on_ready: Callable[[], None], on_mark: Callable[[], None] = lambda: None) -> None:
        """Begin to look.

        Args:
            on_ready: called once, in this watch's thread.
            on_mark: called once when the mark of its warm-up has been seen, in this watch's thread.
        """
        self._on_mark = on_mark
        thread = threading.Thread(target=self._run, args=(on_ready,), name="cachewatch-ready", daemon=True)
        thread.start()
        self._thread = thread  # no sooner: `stop`, which a signal handler may call here, joins what has been started

    def feed(self, data: memoryview) -> None:
        """Take in what the generator printed."""
        for search in (self._check, self._mark_log):
            if isinstance(search, LogSearch) and not search.found:
                search.feed(data)
                if search.found:
                    self._wake.set()

    def look(self) -> bool:
        """Look once, for the mark and for readiness; returns whether it is ready."""
        if self.mark_s is None and self._sees_mark():
            self.mark_s = self._clock()
            self._on_mark()
        answer = self._check.look()
        if answer is not None:
            if not self._stop.is_set():
                self.last_answer = answer
            return False
        if self.ready_s is None:
            self.ready_s = self._clock()
        return True

    def look_last(self) -> bool:
        """Look once more after the generator's end, where that says anything: its log and its marker outlive it.

        Returns:
            Whether it was ready.
        """
        self.stop()
        if self.ready_s is None and isinstance(self._check, FileCheck | LogSearch):
            return self.look()
        return self.ready_s is not None

    def describe_missing(self) -> str:
        """Say what did not come, as the end of a sentence."""
        what, never = describe_wanted(self.ready)
        if problems := self.problems:
            return f"{what} {never} ({problems[0]})"
        if self.ready.kind == "log" or self.last_answer is None:
            return f"{what} {never}"
        last = self.last_answer if self.ready.kind == "file" else f"last answer: {self.last_answer}"
        return f"{what} {never} ({for_terminal(last, 200)})"

    @property
    def problems(self) -> list[str]:
        """What could not be looked at, one sentence each."""
        checks = (self._check, self._mark_log)
        return [check.problem for check in checks if isinstance(check, LogSearch | HttpCheck) and check.problem]

    def stop(self, timeout_s: float = _LAST_LOOK_S) -> None:
        """Stop looking; a look that hangs is left behind, and so is what follows from one if it takes too long.

        Args:
            timeout_s: the longest wait.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Stop looking, and end the helpers."""
        self.stop()
        if self._mark_log is not None:
            self._mark_log.close()
        if self._thread is None or not self._thread.is_alive():
            for check in (self._check, self._mark_file):
                if check is not None:
                    check.close()

    def _prepare(self) -> None:
        for search in (self._check, self._mark_log):
            if isinstance(search, LogSearch | HttpCheck):
                try:
                    search.begin()
                except OSError as error:
                    raise InputError(f"the process that searches for a pattern cannot be started: {error}") from error
        for check in (self._check, self._mark_file):
            if isinstance(check, FileCheck):
                try:
                    check.begin()
                except ScanError as error:
                    raise InputError(f"the marker file cannot be looked for: {error.message}") from error
        if isinstance(self._check, FileCheck | LogSearch):
            return
        if self._check.look() is None:
            what, _ = describe_wanted(self.ready)
            raise InputError(
                f"{what} is ready before the generator was started, so another server is running there: stop it "
                "(cachewatch stop --list shows those that were handed over), or give this one another port"
            )

    def _run(self, on_ready: Callable[[], None]) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            if self.look():
                if not self._stop.is_set():
                    on_ready()
                return
            self._wake.wait(self.ready.check_every_s)

    def _sees_mark(self) -> bool:
        if self._mark_log is not None and self._mark_log.found:
            return True
        return self._mark_file is not None and self._mark_file.look() is None
