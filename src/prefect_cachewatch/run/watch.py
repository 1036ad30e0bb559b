"""`watch`: guards a command for programs; it needs no Prefect."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

from prefect_cachewatch.config import CacheJob, Outputs, StallPolicy, StopPolicy
from prefect_cachewatch.engine.client import is_silent, silence
from prefect_cachewatch.engine.events import AttemptWanted, Bye, Refused, Reported
from prefect_cachewatch.engine.front import Front, error_of, mourn
from prefect_cachewatch.engine.spec import make_spec
from prefect_cachewatch.errors import CachewatchError, GuardError, InputError
from prefect_cachewatch.report.report import Report, read_report
from prefect_cachewatch.run.placement import require_directories
from prefect_cachewatch.supervise.caller_signals import inherited_signals

_ENDS_S = 20.0  # beyond the grace period


def watch(
    job: CacheJob,
    stall: StallPolicy | None = None,
    stop: StopPolicy | None = None,
    *,
    log: Path | None = None,
    show_output: bool = False,
    bundle: bool = True,
    bundle_dir: Path | None = None,
) -> Report:
    """Run a generator under guard until it ends or stalls; without Prefect.

    A stall is a result, not an error: the report's `outcome` is `stalled`, and the whole process tree is gone. It makes
    one attempt, and a second one after a stop by a learned window. An interrupted call (Ctrl-C too) stops the generator
    first.

    Args:
        job: the command to run, and where it writes.
        stall: when silence is a stall; default `StallPolicy()`.
        stop: how the tree is stopped; default `StopPolicy()`.
        log: file for the generator's output; its end is in the report in any case.
        show_output: whether the output is copied to this process's own.
        bundle: whether a stall or a failure gets a post-mortem bundle.
        bundle_dir: where bundles go; default in the user's state directory.

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
    if job.env_secrets:
        raise InputError(
            "env_secrets name Prefect's Secret blocks, and there is no Prefect here: put the values into env"
        )
    require_directories(job)
    spec = make_spec(
        front="caller of watch()",
        job=job,
        stall=stall or StallPolicy(),
        stop=stop or StopPolicy(),
        outputs=Outputs(log=log.absolute() if log is not None else None, bundle=bundle, bundle_dir=bundle_dir),
        streams=(1, 2) if show_output else None,
        signals=inherited_signals(),
    )
    with contextlib.closing(Front(spec, job.name)) as front:
        try:
            return _read_out(front)
        except BaseException as error:
            front.engine.cancel(type(error).__name__)
            with contextlib.suppress(CachewatchError, TimeoutError):
                _read_out(front, (stop or StopPolicy()).grace_s + _ENDS_S)
            raise


def _read_out(front: Front, seconds: float = math.inf) -> Report:
    """Let all attempts begin, and return the last one's report; raises TimeoutError if there is none by then."""
    report, end_s = None, time.monotonic() + seconds
    while (event := front.next(end_s - time.monotonic())) is not None:
        if is_silent(event):
            raise silence(front.engine)
        match event:
            case AttemptWanted():
                front.engine.go()
            case Reported(final=True):
                report = read_report(event.report)
            case Refused():
                raise error_of(event)
            case Bye() if report is not None:
                return report
    raise GuardError(mourn(front.token))
