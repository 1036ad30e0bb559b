"""Artifacts of a run, one request each.

Prefect's own functions send an event beside each request, though the server tells of each new version by itself
(`prefect.artifact-collection.created`, `.updated`). In a run of hours, progress alone would fill the tables of events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.utilities.context import get_task_and_flow_run_ids

Kind = Literal["markdown", "table", "progress"]
Data = str | float | Sequence[Mapping[str, Any]]


def create_artifact(kind: Kind, key: str, data: Data, description: str) -> UUID:
    """Create an artifact of the run that this is called in, the newest version of its key.

    Args:
        kind: as Prefect names it.
        key: small letters, digits and dashes.
        data: Markdown, per cent, or the rows of a table.
        description: Markdown.

    Returns:
        Its id.
    """
    task_run_id, flow_run_id = get_task_and_flow_run_ids()
    made = ArtifactCreate(
        type=kind,
        key=key,
        data=_stored(data),
        description=description,
        task_run_id=task_run_id,
        flow_run_id=flow_run_id,
    )
    body = made.model_dump(mode="json", exclude_unset=True)
    answer = get_client(sync_client=True).request("POST", "/artifacts/", json=body).raise_for_status()
    return UUID(answer.json()["id"])


def update_artifact(artifact_id: UUID, data: Data, description: str) -> None:
    """Change an artifact in place.

    Args:
        artifact_id: from `create_artifact`.
        data: as there.
        description: as there.
    """
    body = {"data": _stored(data), "description": description}
    client = get_client(sync_client=True)
    client.request("PATCH", "/artifacts/{id}", path_params={"id": artifact_id}, json=body).raise_for_status()


def _stored(data: Data) -> str | float:
    return data if isinstance(data, str | float) else json.dumps(data)
