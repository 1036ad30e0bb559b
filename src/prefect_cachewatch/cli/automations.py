"""`cachewatch automations`: puts the shipped automations, or the user's own files, on a Prefect server, by their names.

A file is in Prefect's own form, with names in place of ids: `deployment: FLOW/NAME` and `block: TYPE/NAME`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import click

from prefect_cachewatch.cli.api import api_url, check_api
from prefect_cachewatch.cli.options.fields import DURATION
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.templates import template_directory
from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.yamlfile import read_yaml
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.events.schemas.automations import Automation, AutomationCore

Change = Literal["create", "update", "unchanged"]

_DONE = {"create": "created", "update": "updated", "unchanged": "unchanged"}
_PLAN = {"create": "would be created", "update": "would be updated", "unchanged": "unchanged"}
_API_S = 60.0
_LEAST_S = 10.0
_KEYS = ("name", "description", "enabled", "tags", "trigger", "actions")
_GENERATED = {"id", "created", "updated"}


@dataclass(frozen=True)
class AutomationFile:
    """One automation as a file says it."""

    source: str
    body: dict[str, Any]

    @property
    def name(self) -> str:
        """Its name, by which it is found on the server."""
        return str(self.body["name"])

    @property
    def watched(self) -> str | None:
        """The FLOW/DEPLOYMENT whose runs it watches for; None if it watches for those of no single one."""
        trigger = self.body.get("trigger")
        related = trigger.get("match_related") if isinstance(trigger, dict) else None
        return related.get("deployment") if isinstance(related, dict) else None


@dataclass(frozen=True)
class Applied:
    """What was done to one automation, or in a dry run would be done."""

    name: str
    change: Change
    enabled: bool


@click.group()
def command() -> None:
    """React to stalls and dead runs with Prefect's automations."""


@command.command("apply")
@click.argument("files", nargs=-1)
@click.option("--notify", metavar="TYPE/NAME", help="Notification block to use in place of the files' own.")
@click.option("--run", metavar="FLOW/NAME", help="Deployment to run in place of the files' own.")
@click.option(
    "--deployment",
    "deployments",
    metavar="FLOW/NAME",
    multiple=True,
    help="Deployment that missed watches; may be repeated.",
)
@click.option(
    "--within", "within_s", type=DURATION, help="Window of missed: the deployment's period and its longest run."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option()
def apply_command(
    files: tuple[str, ...],
    notify: str | None,
    run: str | None,
    deployments: tuple[str, ...],
    within_s: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create or update automations by name; done twice it changes nothing.

    FILES are YAML files, or short names of the shipped automations: follow-up (runs a stalled generation again once),
    notify, notify-reported and one-storage (tell people), late, missed and silent (tell people of what did not happen), zombies
    (marks dead runs Crashed). Default: all of them.
    """
    if within_s is not None and within_s < _LEAST_S:
        raise InputError(f"--within is {_LEAST_S:.0f} s or more: Prefect takes no shorter window")
    wanted = for_deployments(read_automations(files), deployments, within_s)
    instead = {"block": notify, "deployment": run}
    found = asyncio.run(_apply(wanted, {kind: name for kind, name in instead.items() if name is not None}, dry_run))
    if as_json:
        print(json.dumps({"dry_run": dry_run, "automations": [asdict(one) for one in found]}))
        return
    words = _PLAN if dry_run else _DONE
    for one in found:
        print(f"{words[one.change]}: {for_terminal(one.name)}{'' if one.enabled else ' (paused)'}")


def shipped_automations() -> dict[str, Path]:
    """List the automations that come with the package, by their short names."""
    found = sorted((template_directory() / "automations").glob("*.yaml"), key=lambda path: path.stem)
    return {path.stem: path for path in found}


def read_automations(names: Sequence[str]) -> list[AutomationFile]:
    """Read automations from files, or the shipped ones by their short names.

    Args:
        names: paths of YAML files, or short names; none for all that are shipped.

    Returns:
        The automations, in this order.

    Raises:
        InputError: a file is missing or is no automation, or two have the same name.
    """
    shipped, found = shipped_automations(), dict[str, AutomationFile]()
    for name in names or list(shipped):
        path = Path(name) if Path(name).exists() or name not in shipped else shipped[name]
        if not path.exists():
            raise InputError(
                f"{for_terminal(name)} is no file and none of the shipped automations{nearest(name, shipped)}"
            )
        where, loaded = for_terminal(str(path)), read_yaml(path)
        if isinstance(loaded, dict) and set(loaded) == {"automations"}:
            loaded = loaded["automations"]
        for body in loaded if isinstance(loaded, list) else [loaded]:
            if not isinstance(body, dict) or not isinstance(body.get("name"), str):
                raise InputError(f"{where}: an automation is a mapping with a name, a trigger and actions")
            file = AutomationFile(where, body)
            shown = repr(for_terminal(file.name))
            if unknown := [str(key) for key in body if key not in _KEYS]:
                key = for_terminal(unknown[0])
                raise InputError(f"{where}: {shown} has an unknown key {key!r}{nearest(unknown[0], _KEYS)}")
            if file.name in found:
                raise InputError(f"{where}: {shown} is in {found[file.name].source} too: a name is used once")
            found[file.name] = file
    return list(found.values())


def for_deployments(
    files: Sequence[AutomationFile], deployments: Sequence[str] = (), within_s: float | None = None
) -> list[AutomationFile]:
    """Make the automations that watch one deployment, such as `missed`, for each of several; the others stay as they are.

    Args:
        files: the automations.
        deployments: FLOW/DEPLOYMENT; none for those that the files name.
        within_s: the window in place of the files' own.

    Returns:
        The automations, with `{deployment}` in name and description filled in.

    Raises:
        InputError: deployments or a window are given, and no file watches a deployment.
    """
    if (deployments or within_s is not None) and not any(file.watched for file in files):
        raise InputError("--deployment and --within are for missed, or a file whose trigger names a deployment")
    found: list[AutomationFile] = []
    for file in files:
        for deployment in dict.fromkeys(deployments or [file.watched]) if file.watched else [None]:
            trigger, body = file.body.get("trigger"), dict(file.body)
            if deployment is not None and isinstance(trigger, dict):
                body["trigger"] = trigger | {"match_related": trigger["match_related"] | {"deployment": deployment}}
                body["trigger"] |= {} if within_s is None else {"within": within_s}
                for key in ("name", "description"):
                    body[key] = str(body.get(key, "")).replace("{deployment}", deployment)
            found.append(AutomationFile(file.source, body))
    return found


async def _apply(files: Sequence[AutomationFile], instead: dict[str, str], dry_run: bool) -> list[Applied]:
    """Create or update automations; all are checked before the first one is written."""
    import httpx  # noqa: PLC0415 - comes with Prefect, which is imported when it is used
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.exceptions import PrefectHTTPStatusError  # noqa: PLC0415

    url = api_url()
    if not url:
        raise InputError(
            "no Prefect API is configured, and automations of a temporary server would end with it: "
            "prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    check_api(_API_S, instead="")
    done = []
    try:
        async with get_client() as client:
            planned = [await _plan(client, file, instead) for file in files]
            for wanted, existing in planned:
                same = existing is not None and _comparable(wanted) == _comparable(existing)
                done.append(
                    Applied(wanted.name, "unchanged" if same else "update" if existing else "create", wanted.enabled)
                )
                if dry_run or same:
                    continue
                try:
                    if existing is None:
                        await client.create_automation(wanted)
                    else:
                        await client.update_automation(existing.id, wanted)
                except PrefectHTTPStatusError as error:
                    said = for_terminal(" ".join(error.response.text.split()), 300)
                    raise InputError(f"the server refused {for_terminal(wanted.name)!r}: {said}") from error
    except httpx.TransportError as error:
        reason = for_terminal(str(error) or type(error).__name__)
        raise InputError(f"the Prefect API at {url} does not answer: {reason}; is the server running?") from error
    return done


async def _plan(
    client: PrefectClient, file: AutomationFile, instead: dict[str, str]
) -> tuple[AutomationCore, Automation | None]:
    """Put ids in place of names; return what is wanted, and what the server has under this name."""
    from prefect.events.schemas.automations import AutomationCore  # noqa: PLC0415 - as above
    from pydantic import ValidationError  # noqa: PLC0415

    body, shown = dict(file.body), repr(for_terminal(file.name))
    if (watched := file.watched) is not None:
        related = {label: value for label, value in body["trigger"]["match_related"].items() if label != "deployment"}
        related["prefect.resource.id"] = f"prefect.deployment.{await _id_of(client, file, 'deployment', watched)}"
        body["trigger"] = body["trigger"] | {"match_related": related}
    if isinstance(actions := body.get("actions"), list):
        body["actions"] = [
            await _with_ids(client, file, action, instead) if isinstance(action, dict) else action for action in actions
        ]
    existing = await client.read_automations_by_name(file.name)
    if len(existing) > 1:
        raise InputError(f"there are {len(existing)} automations named {shown}: delete all but one")
    if existing:
        body.setdefault("enabled", existing[0].enabled)  # a user's pause is kept
    try:
        return AutomationCore.model_validate(body), existing[0] if existing else None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = for_terminal(".".join(str(part) for part in first["loc"]))
        raise InputError(
            f"{file.source}: {shown} is no automation that Prefect knows: {place}: {for_terminal(first['msg'])}"
        ) from None


async def _with_ids(
    client: PrefectClient, file: AutomationFile, action: dict[str, Any], instead: dict[str, str]
) -> dict[str, Any]:
    found = dict(action)
    for kind, wanted in (("deployment", "deployment_id"), ("block", "block_document_id")):
        if kind in found:
            own = str(found.pop(kind))
            found[wanted] = await _id_of(client, file, kind, instead.get(kind, own))
    return found


async def _id_of(client: PrefectClient, file: AutomationFile, kind: str, name: str) -> UUID:
    from prefect.exceptions import ObjectNotFound  # noqa: PLC0415 - as above

    first, slash, last = name.partition("/")
    shown, is_block = for_terminal(name), kind == "block"
    if not (first and slash and last) or "/" in last:
        example = "TYPE/NAME, for example slack-webhook/cachewatch" if is_block else "FLOW/NAME, for example follow-up-stall/follow-up-stall"  # fmt: skip
        raise InputError(f"{file.source}: a {kind} is named {example}, and not {shown}")
    try:
        if is_block:
            return (await client.read_block_document_by_name(last, first)).id
        return (await client.read_deployment_by_name(name)).id
    except ObjectNotFound:
        advice = f"prefect deploy --prefect-file prefect.yaml --name {for_terminal(last)} creates it"
        if is_block:
            advice = (
                f"create it in the UI (Blocks) or by prefect block create {for_terminal(first)}, or name another "
                "with --notify TYPE/NAME"
            )
        raise InputError(f"{file.source}: there is no {kind} {shown}: {advice}") from None


def _comparable(automation: AutomationCore) -> Any:
    """The part of an automation by which two are compared; the server gives triggers ids of their own."""
    return _without_generated(automation.model_dump(mode="json", exclude={"owner_resource"}))


def _without_generated(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_generated(inner) for key, inner in value.items() if key not in _GENERATED}
    if isinstance(value, list):
        # Sets of names come back in any order.
        items = [_without_generated(inner) for inner in value]
        return sorted(items) if all(isinstance(item, str) for item in items) else items
    return value
