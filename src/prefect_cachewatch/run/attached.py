"""An attached watch from pre-flight to report: what the command and the flow have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from prefect_cachewatch.common.ahead import look_ahead
from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.secrets import secret_values
from prefect_cachewatch.common.text import for_terminal, redact_argv
from prefect_cachewatch.config import AttachJob, StallPolicy, StopPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.postmortem.examination import Examiner
from prefect_cachewatch.postmortem.report import Report, build_report, check_report_path, write_report_within
from prefect_cachewatch.supervise.adopted import AdoptedProcess
from prefect_cachewatch.supervise.adoptee import Adoptee
from prefect_cachewatch.supervise.observed import Observed
from prefect_cachewatch.supervise.proc import descendants, read_memory_file
from prefect_cachewatch.supervise.reading import argv_within, read_each
from prefect_cachewatch.watching.attached import AttachedWatch
from prefect_cachewatch.watching.attempt import Outcome, Watch, run_watch
from prefect_cachewatch.watching.site import CacheSite
from prefect_cachewatch.watching.stall import Verdict
from prefect_cachewatch.watching.writers import directories_written, writers_below

__all__ = ["AttachedRun", "suggest_directories"]

_ENVIRON_S = 1.0


class AttachedRun:
    """One watch over a process that runs already.

    Args:
        attach: who is watched.
        stall: when silence is a stall.
        stop: how it is stopped, if it is to be.
        report: file for the report; written at each reported stall and at the end.
        bundles: whether a stall gets a post-mortem bundle.
        bundle_root: where bundles go; default in the user's state directory.
        on_sample: called after each measurement; must not block.
        on_stall: called, in the monitor's thread, with the report of a stall that leaves the process alone.
        files: who collects evidence and writes bundles and reports; default this process.

    Raises:
        InputError: the process may not be watched, or a directory or the report's place cannot be used.
    """

    def __init__(
        self,
        attach: AttachJob,
        stall: StallPolicy,
        stop: StopPolicy,
        *,
        report: Path | None = None,
        bundles: bool = True,
        bundle_root: Path | None = None,
        on_sample: Callable[[Watch], None] | None = None,
        on_stall: Callable[[Report], None] | None = None,
        files: Files | None = None,
    ) -> None:
        self._files = files or InPlace()
        if report is not None:
            report = report.absolute()
            look_ahead(self._files, f"report file {report}", check_report_path, report)
        self.problems: list[str] = []
        self._report_path, self._bundles, self._bundle_root = report, bundles, bundle_root
        self._told_sample, self._told_stall = on_sample, on_stall
        observed, cache_dirs = _find(attach, stop)
        try:
            self._secrets = () if observed.subject.pid is None else secret_values(_environment(observed.subject.pid))
            self._examiner = self._new_examiner()
            self._site = CacheSite(cache_dirs, ignore=attach.ignore, create=False, lock=False, files=self._files)
        except BaseException:
            observed.close()
            raise
        self.watch = AttachedWatch(
            self._site, attach, observed, stall, stop,
            on_sample=self._sampled, before_stop=self._before_stop, on_stall=self._reported,
        )  # fmt: skip

    def __enter__(self) -> AttachedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.adopted.close()
        self._site.close()

    def run(self) -> tuple[Outcome, Report]:
        """Watch until the process ends, is stopped, or `watch.cancel` is called.

        Returns:
            How it ended, and the report, which has been written.

        Raises:
            CachewatchError: the directories could not be measured at the start.
        """
        outcome = run_watch(self.watch)
        if outcome.stop is not None and outcome.stop.why == "stop":
            outcome = replace(outcome, notes=(*outcome.notes, *self._others_that_write()))
        return self._concluded(outcome)

    def _concluded(self, outcome: Outcome) -> tuple[Outcome, Report]:
        outcome = self._examiner.conclude(self.watch, outcome)
        made = build_report(
            outcome, name=self.watch.job.name, command=self.watch.job.command, log_tail=[], secrets=self._secrets
        )
        report = self._examiner.write_bundle(replace(made, attached=self.watch.attachment), self.watch.output)
        if self._report_path is not None:
            try:
                write_report_within(self._files, report, self._report_path)
            except InputError as error:
                self.problems.append(error.message)
        return outcome, report

    def _reported(self, watch: AttachedWatch, verdict: Verdict) -> str | None:
        self._examiner.before_stop(watch, verdict)
        outcome, report = self._concluded(watch.describe())
        # The next stall is a case of its own.
        self._examiner = self._new_examiner()
        watch.stalls[-1] = replace(watch.stalls[-1], message=outcome.message)
        if self._told_stall is not None:
            self._told_stall(report)
        return report.bundle

    def _before_stop(self, watch: Watch, verdict: Verdict) -> None:
        self._examiner.before_stop(watch, verdict)

    def _sampled(self, watch: Watch) -> None:
        self._examiner.sampled(watch)
        if self._told_sample is not None:
            self._told_sample(watch)

    def _new_examiner(self) -> Examiner:
        return Examiner(secrets=self._secrets, bundles=self._bundles, bundle_root=self._bundle_root, files=self._files)

    def _others_that_write(self) -> list[str]:
        # A daemon that was never seen in the tree is not stopped: who it belongs to is not known. But it is named.
        pids = writers_below(self._site.paths, {os.getpid()})
        shown = (f"pid {pid} ({for_terminal(' '.join(redact_argv(argv_within(pid))), 80)})" for pid in pids[:5])
        return [
            f"{who} still has a file in the cache open for writing; it was not seen to belong to the process, and was "
            "left alone"
            for who in shown
        ]


def _find(attach: AttachJob, stop: StopPolicy) -> tuple[Observed, list[Path]]:
    """Find whom to watch, and where its directories lie on this host."""
    to_stop = attach.on_stall == "stop"
    if attach.container is not None:
        from prefect_cachewatch.containers.adopted import AdoptedContainer, host_path  # noqa: PLC0415 - an extra

        container = AdoptedContainer(attach.container, attach.engine, stop.grace_s, to_stop=to_stop)
        return container, [host_path(path, container.mounts) for path in attach.cache_dirs]
    assert attach.pid is not None
    adoptee = Adoptee(attach.pid, start_ticks=attach.start_ticks, to_stop=to_stop)
    return AdoptedProcess(adoptee, stop.grace_s, attach.wait_for), list(attach.cache_dirs)


def suggest_directories(pid: int) -> str:
    """Say where a process writes, as the end of a message that asks for a cache directory.

    Args:
        pid: of the process.

    Returns:
        A clause with at most 4 directories; empty where nothing is known.
    """
    found = [path for path in directories_written([pid, *descendants(pid)]) if path != "/"][:4]
    return f"; it has files open for writing in {', '.join(for_terminal(path) for path in found)}" if found else ""


def _environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with: only for the values that must not be shown."""

    def read(of: int) -> bytes:
        try:
            return read_memory_file(of, "environ")
        except OSError:
            return b""

    text = os.fsdecode(read_each([pid], read, each_s=_ENVIRON_S).get(pid, b""))
    split = (pair.partition("=") for pair in text.split("\0"))
    return {name: value for name, _, value in split if name}
