"""The sentences that say how a generation ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.watching.stall import Verdict

__all__ = ["describe_growth", "describe_nothing", "describe_stall"]


def describe_growth(bytes_present: int, files_present: int, last_path: str | None = None) -> str:
    """Say what there is: bytes, files, and the file that grew last.

    Example:
        >>> describe_growth(1159641170, 43, "/mnt/cache/layers.7.w2.tensorbin")
        '1.08 GiB in 43 files; last growth layers.7.w2.tensorbin'
    """
    files = "1 file" if files_present == 1 else f"{files_present:,} files"
    text = f"{format_bytes(bytes_present)} in {files}"
    if last_path:
        text += f"; last growth {for_terminal(last_path.rsplit('/', 1)[-1], 120)}"
    return text


def describe_nothing(paths: Sequence[str], bytes_written: int) -> str:
    """Say that a cache was empty and stayed so; how the work ended comes after it.

    Example:
        >>> describe_nothing(["/mnt/cache"], 0)
        'Tensor cache generation wrote nothing: /mnt/cache was empty before it and is empty now, and it ended'
    """
    where = ", ".join(for_terminal(path) for path in paths)
    wrote = "kept nothing of what it wrote" if bytes_written else "wrote nothing"
    return f"Tensor cache generation {wrote}: {where} was empty before it and is empty now, and it ended"


def describe_stall(
    verdict: Verdict,
    paths: Sequence[str],
    growth: str,
    *,
    problem: str | None = None,
    touched: bool = False,
    unready: str = "it was not ready",
) -> str:
    """Say what was seen when an attempt was stopped, in one sentence.

    Args:
        verdict: a final one.
        paths: the cache directories.
        growth: from `describe_growth`.
        problem: what the last failed scan said, for a directory that cannot be measured.
        touched: whether files changed in place during the pause, without growing.
        unready: for a server that was never ready, what was waited for in vain, as the end of a sentence.

    Returns:
        One line, harmless for a terminal.
    """
    where = ", ".join(for_terminal(path) for path in paths)
    window = format_duration(verdict.window_s)
    tail = f" in {where} ({growth})."
    if verdict.status == "deadline_exceeded":
        return f"Tensor cache generation exceeded its time limit and was stopped{tail}"
    if verdict.kind == "never_started":
        return f"Tensor cache generation never started: no byte written within {window}{tail}"
    if verdict.kind == "never_ready":
        pause = format_duration(round(verdict.pause_s, 1))
        return f"Tensor cache generation never became ready: {pause} without a byte written, and {unready};{tail}"
    if verdict.kind == "churning":
        return f"Tensor cache generation stalled: files are written and deleted, but nothing is kept{tail}"
    if verdict.kind == "cache_directory_missing":
        return (
            f"Tensor cache generation stalled: cache directory missing for {format_duration(verdict.pause_s)}: {where}."
        )
    if verdict.kind == "filesystem_unresponsive":
        why = f" ({for_terminal(problem)})" if problem else ""
        return (
            f"Tensor cache generation stalled: {where} could not be measured for "
            f"{format_duration(verdict.pause_s)}{why}."
        )
    hint = " Files change in place without growing: consider progress=any." if touched else ""
    return f"Tensor cache generation stalled: no disk write activity detected for {window}{tail}{hint}"
