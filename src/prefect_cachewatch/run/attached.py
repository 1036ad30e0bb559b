"""A watch over a running process, from pre-flight to report; it needs no Prefect."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from prefect_cachewatch.common.aside import Files, look_ahead
from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.secrets import redact_all, secret_values
from prefect_cachewatch.config import AttachJob, StallPolicy, StopPolicy
from prefect_cachewatch.engine.events import Event, Ready
from prefect_cachewatch.report.report import Report, check_report_path
from prefect_cachewatch.run.outputs import check_outputs
from prefect_cachewatch.run.runner import Runner
from prefect_cachewatch.supervise.adopted import AttachedProcess
from prefect_cachewatch.supervise.pinned_process import PinnedProcess
from prefect_cachewatch.supervise.proc import read_memory_file
from prefect_cachewatch.supervise.turns import read_each
from prefect_cachewatch.watching.attached import AttachedWatch
from prefect_cachewatch.watching.attempt import Outcome, run_watch
from prefect_cachewatch.watching.learned import refuse_learned
from prefect_cachewatch.watching.site import CacheDirectories

_ENVIRON_S = 1.0


class AttachedRun(Closing):
    """One watch over a process that is already running.

    Args:
        attach: the process to watch.
        stall: when silence is a stall.
        stop: how it is stopped, if the policy stops it.
        report: file for the report; written at each reported stall and at the end.
        bundles: whether a stall gets a post-mortem bundle.
        tell: takes each event; must not block.
        on_stall: called, in the monitor's thread, with the report of a stall that leaves the process alone.
        files: the helper process that collects evidence and writes bundles and reports.

    Raises:
        InputError: the process may not be watched, or a directory or the report's path cannot be used.
    """

    def __init__(
        self,
        attach: AttachJob,
        stall: StallPolicy,
        stop: StopPolicy,
        *,
        report: Path | None = None,
        bundles: bool = True,
        tell: Callable[[Event], None] = lambda event: None,
        on_stall: Callable[[Report], None] | None = None,
        files: Files,
    ) -> None:
        refuse_learned(stall)
        if report is not None:
            report = report.absolute()
            look_ahead(files, f"report file {report}", check_report_path, report)
        self._report_path, self._tell_stall = report, on_stall
        cache_dirs = list(attach.cache_dirs)
        pinned = PinnedProcess(attach.pid, to_stop=attach.on_stall == "stop")
        observed = AttachedProcess(pinned, stop.grace_s)
        try:
            if report is not None:
                check = functools.partial(
                    check_outputs, cache_dirs, attach.ignore, report=report, rewritten=attach.on_stall == "report"
                )
                look_ahead(files, "the directory of --report, or the cache directory,", check)
            secrets = secret_values(_environment(attach.pid))
            self._site = CacheDirectories(cache_dirs, ignore=attach.ignore, create=False, lock=False, files=files)
            self._runner = Runner(
                files, secrets, bundles=bundles, tell=tell, on_stall=self._reported,
            )  # fmt: skip
        except BaseException:
            observed.close()
            raise
        self.watch = AttachedWatch(
            self._site, attach, observed, stall, stop,
            on_sample=self._runner.sampled, before_stop=self._runner.before_stop, on_stall=self._runner.left_alone,
            busy=self._runner.is_busy,
        )  # fmt: skip
        self._tell, self._secrets = tell, secrets
        self.watch.contradict = self._runner.contradict
        self.watch.on_start, self.watch.on_stop = self._runner.narrator.start, self._runner.narrator.stopping
        self.watch.written = self._runner.examiner.written
        self.problems = self._runner.problems

    def close(self) -> None:
        """Release the process and the directories."""
        self._runner.narrator.gone(self.watch)
        self.watch.adopted.close()
        self._site.close()

    def run(self) -> tuple[Outcome, Report]:
        """Watch until the process ends, is stopped, or `watch.cancel` is called.

        Returns:
            How it ended, and the report, which has been written.

        Raises:
            CachewatchError: the directories could not be measured at the start.
        """
        self._tell(redact_all(Ready(self.watch.job.name, tuple(self._site.paths)), self._secrets))
        outcome = run_watch(self.watch)
        outcome = self._runner.conclude(self.watch, outcome)
        report = self._runner.report(self.watch, outcome)
        self._runner.write(report, self._report_path)
        return outcome, report

    def _reported(self, report: Report) -> None:
        self._runner.write(report, self._report_path)
        if self._tell_stall is not None:
            self._tell_stall(report)


def _environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with: only to find the values that must not be shown."""

    def read(of: int) -> bytes:
        try:
            return read_memory_file(of, "environ")
        except OSError:
            return b""

    text = os.fsdecode(read_each([pid], read, each_s=_ENVIRON_S).get(pid, b""))
    split = (pair.partition("=") for pair in text.split("\0"))
    return {name: value for name, _, value in split if name}
