"""`cachewatch profiles`: the known generators, their parameters, and the job settings that follow from them."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import Any

import click

from prefect_cachewatch.cli.options.profile_choice import complete_profile, split_profile
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config.profiles import ProfileSettings, find_profile, known_profiles, make_profile

_WIDTH = 79


@click.command("profiles")
@click.argument("profile", required=False, metavar="[NAME[,KEY=VALUE...]]", shell_complete=complete_profile)
@json_option()
def command(profile: str | None, as_json: bool) -> int:
    """List the profiles; with NAME its parameters; with parameters what follows from them for a job."""
    if profile is None:
        _list(as_json)
        return 0
    name, parameters = split_profile(profile)
    if parameters:
        _show_settings(make_profile(name, parameters).settings, as_json)
    else:
        _show_parameters(name, as_json)
    return 0


def _list(as_json: bool) -> None:
    found = {name: find_profile(name).summary for name in known_profiles()}
    if as_json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for name, summary in found.items():
        print(_hanging(f"{name:<{width}}  ", summary))
    print("\ncachewatch profiles NAME shows the parameters of one;")
    print("cachewatch exec --profile NAME,KEY=VALUE... -- COMMAND uses it.")


def _show_parameters(profile: str, as_json: bool) -> None:
    found = find_profile(profile)
    fields = found.form.model_fields
    if as_json:
        print(json.dumps({"name": profile, "summary": found.summary, "parameters": found.form.model_json_schema()}))
        return
    print(textwrap.fill(f"{profile}: {found.summary}", _WIDTH) + "\n")
    for name, field in fields.items():
        default = "required" if field.is_required() else None if field.default is None else f"default {field.default}"
        note = f" ({default})" if default else ""
        print(_hanging(f"  {name:<16}", f"{field.description or ''}{note}"))


def _show_settings(settings: ProfileSettings, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_plain(settings)))
        return
    rows: list[tuple[str, str]] = [("job", settings.name)]
    rows += [("cache dir", str(path)) for path in settings.cache_dirs]
    rows += [("environment", f"{name}={value}") for name, value in settings.env.items()]
    if settings.command:
        rows.append(("command", " ".join(settings.command)))
    rows += [("key", f"{name}={value}") for name, value in settings.key.items()]
    rows += [(name, _window(name, value)) for name, value in {**settings.stall, **settings.stop}.items()]
    rows += [("before a retry", " ".join(settings.retry["before_retry"]))] if settings.retry else []
    rows.append(("never counts", " ".join(settings.ignore)))
    if settings.ready is not None:
        rows.append(("ready", f"{settings.ready.kind} {getattr(settings.ready, 'url', '')}".rstrip()))
    if settings.markers is not None:
        rows += [("marker", str(path)) for path in (settings.markers.started, settings.markers.completed) if path]
    rows += [("line of progress", pattern) for pattern in settings.progress_log]
    for name, value in rows:
        print(f"{name:<21} {for_terminal(value, 4096)}")
    for hint in settings.hints:
        print(_hanging("note: ", hint))


def _plain(settings: ProfileSettings) -> dict[str, Any]:
    data = asdict(settings)
    data["cache_dirs"] = [str(path) for path in settings.cache_dirs]
    data["ready"] = settings.ready.model_dump(mode="json") if settings.ready is not None else None
    data["markers"] = settings.markers.model_dump(mode="json") if settings.markers is not None else None
    return data


def _window(name: str, value: Any) -> str:
    return format_duration(float(value)) if name.endswith("_s") else str(value)


def _hanging(head: str, text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False, break_long_words=False
    )  # fmt: skip
