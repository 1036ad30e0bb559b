"""The base of every input model, and names that they share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["WEEK_S", "EnvName", "InputModel", "check_absolute"]

WEEK_S = 7 * 86400.0
_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"

EnvName = Annotated[str, Field(pattern=_ENV_NAME)]


class InputModel(BaseModel):
    """A model that people write: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def check_absolute(paths: Iterable[Path]) -> None:
    """Refuse cache directories that are not absolute paths.

    Args:
        paths: of cache directories.

    Raises:
        ValueError: one is relative, or has a NUL character in it.

    Example:
        >>> check_absolute([Path("/mnt/cache")])
    """
    for path in paths:
        if not path.is_absolute():
            raise ValueError(f"cache directory {str(path)!r} is not an absolute path: write it from / on")
        if "\0" in str(path):
            raise ValueError("a cache directory's path has a NUL character in it")
