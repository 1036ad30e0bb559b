"""The engine's spec: the checked inputs of a run as plain JSON, and back as objects with the same attributes.

The front has checked them with pydantic, which the engine never loads. Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Plain(SimpleNamespace):
    """A checked model of the front, read back: its fields and properties as attributes."""

    def model_copy(self, *, update: dict[str, Any]) -> Plain:
        """Return a copy with other values."""
        return Plain(**(vars(self) | update))


def to_plain(value: Any) -> Any:
    """Turn models, paths and containers of them into what JSON can hold.

    Example:
        >>> from prefect_cachewatch.config import Outputs
        >>> to_plain(Outputs(log="/a"))["model"]["log"]
        {'path': '/a'}
    """
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, dict):
        return {"dict": {str(name): to_plain(one) for name, one in value.items()}}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    if (fields := getattr(type(value), "model_fields", None)) is not None:
        properties = [name for name, one in vars(type(value)).items() if isinstance(one, property)]
        return {"model": {name: to_plain(getattr(value, name)) for name in (*fields, *properties)}}
    return value


def from_plain(data: Any) -> Any:
    """Read back what `to_plain` has made; a model is `Plain`.

    Example:
        >>> from_plain({"model": {"log": {"path": "/a"}, "bundle": True}}).log
        PosixPath('/a')
    """
    if isinstance(data, list):
        return [from_plain(one) for one in data]
    if isinstance(data, dict):
        ((kind, inner),) = data.items()
        if kind == "path":
            return Path(inner)
        read = {name: from_plain(one) for name, one in inner.items()}
        return Plain(**read) if kind == "model" else read
    return data
