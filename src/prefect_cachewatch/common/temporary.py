"""Name patterns of files that are still being written: suspect in a report, and never published. Pure."""

from __future__ import annotations

__all__ = ["TEMPORARY"]

TEMPORARY = ("*.tmp", "*.tmp.*", "*.partial", "*.incomplete", "*.part", "*.crdownload")
