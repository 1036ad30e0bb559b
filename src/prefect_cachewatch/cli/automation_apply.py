"""Puts automations on a Prefect server: resolves names to ids, compares with the server, writes only what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from pydantic import ValidationError

from prefect_cachewatch.cli.automation_files import AutomationFile, is_reference, watched_deployment
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

Change = Literal["create", "update", "unchanged"]
_GENERATED = {"id", "created", "updated"}


@dataclass(frozen=True)
class Applied:
    """What was done to one automation, or in a dry run would be done."""

    name: str
    change: Change
    enabled: bool


@dataclass(frozen=True)
class _Planned:
    wanted: AutomationCore
    existing: Automation | None
    change: Change


async def apply_automations(
    client: PrefectClient,
    files: Sequence[AutomationFile],
    *,
    notify: str | None = None,
    run: str | None = None,
    dry_run: bool = False,
) -> list[Applied]:
    """Create or update automations by their names; all are checked before the first one is written.

    Args:
        client: client of the Prefect API.
        files: the automations to create.
        notify: TYPE/NAME of a notification block to use in place of those that the files name.
        run: FLOW/NAME of a deployment to run in place of those that the files name.
        dry_run: only say what would be done.

    Returns:
        One entry per file, in the files' order.

    Raises:
        InputError: a deployment or block does not exist, Prefect refuses a trigger, or the server has two automations
            of one name; nothing was written.
    """
    instead = {"send-notification": notify, "run-deployment": run}
    planned = [await _plan(client, file, instead) for file in files]
    for one in planned if not dry_run else ():
        try:
            if one.change == "create":
                await client.create_automation(one.wanted)
            elif one.change == "update":
                assert one.existing is not None
                await client.update_automation(one.existing.id, one.wanted)
        except PrefectHTTPStatusError as error:
            raise InputError(f"the server refused {for_terminal(one.wanted.name)!r}: {_detail(error)}") from error
    return [Applied(one.wanted.name, one.change, one.wanted.enabled) for one in planned]


async def _plan(client: PrefectClient, file: AutomationFile, instead: Mapping[str, str | None]) -> _Planned:
    actions = [
        await _with_ids(client, file, dict(action), instead.get(str(action.get("type"))))
        for action in file.body["actions"]
    ]
    trigger = dict(file.body["trigger"])
    if (watched := watched_deployment(file)) is not None:
        related = {label: value for label, value in trigger["match_related"].items() if label != "deployment"}
        identity = f"prefect.deployment.{await _deployment_id(client, file, watched)}"
        trigger["match_related"] = {**related, "prefect.resource.id": identity}
    body: dict[str, Any] = {**file.body, "trigger": trigger, "actions": actions}
    existing = await client.read_automations_by_name(file.name)
    if len(existing) > 1:
        raise InputError(f"there are {len(existing)} automations named {for_terminal(file.name)!r}: delete all but one")
    if existing and "enabled" not in body:
        body["enabled"] = existing[0].enabled  # a user's pause is kept
    try:
        wanted = AutomationCore.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{file.source}: {for_terminal(file.name)!r} is no automation that Prefect knows: {for_terminal(place)}: {for_terminal(first['msg'])}"
        ) from None
    if not existing:
        return _Planned(wanted, None, "create")
    same = _comparable(wanted) == _comparable(existing[0])
    return _Planned(wanted, existing[0], "unchanged" if same else "update")


async def _with_ids(
    client: PrefectClient, file: AutomationFile, action: dict[str, Any], instead: str | None
) -> dict[str, Any]:
    if "deployment" in action:
        name = str(action.pop("deployment"))
        action["deployment_id"] = await _deployment_id(client, file, instead or name)
    if "block" in action:
        name = str(action.pop("block"))
        action["block_document_id"] = await _block_id(client, file, instead or name)
    return action


async def _deployment_id(client: PrefectClient, file: AutomationFile, name: str) -> UUID:
    if not is_reference(name):
        raise InputError(
            "a deployment is named FLOW/NAME, for example follow-up-stall/follow-up-stall, and not "
            f"{for_terminal(name)}"
        )
    try:
        return (await client.read_deployment_by_name(name)).id
    except ObjectNotFound:
        raise InputError(
            f"{file.source}: there is no deployment {for_terminal(name)}: "
            f"prefect deploy --prefect-file prefect.yaml --name {for_terminal(name.partition('/')[2])} creates it"
        ) from None


async def _block_id(client: PrefectClient, file: AutomationFile, name: str) -> UUID:
    if not is_reference(name):
        raise InputError(
            f"a block is named TYPE/NAME, for example slack-webhook/cachewatch, and not {for_terminal(name)}"
        )
    kind, document = name.split("/")
    try:
        block = await client.read_block_document_by_name(document, kind)
    except ObjectNotFound:
        raise InputError(
            f"{file.source}: there is no block {for_terminal(name)}: create it in the UI (Blocks) or by "
            f"prefect block create {for_terminal(kind)}, or name another with --notify TYPE/NAME"
        ) from None
    return block.id


def _comparable(automation: AutomationCore) -> dict[str, Any]:
    """The part of an automation by which two are compared; the server gives triggers ids of their own."""
    wanted = AutomationCore.model_validate(automation.model_dump(include=set(AutomationCore.model_fields), mode="json"))
    plain: dict[str, Any] = _without_generated(wanted.model_dump(mode="json", exclude={"owner_resource"}))
    return plain


def _without_generated(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_generated(inner) for key, inner in value.items() if key not in _GENERATED}
    if isinstance(value, list):
        # Sets of names come back in any order.
        items = [_without_generated(inner) for inner in value]
        return sorted(items) if all(isinstance(item, str) for item in items) else items
    return value


def _detail(error: httpx.HTTPStatusError) -> str:
    return for_terminal(" ".join(error.response.text.split()), 300)
