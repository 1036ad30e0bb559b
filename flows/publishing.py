"""What `generate_cache` does around its attempts when the cache is published: before them, between them, after.

The steps themselves are `delivery` and the tasks of `publication`; here they meet log, report and state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.errors import ScanError
from prefect_cachewatch.postmortem.report import Report, cached_report
from prefect_cachewatch.publish.suspects import Suspect
from prefect_cachewatch.run.delivery import Delivery, describe_publication, growth_summary
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.publication import (
    collect_builds,
    emit_cache_event,
    event_payload,
    publisher_of,
    verify_build,
)
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.site import CacheSite

__all__ = ["begin_build", "deliver_build", "find_cached", "leave_build", "prepare_retry", "resume_build"]

_NAMED = 5
_NOTE_S = 5.0


def find_cached(delivery: Delivery, job: CacheJob) -> Report | None:
    """Look whether the cache is whole already; if not, whether there is room for it.

    Args:
        delivery: of the run.
        job: as it was given.

    Returns:
        The report of a run that has nothing to do, or None.

    Raises:
        NotEnoughSpace: it has to be generated, and there is no room.
    """
    started_s = time.time()
    found = delivery.find_cached()
    if found is None:
        delivery.require_space()
        return None
    if found.current is None and delivery.policy.activate:
        found = delivery.activate(found)
        emit_cache_event("activated", job.name, event_payload(found))
    message = describe_publication(job.name, found)
    return cached_report(found, name=job.name, command=job.command, message=message, started_s=started_s)


def begin_build(
    delivery: Delivery, job: CacheJob, *, clean: bool, grace_s: float, logger: AnyLogger
) -> tuple[CacheJob, dict[str, str]]:
    """Take the directory to write to.

    Args:
        delivery: of the run.
        job: as it was given.
        clean: whether what a killed run left is not to be resumed.
        grace_s: how long the generator may write on when this run is killed.
        logger: of the run.

    Returns:
        The job that is told where to write, and what its environment gains by that.
    """
    if delivery.store is None:
        # Looked at before the marker goes.
        CacheSite(job.cache_dirs, expected_bytes=job.expected_bytes).close()
    delivery.begin(clean=clean, grace_s=grace_s)
    _log_notes(delivery, logger)
    logger.info("generating build %s at %s", delivery.target.build_id, delivery.target.path)
    # A Secret block's value is worth more than the same variable in env.
    return delivery.job, {name: value for name, value in delivery.env.items() if name not in job.env_secrets}


def resume_build(delivery: Delivery, *, window_s: float, clean: bool, logger: AnyLogger) -> None:
    """Deal with what a killed run left; its generator is gone once the directories' locks are held.

    Args:
        delivery: of the run.
        window_s: the stall window, for what that run may have cut.
        clean: remove all of it.
        logger: of the run.
    """
    _log_removed(delivery.resume(clean=clean, window_s=window_s), logger)
    _log_notes(delivery, logger)


def prepare_retry(delivery: Delivery, *, window_s: float, logger: AnyLogger) -> None:
    """Remove what the attempt that has just failed may have cut.

    Args:
        delivery: of the run.
        window_s: the stall window.
        logger: of the run.
    """
    _log_removed(delivery.prepare_retry(window_s), logger)


def leave_build(delivery: Delivery, site: CacheSite) -> None:
    """Note for whoever resumes the build what its last attempt may have cut, as far as the watch has seen it.

    Args:
        delivery: of the run.
        site: whose scan process writes it: its storage may hang.
    """
    target = delivery.target
    text = target.reported_json(delivery.cut_files)
    with contextlib.suppress(ScanError):  # less is known then, and change times are left
        site.scanner.request("mark", _NOTE_S, path=target.reported_record, text=text)


def deliver_build(
    delivery: Delivery,
    env: Mapping[str, str],
    secrets: tuple[str, ...],
    outcomes: Sequence[Outcome],
    report: Report,
    logger: AnyLogger,
) -> tuple[State[None], Report]:
    """Verify, publish and activate what a completed attempt wrote.

    Args:
        delivery: of the run.
        env: whole environment of the user's check command.
        secrets: values that must not appear in a message.
        outcomes: of all attempts, the completed one last.
        report: of that one.
        logger: of the run.

    Returns:
        Completed, or Failed named `VerificationFailed`; and the report that says so too.
    """
    state: Any = verify_build(delivery, env, secrets, return_state=True)
    if state.is_completed():
        growth = growth_summary(outcomes[-1], len(outcomes))
        state = publisher_of(delivery)(delivery, growth, return_state=True)
    message = state.message or "The build was not published."
    done = delivery.publication or delivery.unfinished()
    if not state.is_completed():
        logger.error(message)
        failed = replace(report, outcome="verification_failed", message=message, publication=done)
        return Failed(name="VerificationFailed", message=message), failed
    logger.info(message)
    if done.current:
        collect_builds(delivery)
    return Completed(message=message), replace(report, message=message, publication=done)


def _log_notes(delivery: Delivery, logger: AnyLogger) -> None:
    notes = delivery.target.notes
    while notes:
        logger.warning("%s", notes.pop(0))


def _log_removed(removed: Sequence[Suspect], logger: AnyLogger) -> None:
    if removed:
        names = ", ".join(for_terminal(suspect.path, 100) for suspect in removed[:_NAMED])
        more = f" and {len(removed) - _NAMED} more" if len(removed) > _NAMED else ""
        logger.warning("removed %d files that may be cut, before resuming: %s%s", len(removed), names, more)
