"""Error messages about user input: an unknown name, a value that does not fit. Reads no file."""

from __future__ import annotations

import difflib
import reprlib
import tomllib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from prefect_cachewatch.common.files import INPUT_MAX_BYTES
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_Model = TypeVar("_Model", bound=BaseModel)


def nearest(name: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown name with the nearest known name, or with all of them.

    Args:
        name: as the user wrote it.
        known: the valid names.

    Returns:
        `: did you mean x?` or `: use one of a, b, c`.

    Example:
        >>> nearest("burst_byte", ["burst_bytes", "think_s"])
        ': did you mean burst_bytes?'
    """
    names = list(known)
    close = difflib.get_close_matches(name.lower(), [entry.lower() for entry in names], n=1, cutoff=0.6)
    for entry in names:
        if close and entry.lower() == close[0]:
            return f": did you mean {entry}?"
    return f": use one of {', '.join(names)}"


def parse_toml(raw: bytes, file: str) -> dict[str, Any]:
    """Parse what `read_input` read of a TOML file.

    Args:
        raw: its bytes.
        file: the file's name for the sentence.

    Raises:
        InputError: it is too large, or not TOML.
    """
    if len(raw) > INPUT_MAX_BYTES:
        raise InputError(f"{file} is larger than 4 MiB, which nobody writes by hand: check the path")
    try:
        return tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not TOML: {for_terminal(str(error), 200)}") from None


def validate(model: type[_Model], data: Any, file: str, field: str) -> _Model:
    """Build a model from data; an error message names the first thing that is wrong.

    Args:
        model: the pydantic model.
        data: as it was read.
        file: the file's name for the sentence.
        field: where in the file, "" at its top.

    Returns:
        The model.

    Raises:
        InputError: the data do not fit; the message names the field, and for an unknown key the nearest known one.
    """
    try:
        return model.model_validate(data)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise InputError(f"{file}: {field or 'it'} refers to itself: write it out") from None
        # Report an unknown key first: a missing field is then only a consequence of the typing error.
        problems = sorted(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
        raise InputError(_sentence(model, problems[0], len(problems), file, field)) from None


def _sentence(model: type[BaseModel], problem: Any, count: int, file: str, field: str) -> str:
    where = field
    for part in problem["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    more = f" (and {count - 1} more)" if count > 1 else ""
    name = for_terminal(where, 120) or "it"
    if problem["type"] == "extra_forbidden":
        return f"{file}: {name} is not known{nearest(str(problem['loc'][-1]), _fields(model, problem['loc']))}{more}"
    if problem["type"] == "missing":
        return f"{file}: {name} is missing: {_describe(model, problem['loc'])}{more}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if message.startswith(("Input ", "String ", "List ")) else message
    if problem["type"] == "value_error":
        return f"{file}: {f'{name}: ' if where else ''}{for_terminal(message, 400)}{more}"
    # A few lines of YAML with aliases can stand for gigabytes, so the value is never written out whole.
    shown = for_terminal(reprlib.repr(problem.get("input")), 60)
    if problem["type"] == "dict_type":
        message = "it is a mapping: write `name: value` lines below it"
    if problem["type"] == "model_type" and (fields := _fields(model, (*problem["loc"], ""))):
        message = f"it is a mapping: write `name: value` lines below it, of {', '.join(fields)}"
    return f"{file}: {name} = {shown}: {for_terminal(message, 300)}{more}"


def _models(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel] | None:
    """Return the model that the last part of a location belongs to."""
    found = [model]
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        holder = next((entry for entry in found if str(part) in entry.model_fields), None)
        if holder is not None:
            found = _models_in(holder.model_fields[str(part)].annotation)
        else:  # if a value may be of several kinds, pydantic names the kind
            found = [entry for entry in found if part in (entry.__name__, _kind(entry))]
    return found[0] if found else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in getattr(annotation, "__args__", ()) for found in _models_in(inner)]


def _kind(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("kind")
    return field.default if field is not None else None


def _fields(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    found = _models(model, loc)
    return list(found.model_fields) if found else []


def _describe(model: type[BaseModel], loc: tuple[Any, ...]) -> str:
    found = _models(model, loc)
    field = found.model_fields.get(str(loc[-1])) if found else None
    return (field.description or "give it").rstrip(".") if field else "give it"
