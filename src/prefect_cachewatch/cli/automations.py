"""`cachewatch automations`: puts the shipped automations, or the user's own files, on a Prefect server."""

from __future__ import annotations

import asyncio

import click
import httpx

from prefect_cachewatch.cli.api_patience import api_url
from prefect_cachewatch.cli.automation_apply import Applied, apply_automations
from prefect_cachewatch.cli.automation_files import AutomationFile, read_automations
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

__all__ = ["command"]

_DONE = {"create": "created", "update": "updated", "unchanged": "unchanged"}
_PLAN = {"create": "would be created", "update": "would be updated", "unchanged": "unchanged"}


@click.group()
def command() -> None:
    """React to stalls and dead runs with Prefect's automations."""


@command.command("apply")
@click.argument("files", nargs=-1)
@click.option("--notify", metavar="TYPE/NAME", help="Notification block to use in place of the files' own.")
@click.option("--run", metavar="FLOW/NAME", help="Deployment to run in place of the files' own.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def apply_command(files: tuple[str, ...], notify: str | None, run: str | None, dry_run: bool) -> None:
    """Create or update automations by name; done twice it changes nothing.

    FILES are YAML files, or short names of the shipped automations: follow-up (runs a stalled generation again once),
    notify and notify-reported (tell people), zombies (marks dead runs Crashed). Default: all of them.
    """
    wanted = read_automations(files)
    words = _PLAN if dry_run else _DONE
    for one in asyncio.run(_apply(wanted, notify, run, dry_run)):
        paused = "" if one.enabled else " (paused)"
        print(f"{words[one.change]}: {for_terminal(one.name)}{paused}")


async def _apply(wanted: list[AutomationFile], notify: str | None, run: str | None, dry_run: bool) -> list[Applied]:
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - Prefect is imported when it is used

    url = api_url()
    if not url:
        raise InputError(
            "no Prefect API is configured, and automations of a temporary server would end with it: "
            "prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    try:
        async with get_client() as client:
            return await apply_automations(client, wanted, notify=notify, run=run, dry_run=dry_run)
    except httpx.TransportError as error:
        reason = for_terminal(str(error) or type(error).__name__)
        raise InputError(f"the Prefect API at {url} does not answer: {reason}; is the server running?") from error
