"""One attempt put together: output, events, metrics, view, diagnosis and report.

The command, the flow and a program share it. They wait for the generator and report problems in their own ways.
Standard library only, since `cachewatch exec` stays in memory for as long as its generator runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.secrets import LineRedactor, redact, redact_all
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.users import user_name
from prefect_cachewatch.engine.events import Event, Reported
from prefect_cachewatch.engine.narrator import Narrator
from prefect_cachewatch.report.bundle import note_end
from prefect_cachewatch.report.report import Report, build_report, report_data, report_json, write_report_within
from prefect_cachewatch.run.doubts import find_doubts
from prefect_cachewatch.run.examination import PostMortem
from prefect_cachewatch.run.placement import Runtime
from prefect_cachewatch.supervise.adopted import AttachedProcess
from prefect_cachewatch.supervise.output import OutputPump
from prefect_cachewatch.supervise.supervisor import Launch
from prefect_cachewatch.watching.attached import AttachedWatch
from prefect_cachewatch.watching.attempt import Outcome, Watch, run_watch
from prefect_cachewatch.watching.sections import NextAttempt, Publication, Where, Windows
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.stall import Verdict

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
    from prefect_cachewatch.metrics.run import RunMetrics
    from prefect_cachewatch.run.learning import RunHistory

_TAIL_LINES = 50
_END_S = 5.0


@dataclass(frozen=True)
class Origin:
    """The Prefect run that an attempt belongs to; empty without Prefect."""

    #: Name of the worker.
    worker: str | None = None
    #: Link to the flow run in Prefect's UI.
    flow_run: str | None = None


class Runner:
    """One attempt, from its watch to its report.

    Args:
        files: the helper process that collects evidence and writes logs, bundles and reports.
        secrets: values that must not appear in anything that is said or written.
        attempt: its number, from 1.
        bundles: whether a stall or a failure gets a post-mortem bundle.
        bundle_root: where bundles go; default in the user's state directory.
        metrics: counts the attempt.
        tell: takes each event of the attempt; must not block.
        on_stall: called, in the monitor's thread, with the report of a stall that stops nothing; must not block.
        attempts: how many attempts there may be at most, if that is known.
        origin: the Prefect run that it belongs to.
        published: whether the cache is checked before it is published, and need not be looked over here.
        own: files and directories that the caller writes, which are not the generator's.
    """

    def __init__(
        self,
        files: Files,
        secrets: tuple[str, ...],
        *,
        attempt: int = 1,
        bundles: bool = True,
        bundle_root: Path | None = None,
        metrics: RunMetrics | None = None,
        tell: Callable[[Event], None] = lambda event: None,
        on_stall: Callable[[Report], None] | None = None,
        attempts: int | None = None,
        origin: Origin = Origin(),
        published: bool = False,
        own: Sequence[Path | None] = (),
    ) -> None:
        self.problems: list[str] = []
        """Faults of recording and writing, as sentences."""
        self._files, self._secrets, self._attempt = files, secrets, attempt
        self._bundles, self._bundle_root = bundles, bundle_root
        self._metrics = metrics
        self._own = [path for path in (*own, bundle_root) if path is not None]
        self.narrator = Narrator(attempt, tell, secrets)
        self._tell_stall = on_stall
        self._attempts, self._origin, self._published = attempts, origin, published
        self._examine_anew()

    def _examine_anew(self) -> None:
        self.examiner = PostMortem(
            secrets=self._secrets,
            bundles=self._bundles,
            bundle_root=self._bundle_root,
            files=self._files,
            note_open=self._published,
        )

    def watch(
        self,
        place: Runtime,
        site: CacheDirectories,
        stall: StallPolicy,
        stop: StopPolicy,
        env: dict[str, str],
        *,
        log: Path | None = None,
        streams: tuple[int, int] | None = None,
        stdin_fd: int | None = None,
        expected: tuple[int | None, str] = (None, ""),
        clock: Callable[[], float] = time.monotonic,
        adapt: Callable[[Launch], Launch] = lambda launch: launch,
        history: RunHistory | None = None,
    ) -> Watch:
        """Make the watch of a generator that is to be started.

        Args:
            place: where it runs.
            site: its cache directories, open.
            stall: when silence is a stall.
            stop: how the tree is stopped.
            env: this process's environment with the job's variables on top; `place` picks from it, and the attempt's
                number is added.
            log: file for its output.
            streams: the descriptors that its output is copied to, if to any.
            stdin_fd: its standard input; default /dev/null.
            expected: size of the finished cache if it is known, and where that comes from.
            clock: monotonic time in seconds.
            adapt: changes how it is started.
            history: the job's, for its learned window.

        Returns:
            The watch, not started yet.

        Raises:
            InputError: the log cannot be opened.
        """
        supervisor = place.supervisor(site.paths)
        output = OutputPump(log, pass_to=streams, files=self._files)
        if self._metrics is not None:
            self._metrics.attempt_began(self._attempt, expected[0])
        self.narrator.expected = expected
        own = place.environment(env) | {"CACHEWATCH_ATTEMPT": str(self._attempt)}
        made = Watch(
            site, place.job, stall, stop, env=own, output=output, stdin_fd=stdin_fd, clock=clock,
            on_sample=self.sampled, before_stop=self.before_stop, on_stall=self.left_alone,
            busy=self.is_busy,
            make_supervisor=lambda launch: supervisor(adapt(launch)), files=self._files,
            learn=history.window if history is not None else lambda _: (None, ""),
        )  # fmt: skip
        made.own_files = [*self._own, *filter(None, [log])]
        self._follow(made)
        return made

    def attach(
        self,
        site: CacheDirectories,
        job: CacheJob,
        observed: AttachedProcess,
        stall: StallPolicy,
        stop: StopPolicy,
        *,
        on_stall: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> AttachedWatch:
        """Make the watch of a process that runs already; see `AttachedWatch`."""
        made = AttachedWatch(
            site, job, observed, stall, stop, policy=on_stall, clock=clock,
            on_sample=self.sampled, before_stop=self.before_stop, on_stall=self.left_alone, busy=self.is_busy,
        )  # fmt: skip
        self._follow(made)
        return made

    def _follow(self, watch: Watch) -> None:
        watch.contradict = self.contradict
        watch.on_start, watch.on_stop = self.narrator.start, self.narrator.stopping
        watch.written = self.examiner.written

    def sampled(self, watch: Watch) -> None:
        """Pass a measurement on."""
        self.examiner.sampled(watch)
        if self._metrics is not None:
            self._metrics.sampled(watch)
        self.narrator.sampled(watch)

    def before_stop(self, watch: Watch, verdict: Verdict) -> None:
        """Tell of the verdict, and collect the evidence."""
        self.narrator.decided(watch, verdict, stops=True)
        self.examiner.before_stop(watch, verdict)

    def contradict(self, watch: Watch, verdict: Verdict) -> str | None:
        """Say what speaks against a silence that the tree would be stopped for."""
        return self.examiner.contradict(watch, verdict)

    def is_busy(self) -> bool:
        """Say whether the tree has computed or read of late, or that is not known."""
        return self.examiner.is_busy()

    def left_alone(self, watch: Watch, verdict: Verdict) -> tuple[str, str | None]:
        """Examine a stall that stops nothing, and report it.

        Args:
            watch: the attempt.
            verdict: why it would have been stopped.

        Returns:
            Its message and the directory of its bundle.
        """
        self.narrator.decided(watch, verdict, stops=False)
        self.examiner.before_stop(watch, verdict)
        outcome = self.examiner.conclude(watch, watch.describe_stall(verdict))
        report = self._report(watch, outcome)
        self.narrator.tell(Reported(report_data(report), final=False))
        self._examine_anew()
        if self._tell_stall is not None:
            self._tell_stall(report)
        return outcome.message, report.bundle

    def run(self, watch: Watch) -> Outcome:
        """Run the attempt in this thread; raises as `run_watch` does."""
        try:
            return self.conclude(watch, run_watch(watch))
        finally:
            self.narrator.gone(watch)

    def conclude(self, watch: Watch, outcome: Outcome) -> Outcome:
        """Name the cause of an attempt that stalled or failed; see `PostMortem.conclude`."""
        self.narrator.gone(watch)
        outcome = self.examiner.conclude(watch, outcome)
        try:
            outcome = find_doubts(self._files, watch, outcome, self._secrets, look=not self._published)
        except Exception as error:  # noqa: BLE001 - a look that fails must end no completed run
            self.problems.append(
                f"whether the cache is whole is not known: {for_terminal(redact(repr(error), self._secrets))}"
            )
        if self._metrics is not None:
            cause = outcome.diagnosis
            self._metrics.attempt_ended(outcome, cause.category if cause else None)
        return outcome

    def report(
        self,
        watch: Watch,
        outcome: Outcome,
        *,
        publication: Publication | None = None,
        retry: NextAttempt | None = None,
        past_pauses_s: tuple[float, ...] = (),
    ) -> Report:
        """Write the bundle, if one is wanted, and add the end to the bundles of stalls that stopped nothing.

        Args:
            watch: the attempt.
            outcome: from `conclude`.
            publication: the result of publishing the build.
            retry: what follows the attempt.
            past_pauses_s: the longest pauses of runs that completed, for who reads the event.

        Returns:
            The report of the attempt.
        """
        report = self._report(watch, outcome, publication, retry)
        self.narrator.tell(Reported(report_data(report), past_pauses_s=past_pauses_s))
        stalls = report.attached.stalls if report.attached is not None else report.would_be_stops
        if bundles := [stall.bundle for stall in stalls if stall.bundle is not None]:
            try:
                self._files.run(note_end, bundles, report_json(report), timeout_s=_END_S)
            except OSError as error:
                self.problems.append(f"the bundles do not say how it ended: {error.strerror}")
        return report

    def _report(
        self, watch: Watch, outcome: Outcome, publication: Publication | None = None, retry: NextAttempt | None = None
    ) -> Report:
        report = build_report(
            outcome,
            name=watch.job.name,
            command=watch.job.command,
            log_tail=LineRedactor(self._secrets).lines(watch.output.tail_lines(_TAIL_LINES)),
            attempt=self._attempt,
            secrets=self._secrets,
        )
        where = redact_all(self._where(watch), self._secrets)
        report = replace(report, publication=publication, attached=watch.attachment, retry=retry, where=where)
        return self.examiner.write_bundle(report, watch.output)

    def _where(self, watch: Watch) -> Where:
        stall, log = watch.stall, watch.output.log_path
        windows = Windows(
            first_write_within_s=stall.first_write_within_s,
            stall_after_s=stall.stall_after_s,
            warmup_within_s=stall.warmup_within_s if watch.serving is not None else None,
            max_duration_s=stall.max_duration_s,
        )
        return Where(
            host=os.uname().nodename, user=user_name(os.geteuid()), pid=os.getpid(), windows=windows,
            attempts=self._attempts, log=str(log) if log is not None else None,
            worker=self._origin.worker, flow_run=self._origin.flow_run,
        )  # fmt: skip

    def write(self, report: Report, path: Path | None) -> None:
        """Write a report to the path that the caller asked for; a failure is one of the `problems`."""
        if path is not None and (problem := write_report_within(self._files, report, path)):
            self.problems.append(problem)
