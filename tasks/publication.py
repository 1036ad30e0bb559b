"""Verify, publish and activate a generated build as Prefect tasks, with its asset and its events.

The asset is the path that consumers open, the same for every build of a cache. The events are about the
cache too, so that one automation follows all its builds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect import State, get_run_logger, task
from prefect.assets import Asset, AssetProperties, materialize
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed
from prefect.tasks import MaterializingTask

from prefect_cachewatch.common.secrets import hide
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.report.report import Report, cached_report
from prefect_cachewatch.run.delivery import PublishSession, describe_publication, describe_refusal, growth_summary
from prefect_cachewatch.run.doubts import DOUBTS, describe_doubts
from prefect_cachewatch.store.checks import Finding, refusals
from prefect_cachewatch.tasks.prefect_api.events import emit_cache_event
from prefect_cachewatch.tasks.store import collect_surplus
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.leaving import describe_left_alone
from prefect_cachewatch.watching.sections import Publication

# Characters that Prefect refuses in an asset's key, and control characters.
_NOT_IN_KEY = re.compile(r"[\s#?&%\"'<>\[\]{}|\\^`\x00-\x1f\x7f-\x9f]")
_KEY_MAX = 512
_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}


def asset_key(path: str) -> str:
    """Return the key of the asset that a path is, in Prefect's form.

    Args:
        path: absolute.

    Returns:
        A `file://` address; characters that Prefect refuses are dashes in it.

    Example:
        >>> asset_key("/mnt/caches/llama 3/current")
        'file:///mnt/caches/llama-3/current'
    """
    return f"file://{_NOT_IN_KEY.sub('-', path.encode('utf-8', 'replace').decode())}"[:_KEY_MAX]


def find_cached(delivery: PublishSession, job: CacheJob, *, clean: bool, limit_s: float | None) -> Report | None:
    """Check whether the cache is whole already; if not, become its writer, once no other run writes it.

    Args:
        delivery: the run's delivery.
        job: the job as it was given.
        clean: whether the build of a killed run is discarded rather than resumed.
        limit_s: the longest wait for another run that generates the same cache.

    Returns:
        The report of a run that has nothing to do, or None: then it is to be generated.

    Raises:
        NotEnoughSpace: it has to be generated, and there is no room.
        StoreBusy: a run with another key is at work on the cache, or the wait was too long.
    """
    started_s = time.time()
    found = delivery.find_or_begin(clean=clean, limit_s=limit_s)
    if found is None:
        return None
    if found.current is None and delivery.policy.activate:
        found = delivery.activate(found)
        emit_cache_event("activated", job.name, event_payload(found))
    message = describe_publication(job.name, found)
    return cached_report(found, name=job.name, command=job.command, message=message, started_s=started_s)


def deliver_build(
    delivery: PublishSession,
    env: Mapping[str, str],
    secrets: tuple[str, ...],
    outcomes: Sequence[Outcome],
    report: Report,
) -> tuple[State[None], Report]:
    """Verify, publish and activate what a completed attempt wrote.

    Args:
        delivery: the run's delivery.
        env: whole environment of the user's check command.
        secrets: values that must not appear in a message.
        outcomes: of all attempts, the completed one last.
        report: report of the completed attempt.

    Returns:
        Completed, or Failed named `VerificationFailed`; and the report with that result.
    """
    logger = get_run_logger()
    delivery.doubts = outcomes[-1].doubts
    state: Any = verify_build(delivery, env, secrets, return_state=True)
    if state.is_completed():
        growth = growth_summary(outcomes[-1], report.attempt)
        state = publisher_of(delivery)(delivery, growth, return_state=True)
    left_alone = describe_left_alone(report.would_be_stops)
    doubts = doubts_of(delivery) if state.is_completed() else ""
    message = hide(
        " ".join(filter(None, (state.message or "The build was not published.", doubts, left_alone))), secrets
    )
    done = delivery.publication or delivery.unfinished()
    if not state.is_completed():
        logger.error(message)
        failed = replace(report, outcome="verification_failed", headline="", facts=message, publication=done)
        return Failed(name="VerificationFailed", message=message), failed
    logger.info(message)
    if done.current:
        collect_surplus(delivery.store, delivery.name, delivery.policy)
    return Completed(message=message), replace(report, facts=message, publication=done)


def doubts_of(delivery: PublishSession) -> str:
    """Tell of the warnings that speak against a published build; not of those about its size and its links."""
    found = [one for one in delivery.findings if one.severity == "warn" and one.category in DOUBTS]
    return describe_doubts(found) if found else ""


@task(name="verify-build", task_run_name="verify-build", **_OPTIONS)
def verify_build(delivery: PublishSession, env: Mapping[str, str], secrets: tuple[str, ...]) -> State[None]:
    """Check a generated build; note it as refused if the checks refuse it.

    Args:
        delivery: the run's delivery, after a completed generation.
        env: whole environment of the user's check command.
        secrets: values that must not appear in a message.

    Returns:
        Completed; or Failed, named `VerificationFailed`. `delivery.publication` has the place of the build.
    """
    logger = get_run_logger()
    try:
        refused = delivery.verify(env, secrets)
        for finding in delivery.findings:
            if finding.severity == "warn":
                logger.warning("%s", finding.message)
        return _refuse(delivery, refused) if refused else Completed(message="The build is good.")
    except StoreError as error:  # the generator has removed the build, or the refusal cannot be noted
        return Failed(name="VerificationFailed", message=error.message)


def publisher_of(delivery: PublishSession) -> MaterializingTask[..., State[None]]:
    """Make the task `publish-cache` for a cache: only here is it known which asset it materializes.

    Args:
        delivery: has the path that consumers open.

    Returns:
        A task that takes the delivery and a growth summary; Completed, or Failed, named `VerificationFailed`, if
        the build changed meanwhile or could not be written. `delivery.publication` has the result.
    """
    properties = AssetProperties(name=for_terminal(delivery.name, 100), description="Tensor cache, whole and verified.")
    asset = Asset(key=asset_key(delivery.current), properties=properties)

    @materialize(asset, by="cachewatch", name="publish-cache", task_run_name="publish-cache", **_OPTIONS)
    def publish_cache(delivery: PublishSession, growth: Mapping[str, Any] | None) -> State[None]:
        try:
            try:
                done = delivery.publish(growth)
            except BuildDamaged as error:
                # A file that cannot be read would stop every later run of the key: it is refused once.
                delivery.findings = [*delivery.findings, Finding("unreadable", error.message)]
                return _refuse(delivery, refusals(delivery.findings))
            emit_cache_event("published", delivery.name, event_payload(done))
            if delivery.policy.activate or delivery.store is None:
                done = delivery.activate(done)
                emit_cache_event("activated", delivery.name, event_payload(done))
        except StoreError as error:
            return Failed(name="VerificationFailed", message=error.message)
        asset.add_metadata(
            {
                "bytes": done.total_bytes,
                "files": done.total_files,
                "key": done.key,
                "build_id": done.build_id,
                "path": done.path,
                "manifest": done.manifest,
            }
        )
        return Completed(message=describe_publication(delivery.name, done))

    return publish_cache


def _refuse(delivery: PublishSession, refused: Sequence[Finding]) -> State[None]:
    message = describe_refusal(delivery.name, refused)
    publication = delivery.refuse(message)
    emit_cache_event("quarantined", delivery.name, {**event_payload(publication), "message": message})
    return Failed(name="VerificationFailed", message=message)


def event_payload(publication: Publication) -> dict[str, Any]:
    """The payload of an event about a build.

    Args:
        publication: the result of publishing it.

    Returns:
        Build, key, paths, numbers and at most 50 findings.
    """
    return {
        "build_id": publication.build_id,
        "key": publication.key,
        "bytes": publication.total_bytes,
        "files": publication.total_files,
        "path": publication.path,
        "manifest": publication.manifest,
        "quarantine": publication.quarantine,
        "current": publication.current,
        "previous": publication.previous,
        "findings": list(publication.findings)[:50],
    }
