"""Files of automations: Prefect's own form, with names in place of ids. Reads and checks them; no requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.yamlfile import read_yaml
from prefect_cachewatch.errors import InputError

_KEYS = ("name", "description", "enabled", "tags", "trigger", "actions")
_REFERENCES = {"deployment": ("deployment_id", "FLOW/DEPLOYMENT"), "block": ("block_document_id", "TYPE/NAME")}


@dataclass(frozen=True)
class AutomationFile:
    """One automation as a file says it."""

    source: str
    name: str
    body: Mapping[str, Any]


@contextmanager
def template_directory() -> Iterator[Path]:
    """Return the directory of the templates that were installed with this package.

    Yields:
        The directory.
    """
    with resources.as_file(resources.files("prefect_cachewatch.deployments")) as path:
        yield path


def shipped_automations() -> dict[str, Path]:
    """List the automations that come with the package.

    Returns:
        Their short names and files.
    """
    with template_directory() as path:
        return {file.stem: file for file in sorted((path / "automations").glob("*.yaml"), key=lambda file: file.stem)}


def read_automations(names: Sequence[str]) -> list[AutomationFile]:
    """Read automations from files, or the shipped ones by their short names.

    Args:
        names: paths of YAML files, or short names; none for all that are shipped.

    Returns:
        The automations, in this order.

    Raises:
        InputError: a file is missing or is no automation, or two have the same name.
    """
    shipped = shipped_automations()
    found: list[AutomationFile] = []
    for name in names or list(shipped):
        found += _read(_find(name, shipped))
    seen: dict[str, str] = {}
    for one in found:
        if one.name in seen:
            raise InputError(
                f"{one.source}: {for_terminal(one.name)!r} is in {seen[one.name]} too: a name is used once"
            )
        seen[one.name] = one.source
    return found


def watched_deployment(file: AutomationFile) -> str | None:
    """Return the FLOW/DEPLOYMENT whose runs an automation watches for; None if it watches for those of no single one."""
    related = file.body["trigger"].get("match_related")
    found = related.get("deployment") if isinstance(related, Mapping) else None
    return found if isinstance(found, str) else None


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
    found: list[AutomationFile] = []
    for file in files:
        own = watched_deployment(file)
        if own is None:
            found.append(file)
            continue
        for deployment in dict.fromkeys(deployments or (own,)):
            if not is_reference(deployment):
                raise InputError(
                    f"a deployment is named FLOW/NAME, for example generate-cache/nightly-cache, and not {for_terminal(deployment)}"
                )
            trigger = dict(file.body["trigger"])
            trigger["match_related"] = {**trigger["match_related"], "deployment": deployment}
            trigger |= {} if within_s is None else {"within": within_s}
            texts = {
                key: str(file.body.get(key, "")).replace("{deployment}", deployment) for key in ("name", "description")
            }
            found.append(AutomationFile(file.source, texts["name"], {**file.body, **texts, "trigger": trigger}))
    if (deployments or within_s is not None) and not any(map(watched_deployment, files)):
        raise InputError("--deployment and --within are for missed, or a file whose trigger names a deployment")
    return found


def _find(name: str, shipped: Mapping[str, Path]) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    if name in shipped:
        return shipped[name]
    if path.exists():
        return path  # its reader says why it cannot be read
    raise InputError(f"{for_terminal(name)} is no file and none of the shipped automations{nearest(name, shipped)}")


def _read(path: Path) -> list[AutomationFile]:
    where = for_terminal(str(path))
    loaded = read_yaml(path)
    if isinstance(loaded, dict) and set(loaded) == {"automations"}:
        loaded = loaded["automations"]
    entries = loaded if isinstance(loaded, list) else [loaded]
    if not entries:
        raise InputError(f"{where} has no automation in it")
    return [_checked(where, entry) for entry in entries]


def _checked(where: str, entry: Any) -> AutomationFile:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"].strip():
        raise InputError(f"{where}: an automation is a mapping with a name, a trigger and actions")
    name = entry["name"]
    for key in entry:
        if key not in _KEYS:
            unknown = f"has an unknown key {for_terminal(str(key))!r}{nearest(str(key), _KEYS)}"
            raise InputError(f"{where}: {for_terminal(name)!r} {unknown}")
    actions = entry.get("actions")
    if not isinstance(entry.get("trigger"), dict) or not isinstance(actions, list) or not actions:
        raise InputError(f"{where}: {for_terminal(name)!r} needs a trigger and at least one action")
    for action in actions:
        if not isinstance(action, dict):
            raise InputError(f"{where}: each action of {for_terminal(name)!r} is a mapping with a type")
        for key, (own, form) in _REFERENCES.items():
            if key in action and (own in action or not is_reference(action[key])):
                raise InputError(f"{where}: {key} in {for_terminal(name)!r} is {form}, and stands in place of {own}")
    file = AutomationFile(where, name, entry)
    related = entry["trigger"].get("match_related")
    if isinstance(related, dict) and "deployment" in related and not is_reference(related["deployment"]):
        raise InputError(f"{where}: deployment in match_related of {for_terminal(name)!r} is FLOW/DEPLOYMENT")
    return file


def is_reference(value: Any) -> bool:
    """Say whether a value names an object on the server by two parts.

    Args:
        value: FLOW/DEPLOYMENT or TYPE/NAME.

    Returns:
        Whether it is text with one slash and something on either side.

    Example:
        >>> is_reference("slack-webhook/cachewatch"), is_reference("ops")
        (True, False)
    """
    return isinstance(value, str) and value.count("/") == 1 and all(value.split("/"))
