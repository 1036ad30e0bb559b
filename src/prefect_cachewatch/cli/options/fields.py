"""Options that stand for fields of models: name, text, type, bounds and default come from the field."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from prefect_cachewatch.cli.options.sections import complete_directory, option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import quantities
from prefect_cachewatch.config.forms import unit_of
from prefect_cachewatch.errors import InputError

M = TypeVar("M", bound=BaseModel)

# The field of a model to the option that sets it, where the option has another name.
_NAMES = {
    "command": "COMMAND",
    "to": "--metrics",
}
_STEPS = {
    "duration": {"h": 3600.0, "m": 60.0, "s": 1.0},
    "size": {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "": 1.0},
}


class QuantityType(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.2 and later only
    """A number with a unit, as a field of a model reads it."""

    def __init__(self, quantity: quantities.Quantity) -> None:
        self.name, self._read = quantity.name, quantity.read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION, SIZE = QuantityType(quantities.DURATION), QuantityType(quantities.SIZE)


class Fields(Generic[M]):
    """Options for fields of a model.

    Args:
        model: the model.
        written: the fields, separated by commas; after each the option's names, if they differ from the field's, the
            placeholder for its value, and `=VALUE` for a flag that sets this value.
        settings: by field, arguments of `click.Option` in place of those that follow from the field.
    """

    def __init__(self, model: type[M], written: str, **settings: dict[str, Any]) -> None:
        self._model = model
        self._flags: dict[str, str] = {}
        self._by_field: dict[str, click.Option] = {}
        for field, *words in map(str.split, written.split(", ")):
            names = [word for word in words if word.startswith("-")]
            if any(name.startswith("--") for name in names):
                _NAMES[field] = names[0]
            if any(name.startswith("=") for name in words):
                self._flags[field] = words[-1][1:]
            metavar = next((word for word in words if not word.startswith(("-", "="))), None)
            self._by_field[field] = self._option(field, names or [_option_of(field)], metavar, settings.get(field, {}))

    def __getitem__(self, field: str) -> click.Option:
        return self._by_field[field]

    def options(self, *without: str) -> list[click.Option]:
        """List the options, except those of some fields."""
        return [each for field, each in self._by_field.items() if field not in without]

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that were set, with their values; raises InputError for a pair that is none."""
        found: dict[str, Any] = {}
        for field, each in self._by_field.items():
            value = options.get(field)
            if value is None or value is False or value == ():
                continue
            if each.multiple and get_origin(_bare(self._model.model_fields[field])) is dict:
                value = split_pairs(each.opts[0], value, each.metavar or "NAME=VALUE")
            found[field] = self._flags.get(field, value)
        return found

    def build(self, options: Mapping[str, Any], **further: Any) -> M:
        """Make the model of the options and of the values given here; raises InputError."""
        return build_model(self._model, **{**self.given(options), **further})

    def _option(self, field: str, names: list[str], metavar: str | None, settings: dict[str, Any]) -> click.Option:
        info = self._model.model_fields[field]
        kind: dict[str, Any] = {"is_flag": True} if field in self._flags else _kind(info)
        if metavar == "DIR":
            kind["shell_complete"] = complete_directory
        words = self._words(info).removeprefix(f"{self._flags.get(field)}: ")
        further = (
            " Repeatable." if {**kind, **settings}.get("multiple") else "" if kind.get("is_flag") else _default(info)
        )
        return option(
            *names, field, **{"metavar": metavar, "default": None, "help": words + further, **kind, **settings}
        )

    def _words(self, info: FieldInfo) -> str:
        """The field's description, with options in place of fields."""
        fields = self._model.model_fields
        return re.sub(
            r"\w+_\w+", lambda word: _option_of(word[0]) if word[0] in fields else word[0], info.description or ""
        )


def build_model(model: type[M], **values: Any) -> M:
    """Make a model; a validation error becomes one sentence that names the option.

    Args:
        model: the model.
        values: values of its fields.

    Raises:
        InputError: a field is not valid.
    """
    try:
        return model(**values)
    except ValidationError as error:
        raise InputError(explain(error)) from None


def explain(error: ValidationError, option: str | None = None) -> str:
    """Describe the first of a model's validation errors in one sentence.

    Args:
        error: the error from pydantic.
        option: the option that the model as a whole comes from.

    Returns:
        The option or field, what is wrong, and the value that was given.
    """
    first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"]]
    where = next((_NAMES[part] for part in loc if part in _NAMES), option or (_option_of(loc[0]) if loc else None))
    what = for_terminal(first["msg"].removeprefix("Value error, "), 1000)
    if where is None:  # an error of the fields together
        return what
    limits = first.get("ctx", {})
    # The last part names an alternative of a field that has several.
    unit = next((found for part in reversed(loc[-2:]) if (found := unit_of(part)).ending), unit_of(""))
    if unit.ending and isinstance(first["input"], int | float):
        for word, bound in (("at least", limits.get("ge")), ("at most", limits.get("le"))):
            if bound is not None:
                return f"{where} {unit.write(float(first['input']))} is out of range: give {word} {unit.write(bound)}"
    shown = for_terminal(repr(first["input"]), 80)
    told = first["type"] == "value_error" or first["type"].startswith("string_") or shown.strip("'\"") in what
    return f"{where}: {what if what[:3].isupper() else what[:1].lower() + what[1:]}" + (
        "" if told else f" (given: {shown})"
    )


def split_pairs(option: str, pairs: Sequence[str], form: str = "NAME=VALUE", example: str = "") -> dict[str, str]:
    """Split pairs of the form NAME=VALUE.

    Args:
        option: the option of the pairs.
        pairs: the pairs as written.
        form: the expected form, for the error message.
        example: an example, for the error message.

    Returns:
        Value by name.

    Raises:
        InputError: one is not such a pair, or a name comes twice with different values.

    Example:
        >>> split_pairs("--key", ["a=b=c"])
        {'a': 'b=c'}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"{option} {for_terminal(pair, 40)!r} is not {form}{example}")
        if found.setdefault(name, value) != value:
            raise InputError(f"{option} {for_terminal(name, 40)} is given twice with different values: give it once")
    return found


def split_command(option: str, command: str, example: str) -> list[str]:
    """Split a command that an option gives as one text, as a shell would.

    Args:
        option: the option.
        command: as written.
        example: an example, for the error message.

    Returns:
        argv.

    Raises:
        InputError: it cannot be split, or is empty.

    Example:
        >>> split_command("--before-retry", "tt-smi -r", "tt-smi -r")
        ['tt-smi', '-r']
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"{option} cannot be read as a command ({error}): quote it like a shell would") from None
    if not words:
        raise InputError(f"{option} is empty: give a command such as {option} '{example}'")
    return words


def _option_of(field: str) -> str:
    return _NAMES.get(field) or "--" + field.removesuffix(unit_of(field).ending).replace("_", "-")


def _bare(info: FieldInfo) -> Any:
    """The annotation without None."""
    if get_origin(info.annotation) in (Union, UnionType):
        return next(kind for kind in get_args(info.annotation) if kind is not NoneType)
    return info.annotation


def _kind(info: FieldInfo) -> dict[str, Any]:
    """The type that click gives a value of the field."""
    bare = _bare(info)
    if (quantity := quantities.quantity_of(info)) is not None:
        return {"type": QuantityType(quantity)}
    if bare is bool:
        return {"is_flag": True}
    if get_origin(bare) is Literal:
        return {"type": click.Choice(get_args(bare))}
    if get_origin(bare) in (list, dict):
        return {"multiple": True}
    if bare is int:
        least, most = (next((getattr(m, of) for m in info.metadata if hasattr(m, of)), None) for of in ("ge", "le"))
        return {"type": click.IntRange(least, most)}
    return {"type": click.Path(path_type=Path) if bare is Path else bare if bare is float else str}


def _default(info: FieldInfo) -> str:
    value = info.default
    if not isinstance(value, str | int | float):
        return ""
    if not isinstance(value, str) and (quantity := quantities.quantity_of(info)) is not None:
        steps = _STEPS.get(quantity.name, {"": 1.0})
        plain = f"{value:g}{[*steps][-1]}"
        value = next((f"{value / step:g}{unit}" for unit, step in steps.items() if value % step == 0), plain)
    return f"  [default: {value}]"
