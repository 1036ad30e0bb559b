"""The table artifact of a fleet: made once, then updated in place, so that a long fleet fills no database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from prefect_cachewatch.common.text import for_markdown, slugify
from prefect_cachewatch.fleet.outcome import count_rows
from prefect_cachewatch.fleet.rows import JobRow
from prefect_cachewatch.fleet.table import table_rows
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger

__all__ = ["FleetTable"]


class FleetTable:
    """How a fleet's jobs stand, for the UI.

    Args:
        name: of the fleet.
        logger: of its run.
    """

    def __init__(self, name: str, logger: AnyLogger) -> None:
        self._name, self._logger = name, logger
        self._artifact: UUID | None = None
        self._said: Any = None

    def publish(self, rows: Sequence[JobRow]) -> None:
        """Make or update the table; a failure is a log line, the jobs do not depend on it.

        Args:
            rows: of all jobs.
        """
        table = table_rows(rows)
        if table == self._said:
            return
        text = f"{for_markdown(self._name)}: {count_rows(rows)}"
        try:
            if self._artifact is None:
                made = create_table_artifact(table, key=f"cachewatch-fleet-{slugify(self._name)}", description=text)
                assert isinstance(made, UUID)
                self._artifact = made
            else:
                with get_client(sync_client=True) as client:
                    client.update_artifact(self._artifact, ArtifactUpdate(data=json.dumps(table), description=text))
            self._said = table
        except Exception as error:  # noqa: BLE001 - any failure of the API
            self._logger.warning("the table of the fleet was not published: %s", type(error).__name__)
