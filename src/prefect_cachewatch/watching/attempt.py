"""One guarded attempt: the generator under guard, the monitor beside it, joined into an `Outcome`.

Both sides share a `Watch`: one thread waits in `supervise` until the tree is
gone, another measures in `monitor` and has the tree stopped. `run_watch` does both for callers
that have no tasks of their own. It knows no Prefect and prints nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import WORKING_DIRECTORY_GONE, InputError, ScanError
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.store.checks import Finding
from prefect_cachewatch.supervise.client import GuardClient
from prefect_cachewatch.supervise.janitor import clear_leftovers, describe_leftovers
from prefect_cachewatch.supervise.output import OutputPump
from prefect_cachewatch.supervise.proc import signal_name
from prefect_cachewatch.supervise.run_files import runs_directory
from prefect_cachewatch.supervise.supervisor import Launch, Supervisor, TreeEnd, wait_for_report
from prefect_cachewatch.watching.emptiness import Emptiness
from prefect_cachewatch.watching.failed_writes import FailedWrites
from prefect_cachewatch.watching.learned import LearnedWindow
from prefect_cachewatch.watching.leaving import LeftAlone, describe_left_alone
from prefect_cachewatch.watching.log_progress import LogProgress
from prefect_cachewatch.watching.marking import write_completed, write_started
from prefect_cachewatch.watching.monitor import GrowthMonitor, Sample
from prefect_cachewatch.watching.outcomes import (
    OutcomeName,
    describe_growth,
    describe_link,
    describe_nothing,
    describe_rewriting,
    describe_stall,
    describe_told,
    is_failure,
)
from prefect_cachewatch.watching.sections import (
    Attachment,
    LoggedProgress,
    Readiness,
    ReportedStall,
)
from prefect_cachewatch.watching.servers.handover import HandedOver, hand_over
from prefect_cachewatch.watching.servers.records import make_log_path
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.stall import StallRule, Suspicion, Verdict

if TYPE_CHECKING:  # pydantic stays out of a process that watches for hours
    from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
    from prefect_cachewatch.watching.servers.serving import ServerReadiness

_LISTING_TIMEOUT_S = 10.0
_CANCELLED_LISTING_S = 3.0  # whoever cancelled it may kill us soon
_GUARD_WAIT_S = 0.5
_LINKS_TOLD = 3
_SHARED_PLACES = ("/tmp", "/dev/shm")  # noqa: S108 - only their file systems are asked
_BEAT_S = 1.0
_JANITOR_S = 12.0  # it gives the processes that it kills 10 s to end


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended, with all that was measured; times in seconds since its start."""

    name: OutcomeName
    kind: str | None
    facts: str
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
    stop: TreeEnd | None
    decided_after_last_growth_s: float | None
    window_s: float | None
    pause_s: float | None
    listing: Mapping[str, Any] | None
    grown_since_scan: int
    paths: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())
    ready: Readiness | None = None
    logged: LoggedProgress | None = None
    #: Set when the attempt has been examined; null for one that completed or was cancelled.
    diagnosis: Cause | None = None
    would_be_stops: tuple[ReportedStall, ...] = ()
    longest_silence_s: float | None = None
    """While it wrote, the silence at its end included."""
    learned: LearnedWindow | None = None
    """The window in force, if it was learned from earlier runs."""
    doubts: tuple[Finding, ...] = ()
    """What speaks against a completed attempt; set when that has been looked at."""
    headline: str = ""
    """Of one that was examined: job, verdict, cause, for how long."""

    @property
    def message(self) -> str:
        """What is told of it: the headline, then the facts."""
        return f"{self.headline} {self.facts}" if self.headline else self.facts

    @property
    def learned_stop(self) -> LearnedWindow | None:
        """The learned window that it was stopped by; None if it was stopped by a configured one, or not at all."""
        return self.learned if (self.name, self.kind) == ("stalled", "no_growth") else None


class Watch:
    """One attempt to generate a cache.

    Args:
        site: the checked and locked directories.
        job: the job.
        stall: when silence is a stall.
        stop: how the tree is stopped.
        env: the generator's whole environment; default this process's with the job's variables on top.
        output: reads its output; default: kept in memory only.
        stdin_fd: its standard input; default /dev/null.
        clock: monotonic time in seconds.
        on_sample: called by the monitor after each measurement; must not block.
        before_stop: called once when a stall was decided and before the tree is stopped, with the
            watch and the verdict; bounded by the caller.
        on_stall: called in place of that with a stall that is to be reported only; returns its message and the
            directory of its bundle.
        busy: whether the tree has computed or read of late; default unknown, which counts as yes.
        make_supervisor: makes the supervisor of the generator; default a guard on this host.
        files: the helper process that handles state files; default this process.
        learn: gets the bytes that are there before the start; returns the window learned from earlier runs, and a note.
    """

    def __init__(
        self,
        site: CacheDirectories,
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
        on_stall: Callable[[Watch, Verdict], tuple[str, str | None]] | None = None,
        busy: Callable[[], bool] = lambda: True,
        make_supervisor: Callable[[Launch], Supervisor] = GuardClient,
        files: Files | None = None,
        learn: Callable[[int], tuple[LearnedWindow | None, str]] = lambda _: (None, ""),
    ) -> None:
        self.files = files or InPlace()
        self._state_answers = True
        self._learn = learn
        self.site, self.job, self.stall, self.stop_policy = site, job, stall, stop
        self.output = output or OutputPump()
        self.run_id = os.urandom(16).hex()
        self.verdict: Verdict | None = None
        self.decided_s: float | None = None
        self.cancelled_by: str | None = None
        self.supervisor: Supervisor | None = None
        self.monitor_state: GrowthMonitor | None = None
        self.started_at = 0.0
        self.started_s = 0.0
        self.error: Exception | None = None
        self.serving: ServerReadiness | None = None
        """For a job that starts a server; made by `start`."""
        self.logged: LogProgress | None = None
        """For a job with `progress_log`; made by `start`."""
        self.own_files: Sequence[Path] = ()
        """Files and directories that cachewatch itself writes, which are not the generator's."""
        self.failed_writes = FailedWrites()
        """What the output tells of writes and downloads that failed."""
        self.output.listeners.append(self.failed_writes.feed)
        self.left_alone: LeftAlone | None = None
        """The stalls that are only reported, if none is to stop anything."""
        self.contradict: Callable[[Watch, Verdict], str | None] = lambda watch, verdict: None
        """Says what speaks against a silence that the tree would be stopped for; bounded by the caller."""
        self.on_start: Callable[[Watch], None] = lambda watch: None
        """Told once the generator runs; must not block."""
        self.on_stop: Callable[[str], None] = lambda why: None
        """Told why the tree is to end, each time that somebody wants it; must not block."""
        self.written: Callable[[Watch], int | None] = lambda watch: None
        """Says how many bytes the tree has written so far; None if that is not known."""
        self._env = dict(os.environ) | job.env if env is None else dict(env)
        self._stdin_fd = stdin_fd
        self._clock = clock
        self._on_sample = on_sample
        self._before_stop, self._on_stall = before_stop, on_stall
        self._make_supervisor, self._busy = make_supervisor, busy
        self._as_root = job.container is not None
        """Whether the generator may be root on its storage, though this process is not."""
        self._cancel_grace_s: float | None = None
        self._emptiness: Emptiness | None = None
        self._began_files: int | None = None
        self._server_log: Path | None = None

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self.started_s

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
            raise InputError(WORKING_DIRECTORY_GONE) from None
        notes = [*self._clear_leftovers(), *filter(None, [self.site.cleaned])]
        baseline = self.site.begin()
        present_bytes = baseline["growth"]["bytes_present"]
        self._began_files = baseline["growth"]["files_present"]
        learned, learned_note = self._learn(present_bytes)
        self._prepare_serving()
        self._prepare_logged()
        if self.serving is None and not self.job.allow_empty:  # a server may well have nothing to write
            self._emptiness = Emptiness(self.job, self.site.paths, cwd, baseline, self.own_files)
        may_release = self.serving is not None and self.serving.ready.then == "leave_running"
        out_fd, error_fd = self._open_server_log() if may_release and not self._as_root else self.output.open_pipes()
        # Its own number for it: the guard's descriptor 0 is /dev/null, whatever ours is.
        stdin_fd = (
            os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if self._stdin_fd is None
            else fcntl.fcntl(self._stdin_fd, fcntl.F_DUPFD_CLOEXEC, 3)
        )
        launch = Launch(
            self.job.command,
            env=self._env,
            cwd=cwd,
            stdio=(stdin_fd, out_fd, error_fd),
            grace_s=self.stop_policy.grace_s,
            run_token=self.run_id,
            wait_for=self.job.wait_for,
            hold=self.site.lock_fds,
            may_release=may_release,
            files=self.files,
            has_state=self._state_answers,
        )
        self.supervisor = self._make_supervisor(launch)
        notes += write_started(self.site, self.job.markers)
        running = False
        try:
            self.supervisor.start()
            running = True
        finally:
            for fd in (stdin_fd, out_fd, error_fd):
                os.close(fd)
            self.output.start()
            if not running:
                self.output.finish()
                if self.serving is not None:
                    self.serving.finish(None)
                if self.logged is not None:
                    self.logged.close()
                self._remove_server_log()
        if self.cancelled_by is not None:  # while it was being started
            self.cancel(self.cancelled_by, self._cancel_grace_s)
        self.started_at, self.started_s = time.time(), self._clock()
        if self.logged is not None:
            self.logged.begin(self.started_s)
        warmup = self.serving.warmup(present_bytes) if self.serving is not None else None
        rule = StallRule(self.stall, self.started_s, warmup, learned)
        self.monitor_state = self.monitor_with(rule, baseline)
        self.monitor_state.notes += [*notes, *self.supervisor.notes, *filter(None, [learned_note])]
        self.on_start(self)
        if self.serving is not None:
            self.serving.start(self.supervisor, self._hand_over)

    def supervise(self) -> TreeEnd:
        """Wait until the generator's tree is gone; safe to interrupt and to call again.

        Returns:
            How it ended.

        Raises:
            GuardError: the guards died, and the remaining processes could not be found.
        """
        supervisor = self._running()
        while (report := wait_for_report(supervisor, _GUARD_WAIT_S)) is None:
            supervisor.beat()
        if self.serving is not None:
            self._settle()
        return report

    def monitor(self) -> Verdict:
        """Measure until the generator ends or a verdict is final; on a verdict, have the tree stopped.

        A job that says `on_stall: report` is watched to its end.

        Returns:
            The last verdict: final if the tree was stopped because of it.
        """
        supervisor = self._running()
        try:
            wait: Callable[[float], bool] = self._wait_and_beat
            if self.state.warnings:  # what is known at the start is told then, and not with the first measurement
                self._sampled()
            if self._emptiness is not None:
                wait = self._emptiness.watch_over(wait, lambda: self.state.growth, supervisor)
            if self.job.on_stall == "report":
                return self._leave_alone(wait)
            verdict = self.state.run(wait, lambda: self._wait_and_beat(0.0), self._sampled)
            ready = self.serving is not None and verdict.final and not self.serving.claim_end()
            if verdict.final and not supervisor.gone.is_set() and not ready:
                self.stop_for(verdict)
            return verdict
        except Exception as error:
            if (left := self.note_failure(error)) is not None:
                return left
            raise

    def _wait_and_beat(self, seconds: float) -> bool:
        """Wait until the tree has gone, at most so long; say whether it has. Whoever watches this process is told that it goes on."""
        supervisor, end_s = self._running(), time.monotonic() + seconds
        while True:
            supervisor.beat()
            left_s = end_s - time.monotonic()
            if supervisor.gone.wait(max(0.0, min(left_s, _BEAT_S))) or left_s <= _BEAT_S:
                return supervisor.gone.is_set()

    def note_failure(self, error: Exception) -> Verdict | None:
        """Take in that the monitor has failed: have the tree stopped, or return the verdict of one that is left alone."""
        if self.job.on_stall == "report":  # nothing would have been stopped by this watch
            self.state.note(f"the watch failed, and the generator went on without it: {error}")
            return Verdict("growing")
        # A monitor that fails must not leave a generator without a watch.
        self.error = error
        self._running().stop()
        return None

    def stop_for(self, verdict: Verdict) -> None:
        """Have the tree stopped because of a verdict, after the evidence has been collected."""
        self.verdict, self.decided_s = verdict, self._clock()
        if self._before_stop is not None:
            self._before_stop(self, verdict)
        self.on_stop(verdict.kind or verdict.status)
        self._running().stop()

    def cancel(self, why: str, grace_s: float | None = None) -> None:
        """Have the tree stopped at the caller's request; returns at once.

        Args:
            why: reason, for the message: `SIGINT` or `the flow run was cancelled`, for example.
            grace_s: overrides the stop policy's grace period.
        """
        self.cancelled_by, self._cancel_grace_s = self.cancelled_by or why, grace_s
        if self.serving is not None:
            self.serving.cancel()
        if self.supervisor is not None:
            self.on_stop(self.cancelled_by)
            self.supervisor.stop(grace_s)

    def finish(self, listing_limit: int = 1000) -> Outcome:
        """Collect the results after `supervise` and `monitor` have ended.

        Args:
            listing_limit: the most files listed one by one.

        Returns:
            The outcome.
        """
        supervisor = self._running()
        self._settle()
        supervisor.close()
        self._remove_server_log()
        self.state.notes += [note for note in supervisor.notes if note not in self.state.notes]
        outcome = self._describe(supervisor.report, listing_limit)
        # Noted now, not when it is asked for: later files are not the attempt's.
        self.site.note_end(failed=is_failure(outcome.name))
        return outcome

    def describe_stall(self, verdict: Verdict) -> Outcome:
        """Return the present state at a stall that stops nothing.

        Args:
            verdict: a final one.

        Returns:
            The outcome that it would have had.
        """
        self.verdict, self.decided_s = verdict, self._clock()
        try:
            return self._describe(None)  # also if it has ended meanwhile: this is about the stall
        finally:
            self.verdict = self.decided_s = None

    def _describe(self, report: TreeEnd | None, listing_limit: int = 1000) -> Outcome:
        state = self.state
        duration_s = self._clock() - self.started_s
        listing = None
        if not self.site.scanner.pending:
            try:
                limit_s = _LISTING_TIMEOUT_S if self.cancelled_by is None else _CANCELLED_LISTING_S
                listing = self.site.scanner.request("listing", limit_s, limit=listing_limit)
            except ScanError as error:
                state.note(f"no listing: {error.message}")
        else:
            state.note("no listing: the cache directory does not answer")
        name, message = self._conclude(report, state)
        if name == "nothing_written" and self._emptiness is not None:
            message = f"{message} {self._emptiness.describe(self.started_at)}"
        if is_failure(name) and state.unfollowed:
            told = [describe_link(link, target) for link, target in state.unfollowed.items()]
            message = f"{message} {'. '.join(told[:_LINKS_TOLD])}."
        if self.left_alone is not None and report is not None:
            self.left_alone.conclude(name)
            message = " ".join(filter(None, (message, describe_left_alone(self.would_be_stops))))
        if name == "completed":
            found = self.site.rewriting()
            # A scan process that was started anew knows another start than the run's.
            if found is not None and found.scan_files == self._began_files:
                message = f"{message}{describe_rewriting(found)}"
            for problem in write_completed(self.site, self.job.markers):
                state.note(problem)
        rule, started = state.rule, self.started_s
        decided = None
        if self.decided_s is not None:
            decided = self.decided_s - (rule.last_growth_s if rule.last_growth_s is not None else started)
        if self.output.log_error:
            state.note(f"the log is incomplete: {self.output.log_error}")
        verdict = self.verdict
        return Outcome(
            name=name,
            kind=verdict.kind if verdict and name == "stalled" else None,
            facts=message,
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
            ready=self.serving.result(started, rule.phases.changes) if self.serving is not None else None,
            logged=self.told(),
            would_be_stops=self.would_be_stops,
            longest_silence_s=rule.longest_silence_s,
            learned=rule.learned,
        )

    @property
    def places(self) -> tuple[str, ...]:
        """Directories that the generator may use besides the watched ones."""
        names = ("TMPDIR", "TMP", "TEMP", "HOME", "XDG_CACHE_HOME")
        cwd = (str(self.job.cwd),) if self.job.cwd else ()
        return (*filter(None, (self._env.get(name, "") for name in names)), *_SHARED_PLACES, *cwd)

    @property
    def ended(self) -> bool:
        """Whether the tree is gone."""
        return self.supervisor is not None and self.supervisor.gone.is_set()

    @property
    def attachment(self) -> Attachment | None:
        """The report's section on a process that cachewatch did not start."""
        return None

    @property
    def would_be_stops(self) -> tuple[ReportedStall, ...]:
        """Stalls of a generator that was left alone."""
        return tuple(self.left_alone.stalls) if self.left_alone is not None and self.job.on_stall == "report" else ()

    def _leave_alone(self, wait: Callable[[float], bool]) -> Verdict:
        serving = self.serving
        self.left_alone = LeftAlone(
            self.state, self._running().gone, sampled=self._sampled, tell=self._tell_stall, clock=self._clock,
            moot=lambda: serving is not None and serving.ready_s is not None,
        )  # fmt: skip
        return self.left_alone.run(wait)

    def _tell_stall(self, verdict: Verdict) -> tuple[str, str | None]:
        try:
            if self._on_stall is not None:
                return self._on_stall(self, verdict)
        except Exception as error:  # noqa: BLE001 - what cannot be reported must not end the generation
            self.state.note(f"a stall could not be reported: {type(error).__name__}: {error}")
        return self.describe_stall(verdict).message, None

    def told(self) -> LoggedProgress | None:
        """Return the progress that the output told of last."""
        return self.logged.last if self.logged is not None else None

    def describe_told(self) -> str:
        """Describe the progress that the output had told of at the verdict, as a further sentence of its message."""
        if self.logged is None:
            return ""
        decided_s = self.decided_s if self.decided_s is not None else self._clock()
        return describe_told(self.told(), decided_s - self.started_s)

    def monitor_with(self, rule: StallRule, baseline: Mapping[str, Any]) -> GrowthMonitor:
        """Return a monitor of the site's directories for the tree that runs.

        Args:
            rule: the stall rule.
            baseline: the scan process's answer to `site.begin()`.
        """
        return GrowthMonitor(
            self.site,
            rule,
            self._clock,
            baseline,
            told=self.told,
            busy=self._busy,
            as_root=self._as_root,
            written=lambda: self.written(self),
            contradicts=lambda verdict: self.contradict(self, verdict),
        )

    def _prepare_serving(self) -> None:
        if self.job.ready.kind != "exit":
            from prefect_cachewatch.watching.servers.serving import ServerReadiness  # noqa: PLC0415 - most generators are no servers

            self.serving = ServerReadiness(self.job, self.stall, "".join(self.site.paths[:1]), clock=self._clock)
            self.serving.prepare()
            self.output.listeners.append(self.serving.feed)

    def _prepare_logged(self) -> None:
        if self.job.progress_log:
            self.logged = LogProgress(self.job.progress_log, self._clock)
            self.logged.prepare()
            self.output.listeners.append(self.logged.feed)

    def _settle(self) -> None:
        """Read the last of the output and search it for readiness, once a hand-over under way has ended."""
        if self.serving is not None:
            self.serving.settle()
        self.output.finish()
        self.failed_writes.finish()
        if self.serving is not None:
            self.serving.finish(self._running().report)
            if (problem := self.serving.problem) is not None:
                self.state.note(problem)
        if self.logged is not None:
            self.logged.close()
            for problem in self.logged.problems:
                self.state.note(problem)

    def _hand_over(self, ready: str) -> HandedOver | None:
        return hand_over(
            self._running(),
            name=self.job.name,
            run_id=self.run_id,
            cache_dirs=tuple(self.site.paths),
            log=self._server_log,
            ready=ready,
            stop_grace_s=self.stop_policy.grace_s,
        )

    def _open_server_log(self) -> tuple[int, int]:
        # Its own file from the start: nobody has to read its output once it is left running.
        if not self._state_answers:
            raise InputError(
                f"the file system of {state_home()} does not answer, and a server that may be left running writes its output "
                "there: check the mount, set CACHEWATCH_STATE to a directory on another one, or use --then stop"
            )
        self._server_log = make_log_path(self.job.name, self.run_id)
        try:
            out_fd = self.output.open_file(self._server_log)
        except OSError as error:
            raise InputError(
                f"{self._server_log} for the server's output cannot be written: {error.strerror}"
            ) from error
        return out_fd, fcntl.fcntl(out_fd, fcntl.F_DUPFD_CLOEXEC, 3)

    def _remove_server_log(self) -> None:
        """Remove the output of a server that was not left running: this run has read it."""
        if self._server_log is not None and (self.serving is None or self.serving.handed_over is None):
            with contextlib.suppress(OSError):
                self.files.run(os.unlink, str(self._server_log), timeout_s=_LISTING_TIMEOUT_S)

    def _clear_leftovers(self) -> list[str]:
        # Survivors of a dead run may be writing into these very directories.
        try:
            return describe_leftovers(self.files.run(clear_leftovers, timeout_s=_JANITOR_S))
        except OSError as error:
            self._state_answers = not isinstance(error, TimeoutError)
            return [f"leftovers of dead runs were not looked for in {runs_directory()}: {error.strerror}"]

    def _sampled(self) -> None:
        if self._on_sample is not None:
            self._on_sample(self)

    def _is_empty(self, state: GrowthMonitor) -> bool:
        # A cache that could not be measured at the end does not count as empty, nor one of which a part lies behind a link.
        known = state.problem is None and not state.unfollowed
        return self._emptiness is not None and known and self._emptiness.is_empty(state.growth)

    def _describe_nothing(self, state: GrowthMonitor) -> str:
        return describe_nothing(state.site.paths, state.growth.bytes_written)

    def _running(self) -> Supervisor:
        assert self.supervisor is not None, "start() comes first"
        return self.supervisor

    def _conclude(self, report: TreeEnd | None, state: GrowthMonitor) -> tuple[OutcomeName, str]:
        growth = describe_growth(state.growth.bytes_present, state.growth.files_present, state.last_path)
        names = ", ".join(for_terminal(path) for path in state.site.paths)
        where = f"{growth} in {names}" if names else "no directory was watched"
        ended_itself = report is not None and report.why == "exited"
        if self.serving is not None and (told := self.serving.conclude(report, where, self._clock() - self.started_s)):
            return told
        if self.verdict is not None and not ended_itself:
            message = describe_stall(
                self.verdict,
                self.site.paths,
                growth,
                problem=state.problem,
                touched=state.touched_in_pause,
                rewritten=state.rewritten,
                unready=self.serving.unready if self.serving is not None else "",
                told=self.describe_told(),
                stopped=report is not None,
            )
            if self.verdict.kind == "no_growth" and state.rule.learned is not None:
                message += f" Decided by a learned window: {state.rule.learned}."
            if self.job.on_stall == "report":
                message += " The generator would have been stopped, and was left alone."
            leader = self.supervisor.leader_exit if self.supervisor else None
            if leader and leader[0] == 0:
                message += (
                    " The command itself had ended with exit code 0; processes it left behind were still running."
                )
            if report and report.survivors:
                pids = ", ".join(str(who["pid"] or who["argv"][0]) for who in report.survivors[:10])
                message += f" Could not be killed: pid {pids}."
            return ("deadline_exceeded" if self.verdict.status == "deadline_exceeded" else "stalled"), message
        if self.cancelled_by and not ended_itself:
            return "cancelled", f"Tensor cache generation was cancelled ({self.cancelled_by}); {where}."
        if report is None or not ended_itself:
            why = {
                "guard_signalled": "it was stopped because its guard got a signal",
                "watch_silent": "it was stopped because the watch had gone silent",
                "engine_lost": "its container has ended, and the engine does not say how",
            }.get(report.why if report else "", "it was stopped because its guard process died")
            return "failed", f"Tensor cache generation failed: {why}; {where}."
        empty = report.exit_code == 0 and self._is_empty(state)
        if empty and self.site.cleaned:
            # Not a wrong directory: it has written here before. A build is judged, and refused, by its own check.
            if self.site.own_build is None:
                return "failed", (
                    f"Tensor cache generation failed: the generator wrote nothing again, and ended with exit code 0; {where}. "
                    f"{self.site.cleaned}"
                )
            empty = False
        if empty and self.job.on_stall == "stop":
            elapsed = format_duration(self._clock() - self.started_s)
            return "nothing_written", f"{self._describe_nothing(state)} after {elapsed} with exit code 0."
        if report.exit_code == 0:
            silent = not (state.growth.bytes_written or state.growth.allocated_written)
            how = "; nothing new was written" if silent and names else ""
            if state.problem is not None:
                how = f", as of the last measurement; what is there now could not be measured: {for_terminal(state.problem)}"
            how = "; it was empty before as well, which would have been a failure" if empty else how
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
        BaseException: what interrupted this thread; the tree has been stopped before it is raised.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
        >>> with tempfile.TemporaryDirectory() as d, CacheDirectories([Path(d) / "c"]) as site:
        ...     job = CacheJob(name="x", command=["touch", f"{site.paths[0]}/a.bin"], cache_dirs=site.paths)
        ...     run_watch(Watch(site, job, StallPolicy(), StopPolicy())).name
        'completed'
    """
    watch.start()
    try:
        watch.monitor()
        watch.supervise()
    except BaseException as error:
        watch.cancel(type(error).__name__)
        if watch.supervisor is not None:
            watch.supervisor.wait(watch.stop_policy.grace_s + 12)
            watch.supervisor.close()
        raise
    return watch.finish()
