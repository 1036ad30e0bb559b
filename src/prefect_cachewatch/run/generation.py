"""One run of a job, from its checks to its end: attempts, what is done between them, publication. It knows no Prefect.

It runs in the engine. The front sees the events, and lets each attempt begin.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.common.aside import Files, look_ahead
from prefect_cachewatch.common.directories import CACHE_DIR_PLACEHOLDER
from prefect_cachewatch.common.secrets import redact_all
from prefect_cachewatch.common.statedir import open_run_directory
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.engine.events import Bye, Output, Published, Ready, Reported
from prefect_cachewatch.errors import InputError, MetricsPortTaken
from prefect_cachewatch.report.report import Report, cached_report, report_data, write_report_within
from prefect_cachewatch.run.learning import RunHistory
from prefect_cachewatch.run.output_lines import LAST_LINES, OutputLines
from prefect_cachewatch.run.outputs import check_outputs_ahead
from prefect_cachewatch.run.placement import Runtime, place_job
from prefect_cachewatch.run.retrying import Retrying
from prefect_cachewatch.run.runner import Origin, Runner
from prefect_cachewatch.watching.outcomes import exit_status
from prefect_cachewatch.watching.site import CacheDirectories, check_command
from prefect_cachewatch.watching.stall import effective_poll_s

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prefect_cachewatch.engine.spec import Plain
    from prefect_cachewatch.metrics.run import RunMetrics
    from prefect_cachewatch.run.delivery import PublishSession
    from prefect_cachewatch.run.engine import Engine
    from prefect_cachewatch.watching.attempt import Outcome, Watch
    from prefect_cachewatch.watching.sections import Publication


class Generation:
    """One run.

    Args:
        engine: tells events, and knows what the front wants.
        spec: the checked inputs, as `engine.spec` has them.
        files: accesses what may hang.
    """

    def __init__(self, engine: Engine, spec: Plain, files: Files) -> None:
        self.engine, self.spec, self.files = engine, spec, files
        self.env, self.secrets = engine.env, engine.secrets
        self.place: Runtime
        self.delivery: PublishSession | None = None
        self.history: RunHistory
        self.run_dir: Path | None = None
        self._metrics: RunMetrics | None = None
        self._ended = "refused"

    def run(self) -> Bye:
        """Make the run, from its checks to its end.

        Raises:
            CachewatchError: it cannot be made.
        """
        spec = self.spec
        with contextlib.ExitStack() as stack:
            self._metrics = self._open_metrics(stack)
            if spec.refusal is not None:
                raise InputError(spec.refusal)
            self._check(stack)
            if spec.checks_only:
                return Bye("checked")
            if self.delivery is not None and (cached := self._find_or_begin(self.delivery, stack)) is not None:
                return self._end(cached)
            # Before the look at the directory: what a dead run left may be what fills the disk.
            cleaned = self._resume()
            site = stack.enter_context(self.place.open_site(files=self.files))
            self._prepare_site(site, cleaned)
            self.history = self._history(site)
            self._tell_ready(tuple(site.paths))
            bye = self._attempts(site)
            site.close()
            return self._end(bye)

    def _tell_ready(self, paths: tuple[str, ...]) -> None:
        job, run_dir = self.place.job, str(self.run_dir) if self.run_dir is not None else None
        current = self.delivery.current if self.delivery is not None else None
        self.engine.tell(redact_all(Ready(job.name, paths, job.expected_bytes, run_dir, current), self.secrets))

    def _end(self, bye: Bye) -> Bye:
        self.engine.settle()
        self._ended = "verification_failed" if bye.outcome == "not_published" else bye.outcome
        self.engine.keep(bye)
        return bye

    def _open_metrics(self, stack: contextlib.ExitStack) -> RunMetrics | None:
        """Open the metrics, and close them at the end of the stack with how the run has ended."""
        spec = self.spec
        if spec.metrics is None or spec.checks_only:
            return None
        from prefect_cachewatch.metrics.outlets import open_metrics  # noqa: PLC0415 - most runs have none
        from prefect_cachewatch.metrics.settings import Metrics  # noqa: PLC0415

        try:
            metrics = open_metrics(Metrics(to=spec.metrics), spec.job.name, spec.job.cache_dirs, self.files)
        except MetricsPortTaken as error:
            if spec.needs_metrics:
                raise
            # Two runs on one host at night: the second one's cache is worth more than its metrics.
            self.engine.note(f"no metrics of this run: {error.message}", fault=True)
            return None
        self.engine.note(f"metrics: {for_terminal(metrics.where, 4096)}")

        def end(kind: Any, error: BaseException | None, trace: Any) -> None:
            cancelled = error is not None and not isinstance(error, Exception)
            failed = error is not None and not isinstance(error, InputError)
            metrics.run_ended("cancelled" if cancelled else "failed" if failed else self._ended)
            metrics.close()
            if metrics.problem is not None:
                self.engine.note(metrics.problem, fault=True)

        stack.push(end)
        return metrics

    def _check(self, stack: contextlib.ExitStack) -> None:
        """Check all that can be checked before anything is changed."""
        spec, files = self.spec, self.files
        if spec.checks_only:  # first: what hangs is named by what it is
            from prefect_cachewatch.run.places import require_places  # noqa: PLC0415 - for this alone

            require_places(files)
        if spec.job.ready.kind != "exit":
            importlib.import_module("prefect_cachewatch.watching.servers.serving")  # not once the generator runs
        publish = spec.publish
        if publish is not None:
            from prefect_cachewatch.run.delivery import PublishSession  # noqa: PLC0415 - most runs publish nothing

            importlib.import_module("prefect_cachewatch.run.publishing")  # not once the generator runs
            self.delivery = PublishSession(spec.job, publish, self.engine.note, files)
        self.place = place_job(spec.job, self.env, files)
        cwd = str(spec.job.cwd) if spec.job.cwd else None
        left_out = None
        if publish is not None and self.delivery is not None:
            self.delivery.know_image(self.place.image_id)
            left_out = publish.ignore
            if (check := publish.check_command) is not None:
                look_ahead(files, "check command", check_command, check, self.env, cwd)
        record = check_outputs_ahead(files, self.place.job, spec.outputs, published=left_out)
        retry = spec.retry
        if retry is not None and retry.before_retry and (retry.attempts > 1 or spec.stall.learned):
            look_ahead(files, "before_retry", check_command, retry.before_retry, self.env, cwd)
        if spec.checks_only:
            self._check_places()
            return
        poll_s = effective_poll_s(spec.stall)
        if retry is not None and poll_s < spec.stall.poll_s:
            self.engine.note(
                f"the poll of {format_duration(spec.stall.poll_s)} does not fit twice into the shortest window: "
                f"measuring every {format_duration(poll_s)}"
            )
        if spec.run_id is not None:
            self.run_dir = stack.enter_context(
                contextlib.closing(open_run_directory(files, spec.job.name, spec.run_id))
            ).path
        if record is not None:
            self.engine.record(record, stack)

    def _check_places(self) -> None:
        """Look at metrics, the store and the directories that are known so far, and leave them as they are."""
        spec = self.spec
        if spec.metrics is not None:
            from prefect_cachewatch.metrics.outlets import check_destination  # noqa: PLC0415 - most runs have none
            from prefect_cachewatch.metrics.settings import Metrics  # noqa: PLC0415

            check_destination(Metrics(to=spec.metrics), spec.job.cache_dirs, self.files)
        if (delivery := self.delivery) is not None:
            # Room is asked for if it has to be generated; of a container's image the key is not known yet.
            if spec.job.container is not None or delivery.find_cached() is not None:
                delivery.store.require_fit()
            else:
                delivery.require_space(clean=spec.retry.on_retry == "clean")
        named = [path for path in self.place.job.cache_dirs if CACHE_DIR_PLACEHOLDER not in str(path)]
        self.place.relocated(self.place.job.model_copy(update={"cache_dirs": named})).open_site(
            files=self.files
        ).close()

    def _find_or_begin(self, delivery: PublishSession, stack: contextlib.ExitStack) -> Bye | None:
        """End with a cache that is whole already, or become its writer."""
        spec, job = self.spec, self.spec.job
        stack.enter_context(delivery)
        started_s = time.time()
        found = delivery.find_or_begin(clean=self._cleans, limit_s=spec.stall.max_duration_s)
        if found is None:
            told, env = delivery.told()
            self.place = self.place.relocated(told)
            self.env = self.env | env
            return None
        switched = found.current is None and spec.publish.activate
        if switched:
            found = delivery.activate(found)
        from prefect_cachewatch.run.delivery import describe_publication  # noqa: PLC0415 - as above

        message = describe_publication(job.name, found)
        report = cached_report(found, name=job.name, command=job.command, message=message, started_s=started_s)
        self._tell_ready((found.path,))
        self.tell_report(report, "report.json")
        self.tell_published(found, message, is_switched=switched)
        return Bye("cached", message=message)

    @property
    def _cleans(self) -> bool:
        return self.spec.retry is not None and self.spec.retry.on_retry == "clean"

    def _resume(self) -> str:
        """Clean up what a dead run left in the build; returns what was removed."""
        if self.delivery is None:
            return ""
        return self.delivery.resume(clean=self._cleans, window_s=self.spec.stall.stall_after_s)

    def _prepare_site(self, site: CacheDirectories, cleaned: str) -> None:
        spec, delivery = self.spec, self.delivery
        site.to_clean = self._cleans and (spec.retry.attempts > 1 or spec.stall.learned)
        if delivery is not None:
            site.own_build, site.growth_mark, site.cleaned = site.paths[0], delivery.target.record, cleaned

    def _history(self, site: CacheDirectories) -> RunHistory:
        delivery = self.delivery
        # A staged build has another directory each time; the path that consumers open stays the same.
        paths, key = (site.paths, None) if delivery is None else ([delivery.current], delivery.recipe.key)
        return RunHistory(self.place.job, self.spec.stall, paths, self.files, self.engine.note, key)

    def _attempts(self, site: CacheDirectories) -> Bye:
        """Make attempts until there is no further one; publish what the last one wrote."""
        retrying = Retrying(self, site)
        while True:
            outcome, report = self._attempt(site, retrying)
            received = self.engine.received
            if outcome.name == "completed" and self.delivery is not None:
                self.engine.look_up()
                bye = self._deliver(self.delivery, retrying.outcomes, report)
                break
            status = report.exit_status(received[0] if received else None)
            bye = Bye(outcome.name, status, report.message, lasting=retrying.lasting)
            if outcome.name in ("completed", "cancelled") or not retrying.goes_on:
                break
            with retrying.between(report):
                try:
                    problem = retrying.prepare(outcome, report.retry)
                except InputError as error:  # no attempt beside files that may be cut and cannot be removed
                    problem = f"No further attempt: {error.message}."
                    self.tell_report(replace(report, facts=f"{report.facts} {problem}"), self.name_of(report))
                if problem is None:
                    retrying.pause()
            if problem is not None:
                self.engine.note(problem, fault=True)
                bye = replace(bye, message=f"{report.message} {problem}")
                break
        self.engine.settle()
        if self.delivery is not None and bye.outcome not in ("completed", "cancelled", "not_published"):
            self.delivery.leave()
        self.history.remember(retrying.outcomes, "not_published" if bye.outcome == "not_published" else None)
        return bye

    def _attempt(self, site: CacheDirectories, retrying: Retrying) -> tuple[Outcome, Report]:
        """Make one attempt, from its gate to its report."""
        spec, outputs, number = self.spec, self.spec.outputs, retrying.made + 1
        with self._waiting():
            self.engine.wait_for_go(number, retrying.most)
        paths = self._report_paths(f"report-{number}.json")

        def left_alone(report: Report) -> None:
            for path in paths:
                runner.write(report, path)

        runner = Runner(
            self.files, self.secrets, attempt=number, bundles=outputs.bundle, bundle_root=outputs.bundle_dir,
            metrics=self._metrics, tell=self.engine.tell, on_stall=left_alone, attempts=retrying.most,
            origin=Origin(**spec.origin), published=self.delivery is not None, own=(outputs.report, outputs.record),
        )  # fmt: skip
        log = outputs.log
        if log is None and self.run_dir is not None:
            log = self.run_dir / f"generator-{number}.log"
        streams = spec.streams and (spec.streams[0], spec.streams[1])
        watch = runner.watch(
            self.place, site, spec.stall, spec.stop, self.env,
            log=log, streams=streams, expected=self._expected_size(),
            clock=self.engine.clock, adapt=self.engine.adapt, stdin_fd=0 if spec.has_stdin else None, history=self.history,
        )  # fmt: skip
        output = _OutputTold(watch, self) if spec.output_every_s is not None else None
        with self.engine.attempt(watch):
            outcome = runner.run(watch)
            self.history.note(outcome)
            if output is not None:
                output.end(failed=outcome.name != "completed")
            section = retrying.decide(outcome, watch)
            unfinished = self.delivery.unfinished() if self.delivery is not None else None
            report = runner.report(
                watch, outcome, publication=unfinished, retry=section, past_pauses_s=self._past_pauses(outcome)
            )
            for path in paths:
                runner.write(report, path)
        if self.delivery is not None:
            self.delivery.cut_files = runner.examiner.cut_files
            self.delivery.doubts = outcome.doubts
        for problem in runner.problems:
            self.engine.note(problem, fault=True)
        return outcome, report

    def _waiting(self) -> AbstractContextManager[None]:
        if self._metrics is None or self.spec.storage is None:
            return contextlib.nullcontext()
        return self._metrics.waiting(self.spec.storage)

    def _past_pauses(self, outcome: Outcome) -> tuple[float, ...]:
        if outcome.name != "completed" or self.spec.retry is None:
            return ()
        pauses_s = [outcome.longest_silence_s, *(run.longest_pause_s for run in self.history.past_runs())]
        return tuple(each for each in pauses_s if each is not None)

    def _expected_size(self) -> tuple[int | None, str]:
        """Return the size that the job names, else that of the last published build, else of the last run here."""
        named: int | None = self.place.job.expected_bytes
        if named or self.spec.retry is None:
            return named, ""
        if self.delivery is not None and (published := self.delivery.last_bytes()):
            return published, ", as the last build"
        runs = self.history.past_runs()
        return (runs[0].bytes_present, ", as the last run") if runs else (None, "")

    def _deliver(self, delivery: PublishSession, outcomes: Sequence[Outcome], report: Report) -> Bye:
        """Verify, publish and activate what a completed attempt wrote."""
        from prefect_cachewatch.run.publishing import publish  # noqa: PLC0415 - most runs publish nothing

        message, done, is_good = publish(self, delivery, outcomes[-1], report)
        if is_good:
            report = replace(report, facts=message, publication=done)
        else:
            report = replace(report, outcome="verification_failed", headline="", facts=message, publication=done)
        self.tell_report(report, self.name_of(report))
        if not is_good:
            return Bye("not_published", exit_status("verification_failed"), message)
        return Bye("completed", 0, message)

    def tell_report(self, report: Report, name: str) -> None:
        """Tell a report that is new or has changed, and write it.

        Args:
            report: the report.
            name: of its file in the run directory.
        """
        self.engine.tell(redact_all(Reported(report_data(report)), self.secrets))
        for path in self._report_paths(name):
            if problem := write_report_within(self.files, report, path):
                self.engine.note(problem, fault=True)

    def tell_published(self, done: Publication, message: str, *, is_switched: bool) -> None:
        """Tell of a build that is whole in the store."""
        self.engine.tell(redact_all(Published(asdict(done), message, is_switched), self.secrets))

    def name_of(self, report: Report) -> str:
        """The name of a report's file in the run directory."""
        return f"report-{report.attempt}.json"

    def _report_paths(self, name: str) -> list[Path]:
        inside = [self.run_dir / name] if self.run_dir is not None else []
        return [path for path in (*inside, self.spec.outputs.report) if path is not None]


class _OutputTold:
    """Tells of the lines of an output: now and then from a thread of its own if the front wants that, and at the end.

    Args:
        watch: the attempt.
        generation: the run.
    """

    def __init__(self, watch: Watch, generation: Generation) -> None:
        self._lines = OutputLines(watch.output, generation.secrets)
        self._tell, self._on = generation.engine.tell, generation.spec.streams_output
        self._every_s: float = generation.spec.output_every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cachewatch-output", daemon=True)
        if self._on:
            self._thread.start()

    def end(self, *, failed: bool) -> None:
        """Tell the rest of an output that has ended; at least its last 50 lines, if the attempt failed."""
        self._ended.set()
        if self._on:
            self._thread.join()
        if self._on or failed:
            self._say(self._lines.look(ended=True, most=None if self._on else LAST_LINES))

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._say(self._lines.look())

    def _say(self, lines: Sequence[str]) -> None:
        if lines:
            self._tell(Output(tuple(lines)))
