"""Builds in a store, through the public names alone: no flow and no generator, so that one costs milliseconds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect_cachewatch import CacheStore, PublishPolicy

NAME = "c"
Fill = Mapping[str, bytes] | Callable[[Path], object]
WHOLE = {"a.bin": b"abc", "d/b.bin": b"defg"}


@dataclass(frozen=True)
class Recipe:
    """What a build is made from; builds of one key are the same cache."""

    argv: tuple[str, ...] = ("gen", "{cache_dir}")
    cache_key: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps([self.argv, sorted(self.cache_key.items())]).encode()).hexdigest()


@dataclass(frozen=True)
class Offered:
    """What became of a build: published, or refused."""

    build_id: str
    path: Path
    findings: list[Any]
    adopted: bool

    @property
    def refused(self) -> list[str]:
        return [finding.category for finding in self.findings if finding.severity == "refuse"]

    @property
    def warned(self) -> list[str]:
        return [finding.category for finding in self.findings if finding.severity == "warn"]

    @property
    def said(self) -> str:
        return "; ".join(finding.message for finding in self.findings)


def fill_with(directory: Path, fill: Fill) -> None:
    if callable(fill):
        fill(directory)
        return
    for path, data in fill.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)


def offer(
    root: Path | str,
    fill: Fill = WHOLE,
    *,
    activate: bool = True,
    key: str = "1",
    argv: tuple[str, ...] = ("gen", "{cache_dir}"),
    **policy: Any,
) -> Offered:
    """Write a build and offer it, as a run does: checks, then publication and activation, or refusal."""
    store, rules = CacheStore(root), PublishPolicy(store=Path(root), **policy)
    with store.begin(NAME, Recipe(argv, {"v": key})) as build:  # type: ignore[arg-type]
        if build.adopted:
            build.prepare_resume(rules, window_s=0)
        build.note_growth()
        fill_with(Path(build.path), fill)
        findings = build.check(rules)
        refused = any(finding.severity == "refuse" for finding in findings)
        if refused:
            build.refuse(findings, "refused")
        else:
            build.publish(rules, findings=findings, threads=1)
    if activate and not refused:
        store.activate(NAME, build.build_id)
    return Offered(build.build_id, Path(build.path), findings, build.adopted)


def listed(root: Path | str) -> dict[str, Any]:
    return {build.build_id: build for build in CacheStore(root).list_builds(NAME)}


def states(root: Path | str) -> dict[str, str]:
    return {build_id: build.state for build_id, build in listed(root).items()}


def active(root: Path | str) -> str | None:
    """The id of the current build, as the link says it."""
    link = f"{root}/{NAME}/current"
    return os.readlink(link).removeprefix("builds/") if os.path.lexists(link) else None


def beside(build: Path, ending: str) -> Path:
    """The record beside a build: `.begun`, `.json`, its manifest, or `.bad`."""
    return build.with_name(build.name + ending)
