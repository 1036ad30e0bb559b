"""The watch over a process that cachewatch did not start: the same rule and evidence, another end.

It ends the process only if the policy stops it on a stall: not when the watch is cancelled, and not when it fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import ScanError
from prefect_cachewatch.supervise.adopted import AttachedProcess
from prefect_cachewatch.supervise.supervisor import Supervisor, TreeEnd
from prefect_cachewatch.watching.attempt import Watch
from prefect_cachewatch.watching.monitor import GrowthMonitor
from prefect_cachewatch.watching.outcomes import OutcomeName, describe_growth
from prefect_cachewatch.watching.sections import Attachment, ReportedStall
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.stall import Verdict

if TYPE_CHECKING:  # pydantic stays out of a process that watches for hours
    from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy

_LISTING_TIMEOUT_S = 10.0
_CLOCK_ERROR_S = 0.05


class AttachedWatch(Watch):
    """One watch over an adopted process.

    Args:
        site: its directories, not locked.
        job: the process's argv, the directories, and a name for them.
        observed: the process, found and pinned; closed by `finish`.
        stall: when silence is a stall.
        stop: how the process is stopped.
        policy: what a stall leads to: `report` or `stop`.
        on_sample: called by the monitor after each measurement; must not block.
        before_stop: called before the process is stopped, with the verdict.
        on_stall: called with a stall that is only reported; returns its message and the directory of its bundle.
        busy: whether the process has computed or read of late; default unknown, which counts as yes.
    """

    def __init__(
        self,
        site: CacheDirectories,
        job: CacheJob,
        observed: AttachedProcess,
        stall: StallPolicy,
        stop: StopPolicy,
        *,
        policy: str,
        clock: Callable[[], float] = time.monotonic,
        on_sample: Callable[[Watch], None] | None = None,
        before_stop: Callable[[Watch, Verdict], None] | None = None,
        on_stall: Callable[[Watch, Verdict], tuple[str, str | None]] | None = None,
        busy: Callable[[], bool] = lambda: True,
    ) -> None:
        self.adopted, self._policy = observed, policy
        process = observed.process
        self.who = f"process {process.pid}"
        self._running_for_s, self._began_at = process.running_for_s, time.time() - process.running_for_s
        super().__init__(
            site, job, stall, stop, env={}, clock=clock, on_sample=on_sample, before_stop=before_stop,
            on_stall=on_stall, busy=busy, make_supervisor=lambda launch: cast("Supervisor", observed),
        )  # fmt: skip
        self._as_root = True  # whoever it runs as
        self._stopping = False

    @property
    def stalls(self) -> list[ReportedStall]:
        """The stalls that were only reported."""
        return list(self.left_alone.stalls) if self.left_alone is not None else []

    @property
    def attachment(self) -> Attachment:
        """The report's section on the watched process."""
        process = self.adopted.process
        return Attachment(process.pid, process.start_ticks, round(self._running_for_s, 1), self._policy, self.stalls)

    def start(self) -> None:
        """Measure the start, and begin to wait for the process's end.

        Raises:
            CacheDirectoryError: the directories cannot be measured.
        """
        super().start()
        if self._has_written():
            # It is writing already: the window for the first byte is over, and the one for the next byte counts.
            self.state.rule.first_write_s = self.started_s

    def monitor(self) -> Verdict:
        """Measure until the process ends, the watch is ended, or a stall has the process stopped.

        Returns:
            The last verdict: final if the process was stopped because of it.
        """
        try:
            return self._monitor()
        except Exception as error:
            self.error = error
            self.adopted.let_go()
            raise

    def cancel(self, why: str, grace_s: float | None = None) -> None:
        """End the watch and leave the process alone; if it is being stopped already, end the grace period.

        Args:
            why: reason, for the message.
            grace_s: not used here.
        """
        self.cancelled_by = self.cancelled_by or why
        if self._stopping:
            self.adopted.stop(0.0)
        else:
            self.adopted.let_go()

    def _monitor(self) -> Verdict:
        state, gone = self.state, self.adopted.gone
        wait: Callable[[float], bool] = gone.wait
        if self._emptiness is not None:
            wait = self._emptiness.watch_over(wait, lambda: state.growth, cast("Supervisor", self.adopted))
        if self._policy == "report":
            return self._leave_alone(wait)
        verdict = state.run(wait, gone.is_set, self._sampled)
        if verdict.final and not gone.is_set():
            self._stopping = True
            self.stop_for(verdict)
        return verdict

    def _clear_leftovers(self) -> list[str]:
        return []  # the watched process may be one of them, and must not be killed for that

    def _has_written(self) -> bool:
        """Whether the newest file in the directories was changed after the process was started."""
        try:
            newest: list[Any] = self.site.scanner.request("listing", _LISTING_TIMEOUT_S, limit=1)["entries"]
        except ScanError:
            return False
        # A file's time is the clock of some milliseconds ago.
        return bool(newest) and newest[0]["changed_ns"] / 1e9 > self._began_at - _CLOCK_ERROR_S

    def _conclude(self, report: TreeEnd | None, state: GrowthMonitor) -> tuple[OutcomeName, str]:
        growth = describe_growth(state.growth.bytes_present, state.growth.files_present, state.last_path)
        where = f"{growth} in {', '.join(for_terminal(path) for path in state.site.paths)}"
        who, watched = self.who, format_duration(self._clock() - self.started_s)
        if report is None:
            if self.verdict is None:
                return (
                    "failed",
                    f"{_capital(who)} could not be watched to its end ({'; '.join(self.adopted.notes)}); {where}.",
                )
            name, message = super()._conclude(report, state)
            return name, f"{message} {_capital(who)} was left alone."
        if report.why == "released":
            why = self.cancelled_by or "closed"
            return "detached", f"The watch was ended ({why}) after {watched}; {who} goes on; {where}."
        if report.why == "exited" and not report.exit_code and report.signal is None and self._is_empty(state):
            known = (
                "with exit code 0" if report.exit_code == 0 else "with an exit code that is not known to an observer"
            )
            return "nothing_written", f"{self._describe_nothing(state)} after a watch of {watched} {known}."
        if report.why == "exited" and report.exit_code is None and report.signal is None:
            return (
                "ended",
                f"Tensor cache generation ended after a watch of {watched}: {where}. "
                f"The exit code of {who} is not known to an observer.",
            )
        if report.why == "exited" and report.exit_code == 0:
            return "completed", f"Tensor cache generation completed after a watch of {watched}: {where}."
        return super()._conclude(report, state)


def _capital(who: str) -> str:
    return who[:1].upper() + who[1:]
