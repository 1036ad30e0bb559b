"""`watch`: one guarded attempt, or a watch over what runs already, as a function for programs without Prefect."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from prefect_cachewatch.common.aside import Aside, Files
from prefect_cachewatch.common.secrets import LineRedactor, secret_values
from prefect_cachewatch.config import AttachJob, CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.postmortem.examination import LATE_MODULES, Examiner
from prefect_cachewatch.postmortem.report import Report, build_report
from prefect_cachewatch.run.attached import AttachedRun
from prefect_cachewatch.run.outputs import check_outputs_ahead
from prefect_cachewatch.run.placement import place_job, require_directories
from prefect_cachewatch.supervise.output import OutputPump
from prefect_cachewatch.watching.attempt import Watch, run_watch

__all__ = ["watch"]


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
    """Run a generator under guard, or watch one that runs already, until it ends or stalls; without Prefect.

    A stall is a result, not an error: `outcome` of the report is `stalled`, and the whole process tree is gone. One attempt
    is made. Whatever interrupts the call (Ctrl-C too) stops the generator first; one that was only watched is left alone.

    Args:
        job: a command to run (`CacheJob`), or a process or container that runs (`AttachJob`).
        stall: when silence is a stall; default `StallPolicy()`.
        stop: how the tree is stopped; default `StopPolicy()`.
        log: file for the generator's output; its end is in the report in any case. Of a `CacheJob` alone.
        show_output: whether the output is copied to this process's own. Of a `CacheJob` alone.
        bundle: whether a stall or a failure gets a post-mortem bundle.
        bundle_dir: where bundles go; default in the user's state directory.
        on_stall: called in another thread with the report of each stall that leaves the process alone. Of an `AttachJob` alone.

    Returns:
        How it ended, with all that was measured.

    Raises:
        InputError: something cannot be used as asked; nothing was started, nothing touched.
        CachewatchError: it could not be started or measured.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     job = CacheJob(name="x", command=["touch", f"{directory}/a.bin"], cache_dirs=[Path(directory)])
        ...     report = watch(job, StallPolicy(stall_after_s=60))
        >>> report.outcome, report.growth.files_present
        ('completed', 1)
    """
    stall, stop = stall or StallPolicy(), stop or StopPolicy()
    if isinstance(job, AttachJob) and (log is not None or show_output):
        raise InputError("log and show_output are for a command: what runs already prints where it was told to")
    with contextlib.closing(Aside.spawn(LATE_MODULES)) as files:  # this process may have threads
        if isinstance(job, CacheJob):
            return _generate(job, stall, stop, files, log, show_output, bundle, bundle_dir)
        run = AttachedRun(
            job, stall, stop, bundles=bundle, bundle_root=bundle_dir, on_stall=on_stall, files=files
        )  # fmt: skip
        with run:
            return run.run()[1]


def _generate(
    job: CacheJob,
    stall: StallPolicy,
    stop: StopPolicy,
    files: Files,
    log: Path | None,
    show_output: bool,
    bundle: bool,
    bundle_dir: Path | None,
) -> Report:
    if job.env_secrets:
        raise InputError(
            "env_secrets name Prefect's Secret blocks, and there is no Prefect here: put the values into env"
        )
    require_directories(job)
    log = log.absolute() if log is not None else None
    check_outputs_ahead(files, job, log=log, report=None, record=None)
    env = dict(os.environ) | job.env
    place, secrets = place_job(job, env, files), secret_values(env)
    examiner = Examiner(secrets=secrets, bundles=bundle, bundle_root=bundle_dir, files=files)
    with place.open_site(files=files) as site:
        output = OutputPump(log, pass_through=show_output, files=files)
        attempt = Watch(
            site, place.job, stall, stop, env=place.environment(env), output=output,
            on_sample=examiner.sampled, before_stop=examiner.before_stop,
            make_supervisor=place.supervisor(site.paths), files=files,
        )  # fmt: skip
        outcome = examiner.conclude(attempt, run_watch(attempt))
    tail = LineRedactor(secrets).lines(output.tail_lines(50))
    report = build_report(outcome, name=job.name, command=job.command, log_tail=tail, secrets=secrets)
    return examiner.write_bundle(report, output)
