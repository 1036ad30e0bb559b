"""Readers of file formats: whether a file's content can be what its format demands. `inspect` is the way in."""

from __future__ import annotations

from prefect_cachewatch.store.formats.inspection import Finding, inspect

__all__ = ["Finding", "inspect"]
