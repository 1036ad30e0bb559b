"""`cachewatch stop`: stops or lists servers that were left running when they were ready."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from prefect_cachewatch.cli.options.fields import DURATION
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.watching.servers.records import (
    FoundServer,
    ServerRecord,
    list_servers,
    remove_record,
    servers_directory,
)
from prefect_cachewatch.watching.servers.stopping import stop_server

_LEFT_OVER = 1


@click.command("stop", epilog=(
    "Exit status: 0 when nothing of what was named runs any more; 1 if a process could not be killed; 125 for bad "
    "usage, or a server that is not known."
))  # fmt: skip
@click.argument("name", required=False)
@click.option("--pid", type=int, help="The server with this process.")
@click.option("--all", "everyone", is_flag=True, help="All of them.")
@click.option("--list", "only_list", is_flag=True, help="Only say which run; nothing is stopped.")
@json_option("The list, or what was stopped, as JSON.")
@click.option("--grace", type=DURATION, help="Between SIGTERM and SIGKILL; default as the generation was told.")
def command(
    name: str | None, pid: int | None, everyone: bool, only_list: bool, as_json: bool, grace: float | None
) -> int:
    """Stop the server NAME with its whole process tree: SIGTERM, the grace period, SIGKILL, and a look whether it is gone.

    Servers are those that `cachewatch exec --ready` and `generate --ready` left running for this user on this machine.
    """
    if only_list:
        if name is not None or pid is not None or everyone:
            raise InputError("--list names all servers: leave out NAME, --pid and --all")
        return _list(as_json)
    if [name is not None, pid is not None, everyone].count(True) != 1:
        raise InputError("say which server to stop: its NAME, --pid PID or --all; cachewatch stop --list shows them")
    say: Callable[[str], None] = functools.partial(click.echo, err=as_json)
    left, chosen = 0, _chosen(name, pid, say)
    told: list[dict[str, Any]] = []
    if everyone and not chosen:
        say("no server that was left running runs any more")
    for record, path in chosen:
        stopped = stop_server(record, grace)
        left_over = [{"pid": one.pid, "state": one.state} for one in stopped.survivors]
        told.append({"name": record.name, "pid": record.pid, **asdict(stopped), "survivors": left_over})
        shown = f"{for_terminal(record.name, 100)} ({record.who})"
        if stopped.survivors:
            left += 1
            pids = ", ".join(f"{one.pid} (state {one.state})" for one in stopped.survivors[:10])
            say(f"{shown} could not be stopped: pid {pids} did not end after SIGKILL; look what it waits for")
            continue
        remove_record(path)
        count = stopped.terminated + stopped.killed
        how = f"{stopped.killed} of {count} killed" if stopped.killed else f"{count} ended after SIGTERM"
        say(f"{shown} was stopped in {format_duration(stopped.seconds)}: {how}")
    if as_json:
        print(json.dumps({"servers": told}))
    return _LEFT_OVER if left else 0


def _chosen(name: str | None, pid: int | None, say: Callable[[str], None]) -> list[tuple[ServerRecord, Any]]:
    """The running servers that match; records of servers that have ended are removed, with a message."""
    chosen, ended = [], 0
    for one in list_servers():
        record = one.record
        if record is None or one.state == "refused":
            say(f"record {for_terminal(str(one.path))} was left alone: {one.reason}")
            continue
        meant = name in (None, record.name) and (
            pid is None or pid == record.pid or pid in {member for member, _ in record.tree}
        )
        if one.state == "ended":
            remove_record(one.path)
            if meant:
                ended += 1
                say(f"{for_terminal(record.name, 100)} ({record.who}) had ended already")
        elif meant and one.state == "elsewhere" and (name is not None or pid is not None):
            raise InputError(
                f"server {for_terminal(record.name, 100)} ({record.who}) runs on another machine or in another container "
                "that shares this state directory: stop it there"
            )
        elif meant and one.state == "running":
            chosen.append((record, one.path))
    if name is not None and len(chosen) > 1:
        pids = ", ".join(record.who for record, _ in chosen)
        raise InputError(
            f"{len(chosen)} servers are called {for_terminal(name, 100)} ({pids}): say which with --pid, or --all"
        )
    if not chosen and not ended and (name is not None or pid is not None):
        wanted = f"server {for_terminal(name, 100)!r}" if name is not None else f"server with pid {pid}"
        raise InputError(f"no {wanted} was left running by this user: cachewatch stop --list shows those that were")
    return chosen


def _list(as_json: bool) -> int:
    found = list_servers()
    if as_json:
        print(json.dumps([_described(one) for one in found]))
        return 0
    for one in found:
        record = one.record
        if record is None:
            print(f"record {for_terminal(str(one.path))} cannot be used: {one.reason}")
            continue
        since = format_duration(float(round(max(0.0, time.time() - record.ready_at))))
        where = ", ".join(for_terminal(path) for path in record.cache_dirs)
        print(f"{for_terminal(record.name, 100)}  {record.who}  {one.state}, ready for {since}  {where}")
        if record.log:
            print(f"  log {for_terminal(record.log)}")
    if not found:
        print(f"no server was left running (records are in {for_terminal(str(servers_directory()))})")
    return 0


def _described(one: FoundServer) -> dict[str, Any]:
    data: dict[str, Any] = {"state": one.state, "record": str(one.path), "reason": one.reason or None}
    if one.record is not None:
        left_out = {"tree", "boot_id", "machine", "pid_namespace"}
        data |= {field: value for field, value in asdict(one.record).items() if field not in left_out}
    return data
