"""A watch over a running process from pre-flight to report, for command and flow; and `watch`, for programs.

Neither needs Prefect.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prefect_cachewatch.common.aside import Aside, Files, look_ahead
from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.secrets import secret_values
from prefect_cachewatch.common.text import for_terminal, show_process
from prefect_cachewatch.config import AttachJob, CacheJob, Outputs, StallPolicy, StopPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.postmortem.examination import LATE_MODULES
from prefect_cachewatch.postmortem.report import Report, check_report_path
from prefect_cachewatch.run.filled_key import known_key
from prefect_cachewatch.run.host_board import neighbours_on_host
from prefect_cachewatch.run.learning import Learning, run_learned
from prefect_cachewatch.run.outputs import check_outputs, check_outputs_ahead
from prefect_cachewatch.run.placement import Runtime, place_job, require_directories
from prefect_cachewatch.run.runner import Runner
from prefect_cachewatch.supervise.adopted import AttachedProcess
from prefect_cachewatch.supervise.pinned_process import PinnedProcess
from prefect_cachewatch.supervise.proc import descendants, read_memory_file
from prefect_cachewatch.supervise.reading import argv_within
from prefect_cachewatch.supervise.supervisor import Observed
from prefect_cachewatch.supervise.turns import read_each
from prefect_cachewatch.watching.attached import AttachedWatch
from prefect_cachewatch.watching.attempt import Outcome, Watch, run_watch
from prefect_cachewatch.watching.emptiness import directories_written, writers_below
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
        bundle_root: where bundles go; default in the user's state directory.
        on_sample: called after each measurement; must not block.
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
        bundle_root: Path | None = None,
        on_sample: Callable[[Watch], None] | None = None,
        on_stall: Callable[[Report], None] | None = None,
        files: Files,
    ) -> None:
        refuse_learned(stall)
        if report is not None:
            report = report.absolute()
            look_ahead(files, f"report file {report}", check_report_path, report)
        self._report_path, self._tell_stall = report, on_stall
        observed, cache_dirs = _find(attach, stop)
        try:
            check = functools.partial(
                check_outputs, cache_dirs, attach.ignore, report=report, bundle_dir=bundle_root,
                rewritten=attach.on_stall == "report",
            )  # fmt: skip
            if report is not None or bundle_root is not None:
                look_ahead(files, "the directory of --report or --bundle-dir, or the cache directory,", check)
            secrets = () if observed.subject.pid is None else secret_values(_environment(observed.subject.pid))
            self._site = CacheDirectories(cache_dirs, ignore=attach.ignore, create=False, lock=False, files=files)
            neighbours = neighbours_on_host(files, self._site, stall, attach.subject)
            self._runner = Runner(
                files, secrets, bundles=bundles, bundle_root=bundle_root, on_sample=on_sample,
                on_stall=self._reported, neighbours=neighbours,
            )  # fmt: skip
        except BaseException:
            observed.close()
            raise
        self.watch = AttachedWatch(
            self._site, attach, observed, stall, stop,
            on_sample=self._runner.sampled, before_stop=self._runner.before_stop, on_stall=self._runner.left_alone,
            busy=self._runner.is_busy,
        )  # fmt: skip
        if neighbours is not None:
            self.watch.fate_of_storage = neighbours.fate
        self.problems = self._runner.problems

    def close(self) -> None:
        """Release the process and the directories."""
        self._runner.let_go(self.watch)
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
        outcome = self._runner.conclude(self.watch, outcome)
        report = self._runner.report(self.watch, outcome)
        self._runner.write(report, self._report_path)
        return outcome, report

    def _reported(self, report: Report) -> None:
        self._runner.write(report, self._report_path)
        if self._tell_stall is not None:
            self._tell_stall(report)

    def _others_that_write(self) -> list[str]:
        # A daemon that was never seen in the tree is named but not stopped, since its owner is not known.
        pids = writers_below(self._site.paths, {os.getpid()})
        shown = (show_process(pid, argv_within(pid)) for pid in pids[:5])
        return [
            f"{who} still has a file in the cache open for writing; it was not seen to belong to the process, and was "
            "left alone"
            for who in shown
        ]


def watch(
    job: CacheJob | AttachJob,
    stall: StallPolicy | None = None,
    stop: StopPolicy | None = None,
    *,
    log: Path | None = None,
    show_output: bool = False,
    bundle: bool = True,
    bundle_dir: Path | None = None,
    on_stall: Callable[[Report], None] | None = None,
) -> Report:
    """Run a generator under guard, or watch a running one, until it ends or stalls; without Prefect.

    A stall is a result, not an error: the report's `outcome` is `stalled`, and the whole process tree is gone. It makes
    one attempt, and a second one after a stop by a learned window. An interrupted call (Ctrl-C too) stops the generator
    first; it leaves a watched process alone.

    Args:
        job: a command to run (`CacheJob`), or a process or container that runs (`AttachJob`).
        stall: when silence is a stall; default `StallPolicy()`.
        stop: how the tree is stopped; default `StopPolicy()`.
        log: file for the generator's output; its end is in the report in any case. For a `CacheJob` only.
        show_output: whether the output is copied to this process's own. For a `CacheJob` only.
        bundle: whether a stall or a failure gets a post-mortem bundle.
        bundle_dir: where bundles go; default in the user's state directory.
        on_stall: called in another thread with the report of each stall that leaves the process alone. For an
            `AttachJob` only.

    Returns:
        The report, with all measurements.

    Raises:
        InputError: an argument cannot be used; nothing was started or changed.
        CachewatchError: the generator could not be started or measured.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     job = CacheJob(name="x", command=["touch", f"{directory}/a.bin"], cache_dirs=[Path(directory)])
        ...     report = watch(job, StallPolicy(stall_after_s=60))
        >>> report.outcome, report.growth.files_present
        ('completed', 1)
    """
    stall, stop = stall or StallPolicy(), stop or StopPolicy()
    log = log.absolute() if log is not None else None
    if isinstance(job, AttachJob) and (log is not None or show_output):
        raise InputError("log and show_output are for a command: what runs already prints where it was told to")
    with contextlib.closing(
        Aside.spawn(
            (
                *LATE_MODULES,
                *(f"prefect_cachewatch.run.{name}" for name in ("filled_key", "host_board", "learning", "missed")),
            )
        )
    ) as files:  # this process may have threads
        if isinstance(job, CacheJob):
            place, env = _placed(job, files, log)
            known = known_key(job, files, env)

            def attempt(number: int) -> tuple[Outcome, Report]:
                runner = Runner(
                    files, secret_values(env), attempt=number, bundles=bundle, bundle_root=bundle_dir,
                    neighbours=neighbours_on_host(files, site, stall, job.name), known=known,
                )  # fmt: skip
                watch = runner.watch(place, site, stall, stop, env, log=log, show_output=show_output, learning=learning)
                outcome = runner.run(watch)
                return outcome, runner.report(watch, outcome)

            with place.open_site(files=files) as site:
                learning = Learning(job, stall, site, files, lambda _: None)
                return run_learned(learning, attempt)[1]
        run = AttachedRun(job, stall, stop, bundles=bundle, bundle_root=bundle_dir, on_stall=on_stall, files=files)
        with run:
            return run.run()[1]


def _placed(job: CacheJob, files: Files, log: Path | None) -> tuple[Runtime, dict[str, str]]:
    if job.env_secrets:
        raise InputError(
            "env_secrets name Prefect's Secret blocks, and there is no Prefect here: put the values into env"
        )
    require_directories(job)
    check_outputs_ahead(files, job, Outputs(log=log))
    env = dict(os.environ) | job.env
    return place_job(job, env, files), env


def _find(attach: AttachJob, stop: StopPolicy) -> tuple[Observed, list[Path]]:
    """Find the process to watch, and the paths of its directories on this host."""
    to_stop = attach.on_stall == "stop"
    if attach.container is not None:
        from prefect_cachewatch.containers.adopted import AdoptedContainer, host_path  # noqa: PLC0415 - an extra

        container = AdoptedContainer(attach.container, attach.engine, stop.grace_s, to_stop=to_stop)
        return container, [host_path(path, container.mounts) for path in attach.cache_dirs]
    assert attach.pid is not None
    pinned = PinnedProcess(attach.pid, start_ticks=attach.start_ticks, to_stop=to_stop)
    return AttachedProcess(pinned, stop.grace_s, attach.wait_for), list(attach.cache_dirs)


def suggest_directories(pid: int) -> str:
    """Say where a process writes, as the end of a message that asks for a cache directory.

    Args:
        pid: pid of the process.

    Returns:
        A clause with at most 4 directories; empty if nothing is known.
    """
    found = [path for path in directories_written([pid, *descendants(pid)]) if path != "/"][:4]
    return f"; it has files open for writing in {', '.join(for_terminal(path) for path in found)}" if found else ""


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
