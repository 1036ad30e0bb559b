"""One guarded attempt: the generator under guard, the monitor beside it, joined into an `Outcome`.

`Watch` is the object that both sides share: one thread waits in `supervise` until the tree is
gone, another measures in `monitor` and has the tree stopped. `run_watch` does both for callers
that have no tasks of their own. It knows no Prefect and prints nothing.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.errors import GuardError, InputError, ScanError
from prefect_cachewatch.measure.ledger import Growth
from prefect_cachewatch.messages import describe_growth, describe_stall, signal_name
from prefect_cachewatch.monitor import GrowthMonitor, Sample
from prefect_cachewatch.output import OutputPump
from prefect_cachewatch.site import CacheSite
from prefect_cachewatch.stall import StallRule, Suspicion, Verdict
from prefect_cachewatch.supervise.client import GuardClient, StopReport
from prefect_cachewatch.supervise.janitor import clear_leftovers, describe_leftovers
from prefect_cachewatch.text import for_terminal
from prefect_cachewatch.units import format_duration

__all__ = ["Outcome", "Watch", "run_watch"]

OutcomeName = Literal["completed", "failed", "stalled", "deadline_exceeded", "cancelled"]

_LISTING_TIMEOUT_S = 10.0
_GUARD_WAIT_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended, with all that was measured; times in seconds since its start."""

    name: OutcomeName
    kind: str | None
    message: str
    exit_code: int | None
    signal: int | None
    started_at: float
    duration_s: float
    growth: Growth
    first_write_s: float | None
    last_growth_s: float | None
    longest_pause_s: float
    suspicions: tuple[Suspicion, ...]
    samples: tuple[Sample, ...]
    stop: StopReport | None
    decided_after_last_growth_s: float | None
    window_s: float | None
    pause_s: float | None
    listing: Mapping[str, Any] | None
    grown_since_scan: int
    paths: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def was_stopped(self) -> bool:
        """Whether cachewatch ended the generator, rather than the generator itself."""
        return self.name in ("stalled", "deadline_exceeded", "cancelled")


class Watch:
    """One attempt to generate a cache.

    Args:
        site: the checked and locked directories.
        job: what to run.
        stall: when silence is a stall.
        stop: how the tree is stopped.
        env: the generator's whole environment; default this process's with the job's on top.
        output: where its output goes; default memory only.
        stdin_fd: its standard input; default /dev/null.
        clock: monotonic time in seconds.
        on_sample: called by the monitor after each measurement; must not block.
        before_stop: called once when a stall was decided and before the tree is stopped, with the
            watch and the verdict; bounded by the caller.
    """

    def __init__(
        self,
        site: CacheSite,
        job: CacheJob,
        stall: StallPolicy,
        stop: StopPolicy,
        *,
        env: Mapping[str, str] | None = None,
        output: OutputPump | None = None,
        stdin_fd: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_sample: Callable[[Watch], None] | None = None,
        before_stop: Callable[[Watch, Verdict], None] | None = None,
    ) -> None:
        self.site, self.job, self.stall, self.stop_policy = site, job, stall, stop
        self.output = output or OutputPump()
        self.run_id = uuid.uuid4().hex
        self.verdict: Verdict | None = None
        self.decided_s: float | None = None
        self.cancelled_by: str | None = None
        self.guard: GuardClient | None = None
        self.monitor_state: GrowthMonitor | None = None
        self.started_at = 0.0
        self.started_s = 0.0
        self.error: Exception | None = None
        self._env = dict(os.environ) | job.env if env is None else dict(env)
        self._stdin_fd = stdin_fd
        self._clock = clock
        self._on_sample = on_sample
        self._before_stop = before_stop
        self._cancel_grace_s: float | None = None

    @property
    def state(self) -> GrowthMonitor:
        """The monitor's state: last sample, rule, notes."""
        assert self.monitor_state is not None, "start() comes first"
        return self.monitor_state

    def start(self) -> None:
        """Measure the start, then start the generator.

        Raises:
            CacheDirectoryError: the directories cannot be measured.
            CommandError: the command cannot be executed.
            GuardError: the guard did not start.
        """
        try:
            cwd = str(self.job.cwd) if self.job.cwd else os.getcwd()
        except FileNotFoundError:
            raise InputError("the present working directory has been removed: change to another one") from None
        # Whoever is left of a dead run may be writing into these very directories.
        notes = describe_leftovers(clear_leftovers())
        baseline = self.site.begin()
        out_fd, error_fd = self.output.open_pipes()
        # A number of its own: the guard's 0 is /dev/null, whatever ours is.
        stdin_fd = (
            os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if self._stdin_fd is None
            else fcntl.fcntl(self._stdin_fd, fcntl.F_DUPFD_CLOEXEC, 3)
        )
        self.guard = GuardClient(
            self.job.command,
            env=self._env,
            cwd=cwd,
            stdio=(stdin_fd, out_fd, error_fd),
            grace_s=self.stop_policy.grace_s,
            cookie=self.run_id,
            wait_for=self.job.wait_for,
            hold=self.site.lock_fds,
        )
        try:
            self.guard.start()
        finally:
            for fd in (stdin_fd, out_fd, error_fd):
                os.close(fd)
            self.output.start()
            if self.guard.pid is None:
                self.output.finish()
        if self.cancelled_by is not None:  # while it was being started
            self.guard.stop(self._cancel_grace_s)
        self.started_at, self.started_s = time.time(), self._clock()
        rule = StallRule(self.stall, self.started_s)
        self.monitor_state = GrowthMonitor(self.site, rule, self._clock, baseline)
        self.monitor_state.notes += [*notes, *self.guard.notes]

    def supervise(self) -> StopReport:
        """Wait until the generator's tree is gone; safe to interrupt and to call again.

        Returns:
            How it ended.

        Raises:
            GuardError: the guards died and what is left could not be found out.
        """
        guard = self._running_guard()
        while (report := guard.wait(_GUARD_WAIT_S)) is None:
            if guard.gone.is_set():
                raise GuardError("the guard processes ended without a report: look for leftovers of the command")
        return report

    def monitor(self) -> Verdict:
        """Measure until the generator ends or a verdict falls; on a verdict, have the tree stopped.

        Returns:
            The last verdict: final if the tree was stopped because of it.
        """
        guard, state = self._running_guard(), self.state
        try:
            verdict = state.run(guard.gone.wait, guard.gone.is_set, self._sampled)
            if verdict.final and not guard.gone.is_set():
                self.verdict, self.decided_s = verdict, self._clock()
                if self._before_stop is not None:
                    self._before_stop(self, verdict)
                guard.stop()
            return verdict
        except Exception as error:
            # A monitor that fails must not leave a generator that nobody watches.
            self.error = error
            guard.stop()
            raise

    def cancel(self, why: str, grace_s: float | None = None) -> None:
        """Have the tree stopped because somebody asked for it; returns at once.

        Args:
            why: for the message, for example `SIGINT` or `the flow run was cancelled`.
            grace_s: overrides the stop policy's grace period.
        """
        self.cancelled_by, self._cancel_grace_s = self.cancelled_by or why, grace_s
        if self.guard is not None:
            self.guard.stop(grace_s)

    def finish(self, listing_limit: int = 1000) -> Outcome:
        """Collect what there is to say after `supervise` and `monitor` have ended.

        Args:
            listing_limit: the most files listed one by one.

        Returns:
            The outcome.
        """
        guard, state = self._running_guard(), self.state
        self.output.finish()
        report = guard.report
        guard.close()
        duration_s = self._clock() - self.started_s
        listing = None
        if not self.site.scanner.pending:
            try:
                listing = self.site.scanner.request("listing", _LISTING_TIMEOUT_S, limit=listing_limit)
            except ScanError as error:
                state.notes.append(f"no listing: {error.message}")
        else:
            state.notes.append("no listing: the cache directory does not answer")
        name, message = self._conclude(report, state)
        rule, started = state.rule, self.started_s
        decided = None
        if self.decided_s is not None:
            decided = self.decided_s - (rule.last_growth_s if rule.last_growth_s is not None else started)
        if self.output.log_error:
            state.notes.append(f"the log is incomplete: {self.output.log_error}")
        verdict = self.verdict
        return Outcome(
            name=name,
            kind=verdict.kind if verdict and name == "stalled" else None,
            message=message,
            exit_code=report.exit_code if report else None,
            signal=report.signal if report else None,
            started_at=self.started_at,
            duration_s=duration_s,
            growth=state.growth,
            first_write_s=None if rule.first_write_s is None else rule.first_write_s - started,
            last_growth_s=None if rule.last_growth_s is None else rule.last_growth_s - started,
            longest_pause_s=rule.longest_pause_s,
            suspicions=tuple(rule.suspicions),
            samples=tuple(state.samples),
            stop=report,
            decided_after_last_growth_s=decided,
            window_s=verdict.window_s if verdict and name == "stalled" else None,
            pause_s=verdict.pause_s if verdict and name == "stalled" else None,
            listing=listing,
            grown_since_scan=state.window_scan(self.stall.stall_after_s),
            paths=tuple(self.site.paths),
            notes=tuple(state.notes),
        )

    def _sampled(self) -> None:
        if self._on_sample is not None:
            self._on_sample(self)

    def _running_guard(self) -> GuardClient:
        assert self.guard is not None, "start() comes first"
        return self.guard

    def _conclude(self, report: StopReport | None, state: GrowthMonitor) -> tuple[OutcomeName, str]:
        growth = describe_growth(state.growth.bytes_present, state.growth.files_present, state.last_path)
        where = f"{growth} in {', '.join(for_terminal(path) for path in state.site.paths)}"
        ended_itself = report is not None and report.why == "exited"
        if self.verdict is not None and not ended_itself:
            message = describe_stall(
                self.verdict, self.site.paths, growth, problem=state.problem, touched=state.touched_in_pause
            )
            leader = self.guard.leader_exit if self.guard else None
            if leader and leader[0] == 0:
                message += (
                    " The command itself had ended with exit code 0; processes it left behind were still running."
                )
            if report and report.survivors:
                pids = ", ".join(str(who["pid"]) for who in report.survivors[:10])
                message += f" Could not be killed: pid {pids}."
            return ("deadline_exceeded" if self.verdict.status == "deadline_exceeded" else "stalled"), message
        if self.cancelled_by and not ended_itself:
            return "cancelled", f"Tensor cache generation was cancelled ({self.cancelled_by}); {where}."
        if report is None or not ended_itself:
            why = {"guard_signalled": "its guard got a signal"}.get(
                report.why if report else "", "its guard process died"
            )
            return "failed", f"Tensor cache generation failed: it was stopped because {why}; {where}."
        if report.exit_code == 0:
            how = "" if state.growth.bytes_written or state.growth.allocated_written else "; nothing new was written"
            elapsed = format_duration(self._clock() - self.started_s)
            return "completed", f"Tensor cache generation completed in {elapsed}: {where}{how}."
        what = (
            f"ended with exit code {report.exit_code}"
            if report.signal is None
            else f"was killed by {signal_name(report.signal)}"
        )
        return "failed", f"Tensor cache generation failed: the generator {what}; {where}."


def run_watch(watch: Watch) -> Outcome:
    """Run one attempt from start to outcome in this thread.

    Args:
        watch: the attempt, not started yet. `watch.cancel` may be called from a signal handler.

    Returns:
        The outcome.

    Raises:
        CachewatchError: the attempt could not be started.
        BaseException: whatever interrupted this thread; the tree has been stopped before it goes on.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as d, CacheSite([Path(d) / "c"]) as site:
        ...     job = CacheJob(name="x", command=["true"], cache_dirs=site.paths)
        ...     run_watch(Watch(site, job, StallPolicy(), StopPolicy())).name
        'completed'
    """
    watch.start()
    try:
        watch.monitor()
        watch.supervise()
    except BaseException as error:
        watch.cancel(type(error).__name__)
        if watch.guard is not None:
            watch.guard.wait(watch.stop_policy.grace_s + 12)
            watch.guard.close()
        raise
    return watch.finish()
