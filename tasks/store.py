"""The cache store as Prefect tasks: activate, health check, roll back; thin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.run.health import HealthCheck, HealthResult, check_health
from prefect_cachewatch.run.publishing import collect_surplus
from prefect_cachewatch.store.store import Activation, CacheStore
from prefect_cachewatch.tasks.prefect_api.events import emit_cache_event

_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}


@task(name="activate-cache", task_run_name="activate-cache", **_OPTIONS)
def activate_cache(
    store: str,
    name: str,
    build_id: str | None = None,
    verify: Literal["quick", "full"] = "quick",
    forgive: bool = True,
) -> Activation:
    """Make a whole build current.

    Args:
        store: root of the store.
        name: the cache.
        build_id: which build; default the last published one.
        verify: how much of it is checked before the switch.
        forgive: whether one that was found unhealthy or damaged may be current again; false where no person asks for it.

    Returns:
        The switch that was made.
    """
    switched = CacheStore(store).activate(name, build_id, verify=verify, forgive=forgive)
    emit_cache_event("activated", name, _payload(switched))
    get_run_logger().info("%s is current now at %s", switched.build_id, switched.path)
    return switched


@task(name="health-check", task_run_name="health-check", **_OPTIONS)
def check_deployment(health: HealthCheck, cache_dir: str, env: Mapping[str, str]) -> HealthResult:
    """Ask until the deadline whether the consumers of the cache are healthy.

    Args:
        health: the check.
        cache_dir: path of the activated build.
        env: whole environment of a command.

    Returns:
        Whether they are healthy, and if not, why.
    """
    logger = get_run_logger()
    result = check_health(health, cache_dir, env)
    if result.ok:
        logger.info("healthy after %s", format_duration(result.duration_s))
    else:
        logger.error("not healthy: %s", result.reason)
    return result


@task(name="roll-back-cache", task_run_name="roll-back-cache", **_OPTIONS)
def roll_back_cache(
    store: str,
    name: str,
    verify: Literal["quick", "full"] = "quick",
    expected: str | None = None,
    unhealthy: str | None = None,
) -> Activation:
    """Make the build current that was current before.

    Args:
        store: root of the store.
        name: the cache.
        verify: how much of it is checked before the switch.
        expected: the build to go back from; if another one is current, the task fails.
        unhealthy: the health check's finding, which is noted of the build that is left.

    Returns:
        The switch that was made.
    """
    switched = CacheStore(store).rollback(name, verify=verify, expected=expected, unhealthy=unhealthy)
    emit_cache_event("rolled-back", name, _payload(switched))
    logger = get_run_logger()
    for skipped in switched.skipped:
        logger.warning("passed over: %s", skipped)
    logger.warning("rolled back from %s to %s", switched.previous, switched.build_id)
    return switched


def remove_surplus(store: str, name: str, keep: int | None) -> None:
    """Remove surplus builds after an activation, and log it; see `collect_surplus`.

    Args:
        store: root of the store.
        name: the cache.
        keep: how many builds stay; None for all.
    """
    logger = get_run_logger()

    def note(text: str, *, fault: bool = False) -> None:
        (logger.warning if fault else logger.info)("%s", text)

    collect_surplus(CacheStore(store), name, keep, note)


def _payload(switched: Activation) -> dict[str, Any]:
    made = switched.manifest
    return {
        "build_id": switched.build_id,
        "key": made.key,
        "bytes": made.total_bytes,
        "files": made.total_files,
        "path": switched.path,
        "previous": switched.previous,
    }
