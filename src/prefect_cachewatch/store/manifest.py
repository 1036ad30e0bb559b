"""The manifest: the contents of a whole build, as JSON that detects when it was cut or edited.

Pure: bytes in, values out. `staged` decides when it is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged

# Cryptographic, in every toolbox (sha256sum -c), and the fastest such digest in hashlib on processors with SHA instructions.
DIGEST_ALGORITHM = "sha256"
SCHEMA_VERSION = 1
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class FileEntry:
    """A regular file of the build: path relative to it, size, and the digest of its contents."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class LinkEntry:
    """A symbolic link of the build, which leads to something inside it."""

    path: str
    target: str


@dataclass(frozen=True)
class Manifest:
    """A whole build: its origin, its inputs, and every file of it."""

    name: str
    build_id: str
    key: str
    cache_key: Mapping[str, str]
    argv: tuple[str, ...]
    tool_versions: Mapping[str, str]
    host: Mapping[str, str]
    started_at: str
    finished_at: str
    files: tuple[FileEntry, ...]
    links: tuple[LinkEntry, ...] = ()
    growth: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    digest_algorithm: str = DIGEST_ALGORITHM
    ignore: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry.size_bytes for entry in self.files)

    @property
    def total_files(self) -> int:
        """How many files there are."""
        return len(self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as JSON, with a digest of itself as its last member.

    Args:
        manifest: the values; paths may hold surrogate escapes, which JSON keeps as `\\udcXX`.

    Returns:
        ASCII bytes, one file a line, ending in a newline.

    Example:
        >>> m = Manifest("c", "b", "k", {}, (), {}, {}, "", "", (FileEntry("a", 1, "0" * 64),))
        >>> decode_manifest(encode_manifest(m), "m.json") == m
        True
    """
    body = _body(manifest)
    lists = {name: body.pop(name) for name in ("files", "links")}
    # One entry a line keeps a manifest of 100,000 files readable with less, grep and diff.
    members = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in body.items()]
    for name, entries in lists.items():
        lines = ",\n  ".join(json.dumps(entry) for entry in entries)
        members.append(f"{json.dumps(name)}: [\n  {lines}\n ]" if entries else f"{json.dumps(name)}: []")
    members.append(f'"manifest_digest": "{_self_digest({**body, **lists})}"')
    return ("{\n " + ",\n ".join(members) + "\n}\n").encode("ascii")


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest and refuse one that was cut short or changed since it was written.

    Args:
        data: contents of the file.
        where: its path, for the message.

    Returns:
        The manifest, exactly as it was written.

    Raises:
        BuildDamaged: it is not JSON, not a manifest, of another version, or its own digest does not fit.
    """
    shown = for_terminal(where, 1000)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise BuildDamaged(
            f"the manifest {shown} was cut short or is no JSON: the build cannot be trusted; generate it again",
            path=where,
        ) from None
    if not isinstance(body, dict) or "manifest_digest" not in body:
        raise BuildDamaged(f"{shown} is not a cachewatch manifest: the build cannot be trusted", path=where)
    if body.get("schema_version") != SCHEMA_VERSION:
        raise BuildDamaged(
            f"the manifest {shown} has schema_version {for_terminal(str(body.get('schema_version')), 20)}, and this "
            f"cachewatch reads {SCHEMA_VERSION}: use the version that wrote it",
            path=where,
        )
    recorded = body.pop("manifest_digest")
    if recorded != _self_digest(body):
        raise BuildDamaged(
            f"the manifest {shown} was changed after it was written (its own digest does not fit): "
            "the build cannot be trusted; generate it again, or restore the manifest",
            path=where,
        )
    try:
        return _from_body(body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BuildDamaged(
            f"the manifest {shown} has an entry that makes no sense ({for_terminal(str(error), 80)}): "
            "the build cannot be trusted",
            path=where,
        ) from None


def _body(manifest: Manifest) -> dict[str, Any]:
    totals = {"bytes": manifest.total_bytes, "files": manifest.total_files}
    return {"kind": "cachewatch-manifest", "schema_version": SCHEMA_VERSION, **asdict(manifest), "totals": totals}


def _self_digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _from_body(body: dict[str, Any]) -> Manifest:
    lists: dict[str, Any] = {name: tuple(body[name]) for name in ("argv", "warnings", "ignore")}
    lists["files"] = tuple(
        FileEntry(_path(e["path"]), int(e["size_bytes"]), _digest(e["digest"])) for e in body["files"]
    )
    lists["links"] = tuple(LinkEntry(_path(e["path"]), str(e["target"])) for e in body["links"])
    known = {one.name: body[one.name] for one in fields(Manifest)}
    manifest = Manifest(**known | lists)
    if manifest.digest_algorithm != DIGEST_ALGORITHM:
        raise ValueError(f"digest_algorithm {manifest.digest_algorithm!r}")
    return manifest


def _path(path: str) -> str:
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"path {path!r}")
    return path


def _digest(digest: str) -> str:
    if len(digest) != 64 or not _HEX.issuperset(digest):
        raise ValueError(f"digest {digest!r}")
    return digest
