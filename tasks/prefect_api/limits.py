"""Global concurrency limits of Prefect by name, whatever letters the name has."""

from __future__ import annotations

from urllib.parse import quote

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectNotFound


def read_limit(client: SyncPrefectClient, name: str) -> GlobalConcurrencyLimitResponse | None:
    """Return a limit; None if there is none of that name."""
    try:
        return client.read_global_concurrency_limit_by_name(
            quote(name, safe="")
        )  # Prefect puts it into a path as it is
    except ObjectNotFound:
        return None


def set_limit(client: SyncPrefectClient, limit: GlobalConcurrencyLimitResponse, slots: int) -> None:
    """Set the slots of a limit that was read; one that was made anew under its name is another one.

    Raises:
        ObjectNotFound: it is gone.
    """
    client.update_global_concurrency_limit(str(limit.id), GlobalConcurrencyLimitUpdate(limit=slots))
