"""Options from the environment and from a file: `CACHEWATCH_STALL_AFTER`, or `stall-after` in TOML.

The command line takes precedence, then the environment, then the file, then the defaults. The option itself
interprets the value.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Container, Iterable, Mapping
from typing import Any

import click

from prefect_cachewatch.common.aside import Aside, InPlace, look_ahead
from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import RUN_TOKEN

_MAX_BYTES = 1 << 20
_PYPROJECT = "pyproject.toml"


def key_of(option: click.Parameter) -> str | None:
    """Return the key of an option in a file, its long name; None if it has none, or only shows something.

    Example:
        >>> key_of(click.Option(["-q", "--no-create"], is_flag=True))
        'no-create'
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


def read_settings(
    given: str | None, command: str, known: Iterable[str], others: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Read the file of `--config`, in which the table may be left out, or [tool.cachewatch] of ./pyproject.toml.

    Args:
        given: value of `--config`; None for pyproject.toml, if there is one.
        command: the command whose options are wanted.
        known: keys of these options.
        others: by command with settings, a function that lists the keys of its options.

    Returns:
        The file's name for messages, and value by key.

    Raises:
        InputError: the file cannot be read, is not TOML, has an unknown key, or belongs to another user.
    """
    if given == "":
        raise InputError("--config is empty: name a file, or leave it out")
    try:
        path = os.path.abspath(os.path.expanduser(given or _PYPROJECT))
    except FileNotFoundError:  # the working directory has been removed; a later check reports it
        path = ""
    if not path and not given:
        return "", {}
    shown = for_terminal(path or given or "", 4096)
    what = f"settings file {path}" if given else f"working directory {os.path.dirname(path)}"
    # A program with threads, which cannot be forked, has called us in place of the command itself.
    alone = len(os.listdir("/proc/self/task")) == 1
    with contextlib.closing(Aside.fork() if alone else InPlace()) as files:
        try:
            data, trusted = look_ahead(
                files, what, _read, path, instead="check the mount, or name another file with --config"
            )
        except OSError as error:
            if not given and isinstance(error, FileNotFoundError | NotADirectoryError):
                return shown, {}
            raise InputError(f"settings file {shown} cannot be read: {error.strerror or error}") from None
    table = _own_table(_parse(data, shown), shown, os.path.basename(path) == _PYPROJECT, {*known, *others})
    if table and not given and not trusted:
        raise InputError(
            f"{shown} has settings for cachewatch and may be written by another user: name it with --config if you trust it"
        )
    return shown, _pick(table, shown, command, set(known), others)


def settings_of(
    options: Mapping[str, click.Option], table: Mapping[str, Any], shown: str, own: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return the values that environment and file set.

    Args:
        options: options by key.
        table: table of the file.
        shown: the file's name.
        own: keys of options that belong to a single run. They are skipped under another command's generator, which has
            inherited the variables and runs in the same directory.

    Returns:
        The values by parameter; the source of each, by parameter; and the sources that were skipped.

    Raises:
        InputError: the file has a value of a type that the option cannot have.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    passed_over = []
    below = RUN_TOKEN in os.environ
    for key, option in options.items():
        written = os.environ.get(variable_of(key)) or None
        if written is None and key not in table:
            continue
        where = variable_of(key) if written is not None else f"{key} in {shown}"
        if below and key in own:
            passed_over.append(where)
            continue
        assert option.name is not None
        sources[option.name] = where
        if written is None:
            values[option.name] = _as_written(option, table[key], f"{shown}: {key}")
        else:
            values[option.name] = written.splitlines() if option.multiple else written
    return values, sources, passed_over


def _read(path: str) -> tuple[bytes, bool]:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(f"it has more than {_MAX_BYTES} bytes")
    return data, status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o002


def _parse(data: bytes, shown: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"settings file {shown} is not TOML: {for_terminal(str(error), 200)}") from None


def _own_table(table: dict[str, Any], shown: str, is_pyproject: bool, known: Container[str]) -> dict[str, Any]:
    """The settings in a file: [tool.cachewatch], or in a file of its own its top as well."""
    tool = table.get("tool", {})
    if not is_pyproject:
        if "cachewatch" in table:
            raise InputError(
                f"{shown}: [cachewatch] is not known: write [tool.cachewatch], or its keys without a table"
            )
        if not isinstance(tool, dict) or not isinstance(tool.get("cachewatch"), dict):
            return table
        if both := next((key for key in table if key != "tool" and key.replace("_", "-") in known), None):
            name = for_terminal(both, 60)
            raise InputError(f"{shown} has [tool.cachewatch], and {name} outside it: write all of them in one place")
    return _table(_table(tool, f"{shown}: tool").get("cachewatch", {}), f"{shown}: tool.cachewatch")


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is no table: write [tool.cachewatch]")
    return value


def _pick(
    table: dict[str, Any], shown: str, command: str, known: set[str], others: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys of this command, those of its own table first; a key that no command knows is an error."""
    own = _table(table.get(command, {}), f"{shown}: {command}")
    common = {key: value for key, value in table.items() if key not in others}
    found: dict[str, Any] = {}
    for keys, place in ((common, ""), (own, f"{command}.")):
        for written, value in keys.items():
            key = written.replace("_", "-")
            if key in known:
                found[key] = value
            elif place or not any(key in keys_of() for keys_of in others.values()):
                name = for_terminal(written, 60)
                raise InputError(f"{shown}: {place}{name} is no option of cachewatch {command}{_hint(key, known)}")
    return found


def _hint(key: str, known: Iterable[str]) -> str:
    hint = nearest(key, known)
    return hint if "did you mean" in hint else " (see --help-all)"


def _as_written(option: click.Option, value: Any, where: str) -> Any:
    """A value of TOML in the form of the command line."""
    shown = for_terminal(repr(value), 60)
    if option.count and isinstance(value, bool):
        return int(value)
    if option.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"{where} = {shown}: write true or false")
        return value
    if option.multiple:
        if isinstance(value, dict):
            value = [f"{name}={_text(each, f'{where}.{name}')}" for name, each in value.items()]
        return [_text(each, where) for each in (value if isinstance(value, list) else [value])]
    return _text(value, where)


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where} = {for_terminal(repr(value), 60)}: write a text or a number")
    return str(value)
