"""Draws the fields of input models for the run forms of Prefect's two UIs.

Both UIs draw one tab for each alternative of a field with several types, and show `Property is type "None"` for a null
that is chosen. An enumeration of null alone lets the server accept null, and no form chooses it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from prefect_cachewatch.common.units import format_bytes, format_duration

_NULL = {"enum": [None], "title": "default"}


class Unit(NamedTuple):
    """The unit that a field's name ends with: the ending, its words in a form, and what writes a value for people."""

    ending: str
    words: str
    write: Callable[[float], str]


_UNITS = (Unit("_s", " (seconds, or 5m)", format_duration), Unit("_bytes", " (bytes, or 4GiB)", format_bytes))
_NO_UNIT = Unit("", "", str)


class _Off:
    """A field that is a model or null: the form opens on `off`, which sends an empty object that means null."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda given: None if given == {} else given, handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        field = handler(schema)
        if handler.mode == "serialization":
            return field
        off = {"title": "off", "type": "object", "properties": {}, "maxProperties": 0}
        return {"anyOf": [off, *_without_null(field), _NULL]}


OFF = _Off()


def unit_of(name: str) -> Unit:
    """Return the unit of a field; an empty one if its name has none.

    Example:
        >>> unit_of("grace_s").write(90)
        '90 s'
    """
    if name.endswith("_per_s"):  # a rate, and no time
        return _NO_UNIT
    return next((unit for unit in _UNITS if name.endswith(unit.ending)), _NO_UNIT)


def field_title(name: str) -> str:
    """Make a field's title from its name, with the unit of a number.

    Example:
        >>> field_title("stall_after_s")
        'Stall after (seconds, or 5m)'
    """
    unit = unit_of(name)
    words = name.removesuffix(unit.ending).replace("_", " ")
    return words[:1].upper() + words[1:] + unit.words


def draw_fields(fields: dict[str, JsonSchemaValue], advanced: Collection[str]) -> dict[str, JsonSchemaValue]:
    """Give the fields of a model's JSON schema their titles, and hide null from the form.

    Args:
        fields: by name.
        advanced: names of the fields that come last, marked as advanced.

    Returns:
        The fields in the order of the form.
    """
    drawn = {name: _draw(name, fields[name]) for name in sorted(fields, key=lambda name: name in advanced)}
    for name in advanced:
        drawn[name]["title"] = f"Advanced: {drawn[name]['title'][:1].lower()}{drawn[name]['title'][1:]}"
    return drawn


def _draw(name: str, field: JsonSchemaValue) -> JsonSchemaValue:
    field = {**field, "title": field_title(name)}
    if field.get("default", ...) is not None or any("$ref" in each for each in field.get("anyOf", [])):
        return field
    del field["default"]
    kinds = _without_null(field)
    if len(kinds) == 1:
        # Prefect's server accepts null for a field with a type and no default.
        del field["anyOf"]
        return {**kinds[0], **field}
    return {**field, "anyOf": [*kinds, _NULL]}


def _without_null(field: JsonSchemaValue) -> list[JsonSchemaValue]:
    return [each for each in field["anyOf"] if each.get("type") != "null"]
