"""`cachewatch automations test`: sends a test message of each kind, through the server's automations or straight to a block."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import anyio
from prefect.client.orchestration import PrefectClient
from prefect.events.clients import get_events_client
from prefect.events.schemas.automations import Automation
from prefect.events.schemas.events import Event
from prefect.exceptions import ObjectNotFound

from prefect_cachewatch.cli.automation_files import AutomationFile, for_deployments, read_automations
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.bad_ends import BAD_ENDS, GENERATION_FLOW, BadEnd

_NOTIFY = "notify"
_DIRECT = ("notify-reported", "one-storage", "late", "missed", "silent")
_JOB = "cachewatch-test"
_FACTS = "Tensor cache generation stalled: no disk write activity detected for 6 minutes in /mnt/cache (1.08 GiB in 43 files)."
_CAUSES = {
    "Stalled": f"{_JOB} stalled: pid 17 (python3) waits for the lock .build.lock. No growth for 6 minutes. {_FACTS}",
    "GeneratorFailed": f"{_JOB} failed: memory ran out: MemoryError. Exit code 1. {_FACTS.replace('stalled', 'failed', 1)}",
    "PartlyFailed": "Fleet 'cachewatch-test': 1 of 3 caches are there; 2 failed. First: a is Stalled (waits for a lock); then: b is "
    "GeneratorFailed (memory ran out)",
    "FleetFailed": "Fleet 'cachewatch-test': 0 of 1 caches are there; 1 failed. First: a is Stalled (waits for a lock)",
}
_OUTCOMES = ("prefect.automation.action.executed", "prefect.automation.action.failed")
_ASK_EVERY_S = 1.0


@dataclass(frozen=True)
class Sent:
    """What became of the test message of one kind; `detail` says why it failed."""

    kind: str
    outcome: Literal["sent", "failed", "unseen"]
    detail: str = ""


async def send_through_automations(client: PrefectClient, wait_s: float, tell: Callable[[str], None]) -> list[Sent]:
    """Emit a test event of each bad end, and see what the server's automations make of it.

    Args:
        client: client of the Prefect API.
        wait_s: seconds for which the outcome is waited for.
        tell: takes a sentence on what is going on.

    Returns:
        One entry for each kind: sent, if the block took the message and raised no error.

    Raises:
        InputError: the automations of `notify` are not on the server, or are paused.
    """
    automations = [await _on_server(client, file) for file in read_automations([_NOTIFY])]
    ends = one_of_each()
    began = datetime.now(UTC)
    events = {uuid4(): end for end in ends}
    async with get_events_client() as emitter:
        for event_id, end in events.items():
            await emitter.emit(_event(end, event_id))
    most_s = max(automation.trigger.within.total_seconds() for automation in automations)  # type: ignore[union-attr]
    tell(f"{len(events)} test events are sent; the messages come within {most_s + 10:.0f} s")
    found: dict[UUID, Sent] = {}
    until_s = time.monotonic() + max(wait_s, 0.0)
    while True:
        found |= await _outcomes(client, events, began)
        if len(found) == len(events) or time.monotonic() >= until_s:
            break
        await anyio.sleep(_ASK_EVERY_S)
    return [found.get(event_id, Sent(end.state, "unseen")) for event_id, end in events.items()]


async def send_to_block(client: PrefectClient, block: str, kinds: Sequence[str] = ()) -> list[Sent]:
    """Send a test message of each kind straight to a block, from this machine.

    Args:
        client: client of the Prefect API.
        block: TYPE/NAME.
        kinds: short names of shipped automations; none for all that send messages.

    Returns:
        One entry for each kind.

    Raises:
        InputError: there is no such block, or it sends no notifications.
    """
    loaded = await _load(client, block)
    found: list[Sent] = []
    for name in kinds or (_NOTIFY, *_DIRECT):
        (file, *_) = for_deployments(read_automations([name]))
        for end in one_of_each() if name == _NOTIFY else [BadEnd(GENERATION_FLOW, name.capitalize())]:
            subject, body = _render(file, end)
            try:
                with loaded.raise_on_failure():
                    await _notify(loaded, subject, body)
            except Exception as error:  # noqa: BLE001 - a block fails in the way of its service
                said = getattr(error, "log", None) or str(error) or type(error).__name__
                found.append(Sent(end.state, "failed", for_terminal(redact(" ".join(said.split())), 300)))
            else:
                found.append(Sent(end.state, "sent"))
    return found


def one_of_each() -> list[BadEnd]:
    """Return one bad end of each name, with a flow that ends so.

    Example:
        >>> [end.flow for end in one_of_each() if end.state in ("Stalled", "Unhealthy", "FleetFailed")]
        ['generate-cache', 'deploy-cache', 'generate-fleet']
    """
    found: dict[str, BadEnd] = {}
    for end in BAD_ENDS:
        found.setdefault(end.state, end)
    return list(found.values())


async def _on_server(client: PrefectClient, file: AutomationFile) -> Automation:
    existing = await client.read_automations_by_name(file.name)
    if not existing:
        raise InputError(
            f"{for_terminal(file.name)!r} is not on the server: cachewatch automations apply notify --notify TYPE/NAME "
            "puts it there; with --notify TYPE/NAME this command sends straight to a block"
        )
    if not existing[0].enabled:
        raise InputError(f"{for_terminal(file.name)!r} is paused on the server: resume it in the UI (Automations)")
    return existing[0]


def _event(end: BadEnd, event_id: UUID) -> Event:
    # Its name is not that of a real state, so that follow-up and zombies leave it alone; the run does not exist.
    message = _CAUSES.get(end.state, f"this is a test of {end.state}; nothing has happened")
    return Event.model_validate(
        {
            "id": event_id,
            "event": f"cachewatch.test.{end.state}",
            "resource": {
                "prefect.resource.id": f"prefect.flow-run.{uuid4()}",
                "prefect.resource.name": _JOB,
                "prefect.state-name": end.state,
                "prefect.state-type": end.type,
                "prefect.state-message": message,
            },
            "related": [
                {
                    "prefect.resource.id": f"cachewatch.flow.{end.flow}",
                    "prefect.resource.name": end.flow,
                    "prefect.resource.role": "flow",
                }
            ],
            "payload": {"test": True},
        }
    )


async def _outcomes(client: PrefectClient, events: dict[UUID, BadEnd], began: datetime) -> dict[UUID, Sent]:
    """Read from the server's own events which messages a block has taken."""
    asked = {
        "occurred": {"since": began.isoformat()},
        "event": {"name": list(_OUTCOMES)},
        "related": {"id": [f"prefect.event.{event_id}" for event_id in events]},
    }
    page = await client.request("POST", "/events/filter", json={"filter": asked, "limit": 50})
    found: dict[UUID, Sent] = {}
    for event in page.json()["events"]:
        for related in event["related"]:
            identity = related["prefect.resource.id"].removeprefix("prefect.event.")
            event_id = next((one for one in events if str(one) == identity), None)
            if event_id is None:
                continue
            if event["event"] == _OUTCOMES[0]:
                found[event_id] = Sent(events[event_id].state, "sent")
            else:
                payload = event["payload"]
                said = " ".join(f"{payload.get('reason') or ''}: {payload.get('notification_log') or ''}".split())
                found[event_id] = Sent(events[event_id].state, "failed", for_terminal(redact(said.strip(": ")), 300))
    return found


async def _load(client: PrefectClient, name: str) -> Any:
    from prefect.blocks.abstract import NotificationBlock  # noqa: PLC0415 - seconds, and only a test of a block needs it
    from prefect.blocks.core import Block  # noqa: PLC0415

    kind, _, document = name.partition("/")
    try:
        found = await client.read_block_document_by_name(document, kind, include_secrets=True)
    except ObjectNotFound:
        raise InputError(f"there is no block {for_terminal(name)}: create it in the UI (Blocks)") from None
    import prefect.blocks.notifications  # noqa: F401, PLC0415 - registers its blocks

    loaded = Block._from_block_document(found)
    if not isinstance(loaded, NotificationBlock):
        raise InputError(f"the block {for_terminal(name)} sends no notifications")
    return loaded


async def _notify(block: Any, subject: str, body: str) -> None:
    sent = block.notify(subject=subject, body=body)
    if hasattr(sent, "__await__"):
        await sent


def _render(file: AutomationFile, end: BadEnd) -> tuple[str, str]:
    """Fill in the texts of an automation for a test event, as a server does."""
    from prefect.server.events.actions import SendNotification  # noqa: PLC0415 - seconds
    from prefect.server.events.schemas.automations import AutomationCore  # noqa: PLC0415
    from prefect.server.events.schemas.events import Event as ServerEvent  # noqa: PLC0415
    from prefect.server.utilities.user_templates import render_user_template_sync  # noqa: PLC0415

    (action,) = file.body["actions"]
    SendNotification.validate_template(action["body"], "body")  # registers the filters too
    event = ServerEvent.model_validate(_event(end, uuid4()).model_dump())
    event.payload["message"] = _CAUSES["Stalled"]
    automation = AutomationCore.model_validate({**file.body, "actions": []})
    context = {"event": event, "flow_run": None, "automation": automation}
    subject, body = (render_user_template_sync(action[key], context) for key in ("subject", "body"))
    return (subject if subject.startswith("TEST") else f"TEST: {subject}"), body
