"""`cachewatch automations`: puts the shipped automations, or the user's own files, on a Prefect server, and tests them."""

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
from prefect_cachewatch.cli.automation_files import for_deployments, is_reference, read_automations
from prefect_cachewatch.cli.options.fields import DURATION
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_cachewatch.cli.automation_test import Sent

_DONE = {"create": "created", "update": "updated", "unchanged": "unchanged"}
_PLAN = {"create": "would be created", "update": "would be updated", "unchanged": "unchanged"}
_WAIT_S = 180.0
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


@command.command("test")
@click.option(
    "--notify", metavar="TYPE/NAME", help="Send straight to this block, from this machine, past the automations."
)
@click.option(
    "--wait", "wait_s", type=DURATION, default=_WAIT_S, help="How long the server's answer is waited for (default 3m)."
)
@_as_json
def test_command(notify: str | None, wait_s: float, as_json: bool) -> None:
    """Send one test message of each kind that notify sends, marked TEST; the exit status is 1 if one was not sent.

    The messages go the way of the real ones: a test event of each bad end, the server's automations, their block. late,
    missed, silent, notify-reported and one-storage wait for a window or a run and are not sent so; --notify TYPE/NAME sends them too.
    """
    if notify is not None and not is_reference(notify):
        raise InputError(
            f"a block is named TYPE/NAME, for example slack-webhook/cachewatch, and not {for_terminal(notify)}"
        )

    async def test(client: PrefectClient) -> list[Sent]:
        from prefect_cachewatch.cli.automation_test import send_through_automations, send_to_block  # noqa: PLC0415 - Prefect's events

        if notify is not None:
            return await send_to_block(client, notify)
        return await send_through_automations(client, wait_s, say)

    found = asyncio.run(_with_server(test))
    all_sent = all(one.outcome == "sent" for one in found)
    if as_json:
        print(json.dumps({"all_sent": all_sent, "messages": [asdict(one) for one in found]}))
    words = {"sent": "sent", "failed": "not sent", "unseen": "not seen"}
    for one in found if not as_json else ():
        print(f"{words[one.outcome]}: {one.kind}" + (f": {one.detail}" if one.detail else ""))
    click.echo(_not_seen(found, notify), err=as_json)
    raise SystemExit(0 if all_sent else 1)


def _not_seen(found: list[Sent], notify: str | None) -> str:
    """Say what a test cannot know."""
    lines = []
    if any(one.outcome == "unseen" for one in found):
        lines.append(
            "For what was not seen the server has said nothing: is `prefect server services` running, and is it busy?"
        )
    if notify is None:
        lines.append(
            "Not tested: late, missed, silent, notify-reported and one-storage (--notify TYPE/NAME sends theirs)."
        )
    else:
        lines.append(
            "Not tested: the automations, and the way from the server to the service; these came from this machine."
        )
    lines.append("Sent means that the service took the message. Whether a person sees it, look there.")
    return "\n".join(lines)


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
