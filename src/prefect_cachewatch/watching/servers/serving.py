"""An attempt whose generator is a server: detects its readiness, and decides what follows.

A `Watch` has one of these for a job that is not done when it exits. The first event decides: readiness,
a stall's verdict or a cancellation (`ready_s` against `claim_end`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.supervise.proc import signal_name
from prefect_cachewatch.supervise.supervisor import Supervisor, TreeEnd
from prefect_cachewatch.watching.sections import Readiness
from prefect_cachewatch.watching.servers.checks import ReadyCheck, make_check
from prefect_cachewatch.watching.servers.warmup import PhaseChange, Warmup

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob, ReadyServer, StallPolicy
    from prefect_cachewatch.watching.servers.handover import HandedOver

_HAND_OVER_S = 45.0
_LAST_LOOK_S = 2.0
_LOOK_EVERY_S = 1.0


class ServerReadiness:
    """The server's side of an attempt.

    Args:
        job: a job with a readiness other than its exit.
        stall: the windows.
        first_dir: first cache directory, resolved.
        clock: monotonic seconds.
        check: looks for the readiness; default by the job.

    Example:
        >>> from prefect_cachewatch.config import CacheJob, ReadyOnLog, StallPolicy
        >>> job = CacheJob(name="x", command=["serve"], cache_dirs=["/mnt/x"], ready=ReadyOnLog(pattern="complete"))
        >>> serving = ServerReadiness(job, StallPolicy(), "/mnt/x")
        >>> serving.claim_end(), serving.unready
        (True, "a line that matches 'complete' was never printed")
    """

    def __init__(
        self,
        job: CacheJob,
        stall: StallPolicy,
        first_dir: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        check: ReadyCheck | None = None,
    ) -> None:
        assert job.ready.kind != "exit"
        self.ready: ReadyServer = job.ready
        self.ready_s: float | None = None
        """Monotonic time at which it was ready, if no other end had been decided before."""
        self.handed_over: HandedOver | None = None
        self._check = check or make_check(self.ready, first_dir)
        self._job, self._stall, self._clock = job, stall, clock
        self._last_answer: str | None = None
        self._kept_because: str | None = None
        self._forestalled = self._finished = False
        self._lock = threading.RLock()  # reentrant: a signal handler cancels in the very thread that may hold it
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def unready(self) -> str:
        """What was waited for and has not come, as the end of a sentence."""
        check, last = self._check, self._last_answer
        if check.problem is not None:
            return f"{check.what} {check.never} ({check.problem})"
        if self.ready.kind == "log" or last is None:
            return f"{check.what} {check.never}"
        shown = last if self.ready.kind == "file" else f"last answer: {last}"
        return f"{check.what} {check.never} ({for_terminal(shown, 200)})"

    @property
    def waiting_for(self) -> str:
        """What is waited for, and what was seen last."""
        return f"{self._check.what} ({self._last_answer})" if self._last_answer else self._check.what

    @property
    def problem(self) -> str | None:
        """Why its output was not searched to its end; None if it was, or is not searched."""
        return self._check.problem

    def warmup(self, present_bytes: int) -> Warmup:
        """Make the rule of its warm-up.

        Args:
            present_bytes: bytes in the cache directories before the start.

        Returns:
            The rule.
        """
        return Warmup(
            self._stall.warmup_within_s,
            expected_bytes=self._job.expected_bytes,
            present_at_start=present_bytes,
        )

    def prepare(self) -> None:
        """Look before the start: note a marker that exists already, and refuse a server that is ready already.

        Raises:
            InputError: an address is ready before the generator was started, or a marker cannot be looked for.
        """
        try:
            self._check.begin()
        except BaseException:
            self._check.close()
            raise

    def start(self, supervisor: Supervisor, hand_over: Callable[[str], HandedOver | None]) -> None:
        """Begin to look whether it is ready.

        Args:
            supervisor: runs the server.
            hand_over: releases the server; gets the sign of readiness.
        """
        thread = threading.Thread(target=self._run, args=(supervisor, hand_over), name="cachewatch-ready", daemon=True)
        thread.start()
        self._thread = thread  # not earlier: `cancel`, in a signal handler here, joins a started thread only

    def feed(self, data: memoryview) -> None:
        """Take in what the generator printed."""
        if self._check.feed(data):
            self._wake.set()

    def claim_end(self) -> bool:
        """Decide on another end than readiness; false if it has been ready before."""
        with self._lock:
            self._forestalled = self._forestalled or self.ready_s is None
        if self._forestalled:
            self._stop_looking(0)  # its answers while it is being stopped do not count
        return self._forestalled

    def cancel(self) -> None:
        """Stop looking, at the caller's request; returns at once."""
        self.claim_end()
        self._stop_looking(0)

    def settle(self) -> None:
        """Stop looking, and wait for a hand-over that is under way."""
        self._stop_looking(_HAND_OVER_S if self.ready_s is not None else _LAST_LOOK_S)

    def finish(self, report: TreeEnd | None) -> None:
        """Take in how it ended, and release what looks; call after all its output has been read."""
        if self._finished:
            return
        self._finished = True
        self._stop_looking(_LAST_LOOK_S)
        ended_well = report is not None and report.why == "exited" and report.exit_code == 0
        # A log line or a marker remains after the process that wrote it just before its end.
        if ended_well and self.ready_s is None and self.ready.then == "stop" and self._check.remains and self._look():
            self.ready_s = self._clock()
        if self._thread is None or not self._thread.is_alive():
            self._check.close()

    def ends_well(self, report: TreeEnd) -> bool:
        """Say whether the end is the intended one: handed over, or stopped or ended by itself once it was ready."""
        if report.why == "released":
            return True
        if self.ready_s is None or self._kept_because is not None or self.ready.then != "stop":
            return False
        return report.why == "stop" or (report.why == "exited" and report.exit_code == 0)

    def conclude(
        self, report: TreeEnd | None, where: str, elapsed_s: float
    ) -> tuple[Literal["completed", "failed"], str] | None:
        """Describe the end, if readiness had a part in it.

        Args:
            report: the supervisor's report.
            where: contents of the cache directories, in words.
            elapsed_s: seconds since the start.

        Returns:
            Outcome and message; None if the end is described as for any other generator.
        """
        why = report.why if report is not None else ""
        elapsed = format_duration(elapsed_s)
        if why == "released" and self.handed_over is not None:
            record = self.handed_over.record
            return "completed", (
                f"Tensor cache server is ready after {elapsed} ({for_terminal(record.ready)}): {where}. It was left running "
                f"as {record.who}; stop it with `{record.stop_command}`."
            )
        if self.ready_s is None:
            if report is not None and why == "exited":
                return (
                    "failed",
                    f"Tensor cache generation failed: the generator {_ended(report)} before it was ready; {where}.",
                )
            return None
        if self._kept_because is not None:
            return "failed", (
                f"Tensor cache generation failed: the server was ready, could not be handed over ({self._kept_because}) "
                f"and was stopped; {where}."
            )
        if report is not None and self.ends_well(report):
            return "completed", f"Tensor cache generation completed in {elapsed}, when its server was ready: {where}."
        if report is not None and why == "exited":
            return (
                "failed",
                f"Tensor cache generation failed: the server was ready, and then {_ended(report)}; {where}.",
            )
        return None

    def result(self, started_s: float, phases: list[PhaseChange]) -> Readiness:
        """Return the report's section.

        Args:
            started_s: monotonic time of the start.
            phases: phases of the stall rule.
        """
        record = self.handed_over.record if self.handed_over else None
        return Readiness(
            kind=self._job.ready.kind,
            what=self._check.what,
            then=self.ready.then,
            at_s=None if self.ready_s is None else round(self.ready_s - started_s, 3),
            left_running=record is not None,
            pid=record.pid if record else None,
            container=record.container_id if record else None,
            how_to_stop=record.stop_command if record else None,
            record=str(self.handed_over.path) if self.handed_over else None,
            log=record.log if record else None,
            last_answer=self._last_answer,
            phases=[replace(change, at_s=round(change.at_s, 3)) for change in phases],
        )

    def _stop_looking(self, timeout_s: float) -> None:
        """Look no more; a look that hangs is left behind, and so is a hand-over that takes too long."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self, supervisor: Supervisor, hand_over: Callable[[str], HandedOver | None]) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            if self._look():
                if not self._stop.is_set():
                    self._became_ready(supervisor, hand_over)
                return
            self._wake.wait(_LOOK_EVERY_S)

    def _look(self) -> bool:
        answer = self._check.look()
        if answer is not None and not self._stop.is_set():
            self._last_answer = answer
        return answer is None

    def _became_ready(self, supervisor: Supervisor, hand_over: Callable[[str], HandedOver | None]) -> None:
        with self._lock:
            if self._forestalled or supervisor.gone.is_set():
                return
            self.ready_s = self._clock()
        if self.ready.then == "stop":
            supervisor.stop()
            return
        try:
            self.handed_over = hand_over(self._check.what)
        except Exception as error:  # noqa: BLE001 - a server without a guard or a record must not go on
            self._kept_because = (
                error.message if isinstance(error, CachewatchError) else f"{type(error).__name__}: {error}"
            )
            supervisor.stop()


def _ended(report: TreeEnd) -> str:
    if report.signal is not None:
        return f"was killed by {signal_name(report.signal)}"
    return f"ended with exit code {report.exit_code}"
