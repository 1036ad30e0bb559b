"""Steps of a deployment as Prefect tasks: activate, check the health, roll back, clean up; thin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.health import HealthCheck, HealthResult, check_health
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.publication import Publication
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.tasks.publication import emit_cache_event

__all__ = ["activate_build", "check_deployment", "collect_surplus", "roll_back_build"]

_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}


@task(name="activate", task_run_name="activate", **_OPTIONS)
def activate_build(store: str, name: str, built: Publication) -> str | None:
    """Make a published build current.

    Args:
        store: root of the store.
        name: the cache.
        built: the build.

    Returns:
        The build that was current before.
    """
    switched = CacheStore(store).activate(name, built.build_id)
    payload = {"build_id": built.build_id, "previous": switched.previous, "key": built.key, "path": built.path}
    emit_cache_event("activated", name, payload)
    get_run_logger().info("%s is current now", built.build_id)
    return switched.previous


@task(name="health-check", task_run_name="health-check", **_OPTIONS)
def check_deployment(health: HealthCheck, cache_dir: str, env: Mapping[str, str]) -> HealthResult:
    """Ask whether what uses the cache works, until the deadline.

    Args:
        health: what to ask.
        cache_dir: path of the activated build.
        env: whole environment of a command.

    Returns:
        Whether it does, and why not.
    """
    logger = get_run_logger()
    result = check_health(health, cache_dir, env)
    if result.ok:
        logger.info("healthy after %s", format_duration(result.duration_s))
    else:
        logger.error("not healthy: %s", result.reason)
    return result


@task(name="roll-back", task_run_name="roll-back", **_OPTIONS)
def roll_back_build(store: str, name: str, build_id: str, why: str) -> str:
    """Note that a build is unhealthy, and make the one current that was so before, unless somebody has switched meanwhile.

    Args:
        store: root of the store.
        name: the cache.
        build_id: the build to go back from.
        why: what the health check said.

    Returns:
        The build that is current now.
    """
    switched = CacheStore(store).rollback(name, expected=build_id, unhealthy=why)
    emit_cache_event("rolled-back", name, {"build_id": switched.build_id, "previous": build_id, "path": switched.path})
    logger = get_run_logger()
    for skipped in switched.skipped:
        logger.warning("passed over: %s", skipped)
    logger.warning("rolled back from %s to %s", build_id, switched.build_id)
    return switched.build_id


@task(name="clean-up", task_run_name="clean-up", **_OPTIONS)
def collect_surplus(store: str, name: str, publish: PublishPolicy) -> int:
    """Remove surplus builds; a failure is a warning, the cache is in use already.

    Args:
        store: root of the store.
        name: the cache.
        publish: says how many stay.

    Returns:
        How many were removed.
    """
    if publish.keep is None:
        return 0
    logger = get_run_logger()
    try:
        done = CacheStore(store).gc(
            name, keep=publish.keep, keep_quarantined=publish.keep_quarantined, grace_s=publish.gc_grace_s
        )
    except (StoreError, OSError) as error:
        logger.warning("old builds were not removed: %s", error)
        return 0
    if done.removed:
        logger.info("removed %d old builds, %s", len(done.removed), format_bytes(done.freed_bytes))
    return len(done.removed)
