"""`cachewatch store`: the operator's commands for published caches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeVar

import click

from prefect_cachewatch.cli.options.fields import DURATION
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.cli.store_caches import show_caches
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count
from prefect_cachewatch.errors import BuildDamaged
from prefect_cachewatch.store.builds import BuildInfo
from prefect_cachewatch.store.formats import Content
from prefect_cachewatch.store.store import Activation, CacheStore
from prefect_cachewatch.watching.outcomes import describe_growth

_F = TypeVar("_F", bound=Callable[..., Any])
NOT_WHOLE = 1


def _where(function: _F) -> _F:
    function = click.argument("name")(function)
    return click.argument("root", type=click.Path(file_okay=True))(function)


_as_json = json_option("Print JSON.")
_deep = click.option("--full", is_flag=True, help="Read every byte before switching, not only what changed since.")


@click.group()
def command() -> None:
    """List, verify, activate, roll back and clean up published caches.

    ROOT is the store's directory, NAME the cache in it.
    """


@command.command("list")
@click.argument("root", type=click.Path(file_okay=True))
@click.argument("name", required=False)
@_as_json
def list_command(root: str, name: str | None, as_json: bool) -> None:
    """List the builds of a cache, newest first; without NAME the caches of the store."""
    if name is None:
        show_caches(root, as_json)
        return
    builds = CacheStore(root).list_builds(name)
    if as_json:
        print(json.dumps([asdict(build) for build in builds], indent=1))
        return
    if not builds:
        print(f"{for_terminal(name)} has no builds")
    else:
        print(f"{'BUILD':<28}  {'STATE':<11} {'SIZE':>9} {'FILES':>7}  KEY")
    for build in builds:
        print(_line(build))
        if build.note:
            print(f"    {for_terminal(build.note, 1000)}")


@command.command("verify")
@_where
@click.option("--build", "build_id", help="Which build; default: the active one.")
@click.option("--quick", is_flag=True, help="Names and sizes only; default: every digest.")
@click.option("--content", is_flag=True, help="Also whether each file can be what its format demands.")
@click.option("--against", metavar="BUILD", help="Also what differs from this build, by the two manifests.")
@_as_json
def verify_command(
    root: str, name: str, build_id: str | None, quick: bool, content: bool, against: str | None, as_json: bool
) -> int:
    """Compare a build with its manifest; exit 0 if it is whole, 1 if not, or if it differs from --against."""
    depth: Literal["quick", "full"] = "quick" if quick else "full"
    store = CacheStore(root)
    build_id = build_id or store.active_id(name)  # all looks are at one build, though another becomes current
    body: dict[str, Any] = {"whole": True, "depth": depth}
    printed, said = list[str](), list[str]()
    try:
        verdict = store.verify(name, build_id, depth=depth)
        body |= {"files": verdict.files, "size_bytes": verdict.size_bytes, "problems": []}
        if content:
            findings = store.inspect(name, build_id)
            body["content"] = [{"path": path, **asdict(finding)} for path, finding in findings]
            body["problems"] = broken = _told(findings, "broken")
            count = Counter(finding.verdict for _, finding in findings)
            printed += [
                f"content: {', '.join(f'{count[v]} {v}' for v in ('whole', 'broken', 'suspicious', 'unknown'))}"
            ]
            said += [f"warning: {line}" for line in _told(findings, "suspicious")] + broken
            said += ["broken files agree with the manifest: generate the cache again"] if broken else []
        if against is not None:
            found = store.compare(name, build_id, against)
            body |= {"against": against, "differences": [asdict(difference) for difference in found]}
            count_of = f"not equal to {against}: {format_count(len(found), 'difference')}"
            printed += [count_of if found else f"equal to {against}: every file and link"]
            said += [difference.message for difference in found]
        body["whole"] = not body["problems"]
        if body["whole"]:
            printed.insert(0, verdict.summary())
            said += [
                f"it is not used, since it was {for_terminal(build.note, 1000)}; cachewatch store activate with its id takes that back"
                for build in store.list_builds(name)
                if build.build_id == build_id and build.status
            ]
    except BuildDamaged as error:
        problems = error.data.get("problems") or [error.message]
        body = {"whole": False, "depth": depth, "message": error.message, "problems": problems}
        printed, said = [], [error.message]
    if as_json:
        print(json.dumps(body, indent=1))
    else:
        for line in printed:
            print(line)
        for line in said:
            say(line)
    return 0 if body["whole"] and not body.get("differences") else NOT_WHOLE


@command.command("activate")
@_where
@click.argument("build_id", required=False)
@_deep
@_as_json
def activate_command(root: str, name: str, build_id: str | None, full: bool, as_json: bool) -> None:
    """Make BUILD_ID current; default: the last published one, passing over damaged, unhealthy and rolled-back ones."""
    _say(CacheStore(root).activate(name, build_id, verify="full" if full else "quick"), "active", as_json)


@command.command("rollback")
@_where
@_deep
@_as_json
def rollback_command(root: str, name: str, full: bool, as_json: bool) -> None:
    """Make the build current that was so before, and is whole; the one that is left is noted as rolled back."""
    _say(CacheStore(root).rollback(name, verify="full" if full else "quick"), "rolled back to", as_json)


@command.command("gc")
@_where
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Whole builds that stay, the active one among them.",
)
@click.option(
    "--keep-quarantined",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Refused builds that stay.",
)
@click.option(
    "--grace",
    type=DURATION,
    default="1h",
    show_default=True,
    help="What was finished, active or written to less than this ago stays.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@_as_json
def gc_command(
    root: str, name: str, keep: int, keep_quarantined: int, grace: float, dry_run: bool, as_json: bool
) -> int:
    """Remove surplus builds; never one that is active, being written, or held by a reader. Exit 1 if one resists."""
    done = CacheStore(root).gc(name, keep=keep, keep_quarantined=keep_quarantined, grace_s=grace, dry_run=dry_run)
    if as_json:
        print(json.dumps(asdict(done), indent=1))
        return NOT_WHOLE if done.problems else 0
    for decision in done.decisions:
        verb = ("would remove" if dry_run else "removed") if decision.remove else "kept"
        why = ", ".join(dict.fromkeys((decision.state, decision.reason)))
        print(f"{for_terminal(decision.build_id, 28):<28}  {verb:<12}  {why}, {format_bytes(decision.size_bytes)}")
    print(
        f"{len(done.removed)} of {len(done.decisions)} builds {'would go' if dry_run else 'removed'}, {format_bytes(done.freed_bytes)}"
    )
    for problem in done.problems:
        say(for_terminal(problem, 1000))
    return NOT_WHOLE if done.problems else 0


def _told(findings: Sequence[tuple[str, Content]], verdict: str) -> list[str]:
    return [f"{for_terminal(path, 1000)} {found.message}" for path, found in findings if found.verdict == verdict]


def _line(build: BuildInfo) -> str:
    size = format_bytes(build.total_bytes) if build.total_bytes is not None else "-"
    files = f"{build.total_files}" if build.total_files is not None else "-"
    key = build.key[:12] if build.key else "-"
    pinned = " pinned" if build.pinned else ""
    known = f" {build.status.replace('_', ' ')}" if build.status and build.status != build.state else ""
    return f"{for_terminal(build.build_id, 28):<28}  {build.state:<11} {size:>9} {files:>7}  {key}{pinned}{known}"


def _say(switched: Activation, verb: str, as_json: bool) -> None:
    if as_json:
        body = {key: getattr(switched, key) for key in ("build_id", "previous", "path", "skipped")}
        print(json.dumps(body, indent=1))
        return
    for message in switched.skipped:
        print(f"passed over: {for_terminal(message, 1000)}")
    manifest = switched.manifest
    print(f"{verb} {switched.build_id} ({describe_growth(manifest.total_bytes, manifest.total_files)})")
    if switched.previous and switched.previous != switched.build_id:
        print(f"before: {switched.previous}")
