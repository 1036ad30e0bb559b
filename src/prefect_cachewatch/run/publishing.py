"""Verify, publish and activate the build of a completed attempt, told step by step; see `delivery` for the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from prefect_cachewatch.common.secrets import hide, redact_all
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.engine.events import Checked, Unpublished
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.run.delivery import PublishSession, describe_publication, describe_refusal, growth_summary
from prefect_cachewatch.run.doubts import DOUBTS, describe_doubts
from prefect_cachewatch.store.checks import Finding, refusals
from prefect_cachewatch.watching.leaving import describe_left_alone

if TYPE_CHECKING:
    from prefect_cachewatch.report.report import Report
    from prefect_cachewatch.run.generation import Generation
    from prefect_cachewatch.store.store import CacheStore
    from prefect_cachewatch.watching.attempt import Outcome
    from prefect_cachewatch.watching.sections import Publication


def publish(
    generation: Generation, delivery: PublishSession, outcome: Outcome, report: Report
) -> tuple[str, Publication, bool]:
    """Verify, publish and activate what a completed attempt wrote.

    Args:
        generation: the run.
        delivery: its publication.
        outcome: of the completed attempt.
        report: of the same.

    Returns:
        How that ended in a sentence or two, what became of the build, and whether it is published.
    """
    message = _verify(generation, delivery)
    is_good = message is None
    if message is None:
        message, is_good = _publish(generation, delivery, outcome, report.attempt)
    more = [describe_left_alone(report.would_be_stops)]
    if is_good:
        more.insert(0, _doubts_of(delivery))
    said = hide(" ".join(filter(None, (message, *more))), generation.secrets)
    done = delivery.publication or delivery.unfinished()
    if is_good and done.current:
        collect_surplus(delivery.store, delivery.name, delivery.policy.keep, generation.engine.note)
    return said, done, is_good


def _verify(generation: Generation, delivery: PublishSession) -> str | None:
    """Check the build; returns why it is refused, None for a good one."""
    publication: Publication | None = None
    try:
        refused = delivery.verify(generation.env, generation.secrets)
        for finding in delivery.findings:
            if finding.severity == "warn":
                generation.engine.note(finding.message, fault=True)
        message = "The build is good."
        if refused:
            message, publication = _refuse(delivery, refused)
    except StoreError as error:  # the generator has removed the build, or the refusal cannot be noted
        refused, message = [Finding("unreadable", error.message)], error.message
    told = asdict(publication) if publication is not None else None
    generation.engine.tell(redact_all(Checked(not refused, message, told), generation.secrets))
    return message if refused else None


def _publish(generation: Generation, delivery: PublishSession, outcome: Outcome, attempt: int) -> tuple[str, bool]:
    refused: Publication | None = None
    try:
        try:
            done = delivery.publish(growth_summary(outcome, attempt))
        except BuildDamaged as error:
            # A file that cannot be read would stop every later run of the key: it is refused once.
            delivery.findings = [*delivery.findings, Finding("unreadable", error.message)]
            message, refused = _refuse(delivery, refusals(delivery.findings))
        else:
            if delivery.policy.activate:
                done = delivery.activate(done)
            message = describe_publication(delivery.name, done)
            generation.tell_published(done, message, is_switched=delivery.policy.activate)
            return message, True
    except StoreError as error:
        message = error.message
    told = asdict(refused) if refused is not None else None
    generation.engine.tell(redact_all(Unpublished(message, told), generation.secrets))
    return message, False


def _refuse(delivery: PublishSession, refused: Sequence[Finding]) -> tuple[str, Publication]:
    message = describe_refusal(delivery.name, refused)
    return message, delivery.refuse(message)


def _doubts_of(delivery: PublishSession) -> str:
    """Tell of the warnings that speak against a published build; not of those about its size and its links."""
    found = [one for one in delivery.findings if one.severity == "warn" and one.category in DOUBTS]
    return describe_doubts(found) if found else ""


def collect_surplus(store: CacheStore, name: str, keep: int | None, note: Callable[..., None]) -> None:
    """Remove surplus builds after an activation; a failure is only a warning, since the cache is in use already.

    Args:
        store: the store.
        name: the cache.
        keep: how many builds stay; None for all.
        note: takes what was done, or with `fault` what was not.
    """
    if keep is None:
        return
    try:
        done = store.gc(name, keep=keep)
    except (StoreError, OSError) as error:
        note(f"old builds were not removed: {error}", fault=True)
        return
    if done.removed:
        note(f"removed {len(done.removed)} old builds, {format_bytes(done.freed_bytes)}")
