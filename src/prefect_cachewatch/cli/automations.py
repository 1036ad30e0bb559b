"""`cachewatch automations`: puts the shipped automations, or the user's own files, on a Prefect server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click
import httpx

from prefect_cachewatch.cli.api_address import api_url
from prefect_cachewatch.cli.api_patience import check_api
from prefect_cachewatch.cli.automation_apply import Applied, apply_automations
from prefect_cachewatch.cli.automation_files import for_deployments, read_automations
from prefect_cachewatch.cli.options.fields import DURATION
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

_DONE = {"create": "created", "update": "updated", "unchanged": "unchanged"}
_PLAN = {"create": "would be created", "update": "would be updated", "unchanged": "unchanged"}
_API_S = 60.0
_LEAST_S = 10.0

T = TypeVar("T")

_as_json = json_option()


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
@_as_json
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
    words = _PLAN if dry_run else _DONE

    async def apply(client: PrefectClient) -> list[Applied]:
        return await apply_automations(client, wanted, notify=notify, run=run, dry_run=dry_run)

    found = asyncio.run(_with_server(apply))
    if as_json:
        print(json.dumps({"dry_run": dry_run, "automations": [asdict(one) for one in found]}))
        return
    for one in found:
        paused = "" if one.enabled else " (paused)"
        print(f"{words[one.change]}: {for_terminal(one.name)}{paused}")


async def _with_server(act: Callable[[PrefectClient], Awaitable[T]]) -> T:
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - Prefect is imported when it is used

    url = api_url()
    if not url:
        raise InputError(
            "no Prefect API is configured, and automations of a temporary server would end with it: "
            "prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    check_api(_API_S, instead="")
    try:
        async with get_client() as client:
            return await act(client)
    except httpx.TransportError as error:
        reason = for_terminal(str(error) or type(error).__name__)
        raise InputError(f"the Prefect API at {url} does not answer: {reason}; is the server running?") from error
