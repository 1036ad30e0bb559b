"""Verify, publish and activate a generated build as Prefect tasks, with its asset and its events.

The asset is what consumers open, the same for every build of a cache; the events are about the
cache too, so that one automation follows all its builds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from prefect import State, get_run_logger, task
from prefect.assets import Asset, AssetProperties, materialize
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.states import Completed, Failed
from prefect.tasks import MaterializingTask

from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.publish.checks import Finding, refusals
from prefect_cachewatch.publish.publication import Publication
from prefect_cachewatch.run.delivery import Delivery, describe_publication, describe_refusal

__all__ = ["asset_key", "collect_builds", "emit_cache_event", "event_payload", "publisher_of", "verify_build"]

# What Prefect refuses in an asset's key, and control characters.
_NOT_IN_KEY = re.compile(r"[\s#?&%\"'<>\[\]{}|\\^`\x00-\x1f\x7f-\x9f]")
_KEY_MAX = 512
_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}


def asset_key(path: str) -> str:
    """Name the asset that a path is, as Prefect wants it.

    Args:
        path: absolute.

    Returns:
        A `file://` address; characters that Prefect refuses are dashes in it.

    Example:
        >>> asset_key("/mnt/caches/llama 3/current")
        'file:///mnt/caches/llama-3/current'
    """
    return f"file://{_NOT_IN_KEY.sub('-', path.encode('utf-8', 'replace').decode())}"[:_KEY_MAX]


def emit_cache_event(kind: str, name: str, payload: Mapping[str, Any]) -> bool:
    """Emit `cachewatch.cache.<kind>` about a cache.

    Args:
        kind: published, activated, rolled-back or quarantined.
        name: of the cache.
        payload: build, key, paths and numbers; nothing secret.

    Returns:
        Whether it was handed to Prefect.
    """
    resource = {
        "prefect.resource.id": f"cachewatch.cache.{slugify(name)}",
        "prefect.resource.name": for_terminal(name, 100),
    }
    try:
        emit_event(f"cachewatch.cache.{kind}", resource=resource, payload=dict(payload))
    except Exception:  # noqa: BLE001 - an event that cannot be sent takes nothing back
        return False
    return True


@task(name="verify-build", task_run_name="verify-build", **_OPTIONS)
def verify_build(delivery: Delivery, env: Mapping[str, str], secrets: tuple[str, ...]) -> State[None]:
    """Check a generated build; put it into quarantine where the checks refuse it.

    Args:
        delivery: after a completed generation.
        env: whole environment of the user's check command.
        secrets: values that must not appear in a message.

    Returns:
        Completed; or Failed, named `VerificationFailed`. `delivery.publication` says where it lies.
    """
    logger = get_run_logger()
    try:
        refused = delivery.verify(env, secrets)
        for finding in delivery.findings:
            if finding.severity == "warn":
                logger.warning("%s", finding.message)
        return _refuse(delivery, refused) if refused else Completed(message="The build is good.")
    except StoreError as error:  # the generator removed it, or the quarantine
        return Failed(name="VerificationFailed", message=error.message)


def publisher_of(delivery: Delivery) -> MaterializingTask[..., State[None]]:
    """Make the task `publish-cache` for a cache: what it materializes is known only here.

    Args:
        delivery: says what consumers open.

    Returns:
        A task that takes the delivery and a growth summary; Completed, or Failed, named `VerificationFailed`, where
        the build changed meanwhile or could not be written. `delivery.publication` says what became of it.
    """
    properties = AssetProperties(name=for_terminal(delivery.name, 100), description="Tensor cache, whole and verified.")
    asset = Asset(key=asset_key(delivery.current), properties=properties)

    @materialize(asset, by="cachewatch", name="publish-cache", task_run_name="publish-cache", **_OPTIONS)
    def publish_cache(delivery: Delivery, growth: Mapping[str, Any] | None) -> State[None]:
        try:
            try:
                done = delivery.publish(growth)
            except BuildDamaged as error:
                # A file that cannot be read would stop every later run of the key as well: aside with it, once.
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


def collect_builds(delivery: Delivery) -> None:
    """Remove surplus builds after an activation; a failure is a warning, the cache is in use already.

    Args:
        delivery: of the run; its policy says how many stay.
    """
    logger = get_run_logger()
    try:
        done = delivery.collect()
    except (StoreError, OSError) as error:
        logger.warning("old builds were not removed: %s", error)
        return
    if done is not None and done.removed:
        logger.info("removed %d old builds, %s", len(done.removed), format_bytes(done.freed_bytes))


def _refuse(delivery: Delivery, refused: Sequence[Finding]) -> State[None]:
    message = describe_refusal(delivery.name, refused)
    publication = delivery.refuse(message)
    emit_cache_event("quarantined", delivery.name, {**event_payload(publication), "message": message})
    return Failed(name="VerificationFailed", message=message)


def event_payload(publication: Publication) -> dict[str, Any]:
    """What an event says of a build.

    Args:
        publication: what became of it.

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
