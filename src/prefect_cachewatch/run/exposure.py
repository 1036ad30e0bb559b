"""Finds secrets in a flow run's parameters: Prefect stores these, and every user of its UI can read them.

It names their places, never their values. `common.secrets` says what a secret is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from prefect_cachewatch.common.secrets import redact, secret_options, secret_values
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_SHOWN_MAX = 5
# Their values are names of Secret blocks.
_REFERENCES = ("env_secrets",)


def exposed_secrets(parameters: Mapping[str, Any]) -> list[str]:
    """Find what looks like a secret in the parameters of a flow run.

    Args:
        parameters: their values by name: models, mappings, lists and plain values.

    Returns:
        The places, such as `job.command --password`; empty if there are none.

    Example:
        >>> exposed_secrets({"job": {"command": ["gen", "--password", "hunter2"], "env": {"DB_PWD": "hunter2", "A": "1"}}})
        ['job.command --password', 'job.env.DB_PWD']
    """
    return list(dict.fromkeys(where for name, value in parameters.items() for where in _find(name, value)))


def check_exposure(parameters: Mapping[str, Any]) -> str | None:
    """Warn of secrets in the parameters of a flow run.

    Args:
        parameters: as for `exposed_secrets`.

    Returns:
        One sentence; None if there are none.
    """
    found = exposed_secrets(parameters)
    if not found:
        return None
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    shown = ", ".join(for_terminal(where, 100) for where in found[:_SHOWN_MAX])
    store = "Prefect stores a flow run's parameters in its database and shows them"
    advice = "name a Secret block for each in env_secrets of the job, or leave it in the environment of who runs it"
    return f"{shown}{more} {'look' if len(found) > 1 else 'looks'} like a secret, and {store}: {advice}"


def require_utf8(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of a flow run that Prefect cannot store: file names are bytes, and its JSON is UTF-8.

    Args:
        parameters: as for `exposed_secrets`.

    Raises:
        InputError: a text has a byte that is no UTF-8.

    Example:
        >>> require_utf8({"job": {"command": ["gen", "--out", "/café"]}})
    """
    for name, value in parameters.items():
        for where, text in _texts(name, value):
            if found := next((character for character in text if "\ud800" <= character <= "\udfff"), None):
                raise InputError(
                    f"{for_terminal(where, 100)} has a byte that is no UTF-8 ({for_terminal(found)}), and Prefect stores no "
                    "such text: rename the file or directory, or use cachewatch exec"
                )


def _texts(where: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield where, str(name)
            yield from _texts(f"{where}.{name}", inner)
    elif isinstance(value, str):
        yield where, value
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for inner in value:
            yield from _texts(where, inner)


def _find(where: str, value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _REFERENCES:
                yield from _find(f"{where}.{name}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        words = [word for word in value if isinstance(word, str)]
        if len(words) == len(value):
            yield from (f"{where} {option}" for option in secret_options(words))
        else:
            for at, inner in enumerate(value):
                yield from _find(f"{where}[{at}]", inner)
    elif isinstance(value, str):
        name = where.rpartition(".")[2]
        if redact(value) != value or redact(f"{name}={value}") != f"{name}={value}" or secret_values({name: value}):
            yield where
