"""The path of a directory as a profile's parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

__all__ = ["AbsolutePath"]


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is not an absolute path: write it from / on")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
