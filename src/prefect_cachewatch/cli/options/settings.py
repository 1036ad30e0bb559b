"""Options from the environment and from a file: `CACHEWATCH_STALL_AFTER`, or `stall-after` in TOML.

The command line takes precedence, then the environment, then the file of `--config`, then the defaults. click reads
all of them; this module makes its `default_map` from the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from prefect_cachewatch.common.files import read_input
from prefect_cachewatch.common.inputs import nearest, parse_toml
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

#: Commands whose options a file may set; each may have a table of its own in it.
COMMANDS = ("exec", "generate", "watch", "fleet")


def key_of(option: click.Parameter) -> str | None:
    """Return the key of an option in a file, its long name; None if it has none, or only shows something.

    Example:
        >>> key_of(click.Option(["-q", "--no-bundle"], is_flag=True))
        'no-bundle'
    """
    if not isinstance(option, click.Option) or not option.expose_value:
        return None
    return next((name.removeprefix("--") for name in option.opts if name.startswith("--")), None)


def variable_of(key: str) -> str:
    """Return the environment variable that sets an option.

    Example:
        >>> variable_of("stall-after")
        'CACHEWATCH_STALL_AFTER'
    """
    return f"CACHEWATCH_{key.replace('-', '_').upper()}"


def read_config(path: str, command: str, options: Mapping[str, click.Option]) -> dict[str, Any]:
    """Read the file of `--config`: the keys at its top, and those of the command's own table before them.

    Args:
        path: the file.
        command: the command whose options are wanted.
        options: its options by key.

    Returns:
        Values by parameter, for click's `default_map`.

    Raises:
        InputError: the file cannot be read, is not TOML, has an unknown key, or a value of a wrong type.
    """
    shown = for_terminal(path, 4096)
    try:
        raw = read_input(os.path.expanduser(path))
    except OSError as error:
        raise InputError(f"--config {shown} cannot be read: {error.strerror or error}") from None
    data = parse_toml(raw, f"--config {shown}")
    own = data.get(command, {})
    if not isinstance(own, dict):
        raise InputError(f"--config {shown}: {command} is no table: write [{command}]")
    found: dict[str, Any] = {}
    for written, value in [*((key, value) for key, value in data.items() if key not in COMMANDS), *own.items()]:
        key = written.replace("_", "-")
        if (option := options.get(key)) is None or option.name is None:
            hint = nearest(key, options)
            hint = hint if "did you mean" in hint else "; an option of another command stands in that one's table"
            raise InputError(
                f"--config {shown}: {for_terminal(written, 60)} is no option of cachewatch {command}{hint}"
            )
        found[option.name] = _as_written(option, value, f"--config {shown}: {for_terminal(written, 60)}")
    return found


def _as_written(option: click.Option, value: Any, where: str) -> Any:
    """A value of TOML in the form of the command line."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"{where} = {for_terminal(repr(value), 60)}: write true or false")
        return value
    if not option.multiple:
        return _text(value, where)
    if isinstance(value, dict):
        return [f"{name}={_text(each, f'{where}.{name}')}" for name, each in value.items()]
    return [_text(each, where) for each in (value if isinstance(value, list) else [value])]


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where} = {for_terminal(repr(value), 60)}: write a text or a number")
    return str(value)
