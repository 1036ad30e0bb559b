"""The input model of publishing: the store, the key, the checks, and how many builds are kept.

A pydantic model with bounds and a description on each field; nothing here looks at the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator

from prefect_cachewatch.config import DEFAULT_IGNORE, InputModel

_EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Glob = Annotated[str, Field(min_length=1, max_length=1000)]
_Text = Annotated[str, Field(max_length=4000)]
_Globs = Annotated[list[_Glob], Field(max_length=1000)]


class PublishPolicy(InputModel):
    """How a generated cache becomes the one that is used: key, checks, activation, clean-up."""

    ADVANCED = (
        "ignore",
        "allow_empty_files",
        "allow_sparse",
        "on_broken_content",
        "on_failed_writes",
    )

    store: Path = Field(
        description="Root of the store to publish into; an absolute path. The generator writes into a new directory there, "
        "{cache_dir} in the command or in the job's env values, which becomes current only when it is whole.",
    )
    cache_key: dict[Annotated[str, Field(min_length=1, max_length=200)], _Text] = Field(
        default_factory=dict,
        description="What the cache depends on; model revision, device mesh, dtype, tool version. "
        "With the command it makes the key; a whole cache of the same key is not generated again.",
    )
    key_env: list[_EnvName] = Field(
        default_factory=list,
        max_length=1000,
        description="Environment variables of the generator that count in the key, by name.",
    )
    key_files: list[Path] = Field(
        default_factory=list,
        max_length=1000,
        description="Files whose contents count in the key, such as a model's config.json or a lock file; absolute paths.",
    )
    ignore: _Globs = Field(
        default=list(DEFAULT_IGNORE),
        description="Globs of files that are not part of the cache: left out of the manifest, and no fault when they appear later.",
    )
    allow_empty_files: _Globs = Field(
        default_factory=list,
        description="Globs of files that may be empty; any other empty file is refused.",
    )
    allow_sparse: _Globs = Field(
        default_factory=list,
        description="Globs of files that may have parts that were never written, as databases have; any other is refused.",
    )
    expected_files: Annotated[int, Field(ge=1, le=10**8)] | _Globs | None = Field(
        default=None,
        description="How many files the cache has, or names and globs that must each be there.",
    )
    on_broken_content: Literal["refuse", "warn", "ignore"] = Field(
        default="refuse",
        description="What becomes of a build with a file that contradicts its own format (safetensors, .tensorbin, GGUF, zip, "
        "npy), or that names files which are not there: an index, a model in ONNX, a number in a name.",
    )
    on_failed_writes: Literal["warn", "refuse", "ignore"] = Field(
        default="warn",
        description="What becomes of a build whose generator exited with 0 although its output tells of a write or a download "
        "that failed, or its file system was full.",
    )
    check_command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Reads the finished build before it is published; {cache_dir} in it is the build's path, and "
        "exit 0 means good. No shell reads it.",
    )
    force: bool = Field(default=False, description="Generate even where a whole cache of the same key is current.")
    activate: bool = Field(default=True, description="Make the published build the current one at once.")
    keep: int | None = Field(
        default=3,
        ge=1,
        le=10**6,
        description="After activation, how many published builds stay, the current one among them; null: remove nothing.",
    )

    def with_key(self, below: Mapping[str, str]) -> Self:
        """Return it with further parts of the key; its own count before them."""
        return self.model_copy(update={"cache_key": {**below, **self.cache_key}}) if below else self

    @field_validator("cache_key", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        # 8 from Python and "8" from the command line must make the same key.
        if not isinstance(value, dict):
            return value
        return {name: _scalar_text(item) for name, item in value.items()}

    @field_validator("store", "key_files")
    @classmethod
    def _absolute(cls, given: Path | list[Path]) -> Path | list[Path]:
        for path in given if isinstance(given, list) else [given]:
            if not path.is_absolute():
                raise ValueError(f"{str(path)!r} is not an absolute path: write it from / on")
            if "\0" in str(path):
                raise ValueError("the path has a NUL character in it")
        return given

    @field_validator("check_command")
    @classmethod
    def _runnable(cls, command: list[str] | None) -> list[str] | None:
        if command is not None and (not command[0] or any("\0" in word for word in command)):
            raise ValueError("the check command's first word is empty or a word has a NUL character in it")
        return command


def _scalar_text(item: Any) -> Any:
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item) if isinstance(item, int | float) else item
