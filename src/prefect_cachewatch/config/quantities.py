"""The base of every input model, and field types for durations and sizes.

Users write durations and sizes as `5m` and `4KiB` or as plain numbers. A field's name states the unit of the stored
value, seconds or bytes. The input has the same form in a jobs file, a plan file, Python, the Prefect API and the UI's
form, whose JSON schema takes a number or a text. Bounds go into `Field`:

    stall_after_s: Duration = Field(default=300, ge=0.2, le=WEEK_S, description="...")
    max_duration_s: OptionalDuration = Field(default=None, ge=0.2, description="...")

Write `OptionalDuration` for `Duration | None`, and `Annotated[float, Field(ge=0), DURATION]` for a bounded parameter of
a flow: only these put the bounds into the JSON schema. Command-line options use
`quantity_of(Model.model_fields["stall_after_s"])` to detect such a field; its `parse` reads the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from prefect_cachewatch.common.units import (
    DURATION_PATTERN,
    QUANTITY_CHARACTERS,
    SIZE_PATTERN,
    parse_bytes,
    parse_duration,
)
from prefect_cachewatch.config.forms import draw_fields

WEEK_S = 7 * 86400.0
_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"

EnvName = Annotated[str, Field(pattern=_ENV_NAME)]


@dataclass(frozen=True)
class Quantity:
    """Marks a number field of a model that may be written as text with a unit.

    Attributes:
        name: the kind of quantity: duration, size.
        parse: reads the text; raises ValueError with a sentence that shows a valid one.
        pattern: of the text, for the JSON schema.
    """

    name: str
    parse: Callable[[str], float | str]
    pattern: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        number = handler(schema)
        if handler.mode == "serialization":
            return number
        text = {"title": "text", "type": "string", "pattern": self.pattern, "maxLength": QUANTITY_CHARACTERS}
        first, *others = number.get("anyOf", [number])
        return {"anyOf": [{"title": "number", **first}, text, *others]}

    def read(self, value: Any) -> Any:
        """Convert a text to a number; any other value is left to the field's own check."""
        if isinstance(value, bool):
            raise ValueError(f"{str(value).lower()} is not a {self.name}")
        return self.parse(value) if isinstance(value, str) else value


DURATION = Quantity("duration", parse_duration, DURATION_PATTERN)
SIZE = Quantity("size", parse_bytes, SIZE_PATTERN)

Duration = Annotated[float, DURATION]
OptionalDuration = Annotated[float | None, DURATION]
Size = Annotated[int, SIZE]
OptionalSize = Annotated[int | None, SIZE]


def quantity_of(field: FieldInfo) -> Quantity | None:
    """Return the quantity of a model's field.

    Args:
        field: from `model_fields`.

    Returns:
        The quantity; None for any other field.

    Example:
        >>> from prefect_cachewatch.config import StallPolicy
        >>> quantity_of(StallPolicy.model_fields["stall_after_s"]).parse("5m")
        300.0
    """
    return next((entry for entry in field.metadata if isinstance(entry, Quantity)), None)


class InputModel(BaseModel):
    """A model that people write: frozen, and unknown fields are errors.

    Attributes:
        ADVANCED: fields that few people set; a run form shows them last.
    """

    ADVANCED: ClassVar[tuple[str, ...]] = ()

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        written = handler(schema)
        own = handler.resolve_ref_schema(written)
        if handler.mode == "validation" and "properties" in own:
            own["properties"] = draw_fields(own["properties"], cls.ADVANCED)
        return written


class Shorthand(InputModel):
    """A model that is also written as one text."""

    @classmethod
    def _read(cls, text: str) -> dict[str, Any]:
        """Return the fields of a text; raises ValueError with a sentence that shows a valid one."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        return cls._read(given) if isinstance(given, str) else given


def check_absolute(paths: Iterable[Path]) -> None:
    """Refuse cache directories that are not absolute paths.

    Args:
        paths: of cache directories.

    Raises:
        ValueError: a path is relative, or contains a NUL character.

    Example:
        >>> check_absolute([Path("/mnt/cache")])
    """
    for path in paths:
        if not path.is_absolute():
            raise ValueError(f"cache directory {str(path)!r} is not an absolute path: write it from / on")
        if "\0" in str(path):
            raise ValueError("a cache directory's path has a NUL character in it")
