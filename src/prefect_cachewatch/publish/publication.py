"""What became of a build, as the report says it; apart from the store, which a run without one need not load."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Publication"]


@dataclass(frozen=True)
class Publication:
    """What became of a build; the report has it as `publication`."""

    #: published, cached, verification_failed, or unfinished.
    status: str
    #: staged or in_place.
    mode: str
    #: The digest of what the cache depends on.
    key: str
    build_id: str
    #: The build's directory; for one in quarantine where it was written.
    path: str
    #: Its manifest; null where none was written.
    manifest: str | None = None
    #: Where a refused build lies.
    quarantine: str | None = None
    #: What consumers open: the link, or the cache directory in place; null where it does not lead to this build.
    current: str | None = None
    #: The build that was current before.
    previous: str | None = None
    total_bytes: int = 0
    total_files: int = 0
    #: Category, severity and message of everything the checks found.
    findings: tuple[dict[str, str], ...] = ()
