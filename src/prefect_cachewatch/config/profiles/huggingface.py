"""A download from the Hugging Face hub: a cache that grows by `*.incomplete` files, which are renamed when whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from prefect_cachewatch.config import DEFAULT_IGNORE
from prefect_cachewatch.config.profiles.base import AbsolutePath, Profile, ProfileSettings, named_after
from prefect_cachewatch.config.profiles.commandline import CommandLine


class HuggingFaceDownload(Profile):
    """`hf download` into the hub's cache, or into a directory of its own.

    Example:
        >>> [path.name for path in HuggingFaceDownload(home="/mnt/hf").resolve().cache_dirs]
        ['hub', 'xet']
    """

    profile_name: ClassVar[str] = "hf-download"
    summary: ClassVar[str] = "A Hugging Face download (HF_HOME): hub and Xet caches, *.incomplete files count."

    home: AbsolutePath = Field(description="HF_HOME: models are cached in hub below it, Xet chunks in xet.")
    repo: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$",
        max_length=200,
        description="Repository to download with `hf download`, for example org/model; without it give a command.",
    )
    revision: str | None = Field(
        default=None, pattern=r"^[\w./-]+$", max_length=200, description="Branch, tag or commit; best a commit."
    )
    local_dir: AbsolutePath | None = Field(
        default=None, description="Directory that gets the files themselves, instead of the hub's cache."
    )

    @model_validator(mode="after")
    def _of_a_repo(self) -> Self:
        if self.repo is None and (self.revision is not None or self.local_dir is not None):
            raise ValueError("revision and local_dir belong to a repo: name the repository too")
        return self

    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""
        hub, xet = self.home / "hub", self.home / "xet"
        command: tuple[str, ...] = ()
        if self.repo is not None:
            command = ("hf", "download", self.repo)
            command += ("--revision", self.revision) if self.revision is not None else ()
            command += ("--local-dir", str(self.local_dir)) if self.local_dir is not None else ()
        name = (self.repo or "hf-download").replace("/", "--")
        return ProfileSettings(
            name=name,
            cache_dirs=(self.local_dir if self.local_dir is not None else hub, xet),
            env={"HF_HOME": str(self.home), "HF_HUB_CACHE": str(hub), "HF_XET_CACHE": str(xet)},
            # Metadata beside a download: a few bytes for each file, which are no progress.
            ignore=(*DEFAULT_IGNORE, "*.metadata", "CACHEDIR.TAG"),
            # A request that gets no byte is given up after 10 s and retried: two minutes are many tries.
            stall={"first_write_within_s": 300.0, "stall_after_s": 120.0, "poll_s": 5.0},
            command=command,
            key={name: value for name, value in (("model", self.repo), ("revision", self.revision)) if value},
        )

    @classmethod
    def recognize(cls, line: CommandLine) -> ProfileSettings | None:
        """Know `hf download` and `huggingface-cli download`."""
        if line.program not in ("hf", "huggingface-cli") or line.operand(0) != "download":
            return None
        home = line.place(line.env.get("HF_HOME")) or line.cache_home("huggingface")
        caches = (line.option("--cache-dir"), line.env.get("HF_HUB_CACHE"), line.env.get("HUGGINGFACE_HUB_CACHE"))
        hub = next((place for cache in caches if (place := line.place(cache))), f"{home}/hub")
        target = line.place(line.option("--local-dir")) or hub
        xet = line.place(line.env.get("HF_XET_CACHE")) or f"{home}/xet"
        settings = replace(cls(home=Path(home)).resolve(), cache_dirs=(Path(target), Path(xet)))
        return named_after(line.operand(1), settings)
