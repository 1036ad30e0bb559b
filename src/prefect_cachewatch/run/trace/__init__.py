"""Recorded runs: `rows` as values, `files` on disk, the `recorder` of a running watch, and their `replay`."""

__all__ = ["files", "recorder", "replay", "rows"]
