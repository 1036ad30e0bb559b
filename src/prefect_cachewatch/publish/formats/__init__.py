"""Readers of file formats: whether a file's content can be what its format demands. `inspect` and `examine` are the ways in."""

from __future__ import annotations

from prefect_cachewatch.publish.formats.inspection import Finding, examine, inspect

__all__ = ["Finding", "examine", "inspect"]
