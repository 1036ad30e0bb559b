"""Recorded runs: `rows` as values, `files` on disk, the `recorder` of a running watch, and their `replay`."""
