"""The planner's task: set a storage's concurrency limit; the rules are the engine's."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.logging import get_run_logger

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.tasks.prefect_api.storage_slots import read_limit, set_limit


@task(name="set-storage-limit", cache_policy=NO_CACHE)
def set_storage_limit(name: str, limit: int | str, apply: bool) -> str:
    """Set a storage's global concurrency limit, or say what would be set.

    Args:
        name: name of the limit.
        limit: its new value, or why none is set.
        apply: False only looks.

    Returns:
        A sentence on what was set from what to what, or would be.

    Raises:
        InputError: a limit was to be set, and there is a reason not to.
    """
    logger, shown = get_run_logger(), for_terminal(name)
    if isinstance(limit, str):
        if apply:
            raise InputError(f"no limit is set for {shown}: {limit}")
        logger.warning("No limit would be set for %s: %s", shown, limit)
        return f"No limit would be set for {shown}: {limit}."
    with get_client(sync_client=True) as client:
        found = read_limit(client, name)
        before = found.limit if found else None
        if apply and found is None:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=limit))
        elif apply and found is not None and before != limit:
            set_limit(client, found, limit)
    if before == limit:
        said = f"The limit of {shown} stays at {before}"
    else:
        done = "was changed" if apply else "would change"
        said = f"The limit of {shown} {done} from {'no limit' if before is None else before} to {limit}"
    said += "" if apply else "; this is a dry run: apply=True sets it"
    if found is not None and not found.active:
        said += "; the limit is switched off, and stays so until prefect gcl enable"
    logger.info(said)
    return f"{said}."
