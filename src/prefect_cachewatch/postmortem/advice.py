"""What a person should do next after each outcome. Pure."""

from __future__ import annotations

__all__ = ["next_step"]

_BY_KIND = {
    "no_growth": "Look at the last lines of the log and at the file that grew last. If the generator pauses this long "
    "in normal work, raise stall_after_s above its longest pause.",
    "never_started": "See whether the generator loads its model or waits for a device or lock. If it needs longer "
    "before its first byte, raise first_write_within_s.",
    "never_ready": "The cache was written and the server did not come up: read the end of its log, and ask its address "
    "by hand. If its warm-up needs longer, raise warmup_within_s.",
    "churning": "The generator writes temporary files and deletes them: see whether it retries a step that fails.",
    "filesystem_unresponsive": "Check the mount of the cache directory and its server; nothing can be said about the "
    "cache until it answers.",
    "cache_directory_missing": "Find out who removed the cache directory; the generator's files went with it.",
}
_BY_OUTCOME = {
    "nothing_written": "Name the directory that the command writes to (--cache-dir, cache_dirs). Where an empty cache is "
    "right, allow it with --allow-empty (allow_empty).",
    "failed": "Read the last lines of the generator's log; its exit code is its own.",
    "deadline_exceeded": "Compare bytes written with what was expected: raise max_duration_s if it was merely slow.",
}


def next_step(outcome: str, kind: str | None) -> str:
    """Say what to do next.

    Args:
        outcome: of the report.
        kind: of the stall, or None.

    Returns:
        One or two sentences; empty for an outcome that needs nobody.

    Example:
        >>> next_step("completed", None)
        ''
    """
    return _BY_KIND.get(kind or "", "") or _BY_OUTCOME.get(outcome, "")
