"""`cachewatch replay DIR`: the windows that would be learned from the traces of a job's runs, and what they would save."""

from __future__ import annotations

import json
import stat
from dataclasses import asdict
from pathlib import Path

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.trace.files import read_trace
from prefect_cachewatch.run.trace.rows import Trace
from prefect_cachewatch.run.trace.runs import LearnedReplay, try_learning
from prefect_cachewatch.watching.learned import LEAST_RUNS, least_window_s
from prefect_cachewatch.watching.stall import effective_poll_s

_SHOWN = 5
_MOST = 500


def show_runs(directory: Path, policy: StallPolicy, warmup_s: float | None, *, as_json: bool) -> None:
    """Print what is learned from the traces of a directory.

    Args:
        directory: holds traces of completed runs of one job, as `*.csv`.
        policy: the configured windows, and the poll.
        warmup_s: for traces of a server: its configured warm-up.
        as_json: print one JSON object.

    Raises:
        InputError: there is no trace of a completed run.
    """
    traces, left_out = _read(directory)
    found = try_learning(traces, policy, warmup_s=warmup_s)
    if as_json:
        print(json.dumps({**asdict(found), "saved_s": found.saved_s, "left_out": left_out}))
        return
    for line in _lines(directory, found, left_out, effective_poll_s(policy)):
        print(line)


def _read(directory: Path) -> tuple[list[Trace], dict[str, str]]:
    traces, left_out = list[Trace](), dict[str, str]()
    try:
        # In the order of time, by when each was ended; only the last ones are learned from.
        found = [(_ended_at(path), path.name, path) for path in directory.glob("*.csv")]
    except OSError as error:
        raise InputError(f"{for_terminal(str(directory))} cannot be read: {error.strerror}") from error
    left_out.update({name: "it is not a file" for at, name, _ in found if at is None})
    for _, _, path in sorted((at, name, path) for at, name, path in found if at is not None)[-_MOST:]:
        try:
            trace = read_trace(path)
        except InputError as error:
            left_out[path.name] = error.message
            continue
        if trace.ending in ("exited", "ready", "unknown"):
            traces.append(trace)
        else:
            left_out[path.name] = "cachewatch stopped it" if trace.ending == "stopped" else "the recording was cut off"
    if not traces:
        shown = for_terminal(str(directory))
        raise InputError(
            f"{shown} has no trace of a completed run{_of_these(left_out)}: record each run into it, with exec --record {shown}"
        )
    return _alike(traces, left_out), left_out


def _of_these(left_out: dict[str, str]) -> str:
    shown = "; ".join(
        f"{for_terminal(name, 100)}: {for_terminal(why, 200)}" for name, why in list(left_out.items())[:3]
    )
    return f" ({shown})" if shown else ""


def _ended_at(path: Path) -> float | None:
    """When a file was last written; None for a link to nothing, and for a pipe, which might never be read to its end."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) else None


def _alike(traces: list[Trace], left_out: dict[str, str]) -> list[Trace]:
    """Keep the traces that began with an empty cache, or those that did not, whichever are more: they learn apart."""
    warm = [trace for trace in traces if trace.rows[0].total_bytes > 0]
    cold = [trace for trace in traces if trace.rows[0].total_bytes <= 0]
    kept, others = (warm, cold) if len(warm) > len(cold) else (cold, warm)
    began = "an empty cache" if kept is warm else "files in the cache"
    left_out.update({trace.name: f"it began with {began}, and the others did not" for trace in others})
    return kept


def _lines(directory: Path, found: LearnedReplay, left_out: dict[str, str], poll_s: float) -> list[str]:
    lines = [f"{for_terminal(str(directory), 200)}: {found.runs} completed runs"]
    lines += [f"not used: {for_terminal(name, 100)}: {for_terminal(why, 300)}" for name, why in left_out.items()][
        :_SHOWN
    ]
    if len(left_out) > _SHOWN:
        lines.append(f"and {len(left_out) - _SHOWN} more")
    lines.append("")
    if not found.learned.windows:
        few = found.runs < LEAST_RUNS
        why = f"{LEAST_RUNS} runs are needed" if few else "the pauses ask for no shorter ones"
        return [*lines, _line("learned", f"nothing: the configured windows hold, since {why}")]
    for window in found.learned.windows:
        lines.append(_line(window.where, str(window)))
        longest = max(
            (name for name, each in found.silences.items() if each.of(window.phase) == window.longest_s), default=""
        )
        lines.append(_line("", f"longest pause {window.longest_s:.1f} s ({for_terminal(longest, 100)})"))
        if window.window_s <= least_window_s(poll_s):
            lines.append(_line("", f"no learned window is shorter at a poll of {format_duration(poll_s)} (--poll)"))
        lines.append(_line("", f"configured {format_duration(window.configured_s)}"))
    lines.append(
        _line("leave-one-out", f"{len(found.stopped)} of {found.runs} stopped by windows learned from the other ones")
    )
    lines += [_line("", for_terminal(name, 100)) for name in found.stopped[:_SHOWN]]
    if found.verdict_s is not None and found.configured_verdict_s is not None and found.saved_s is not None:
        lines.append(
            _line(
                "verdict",
                f"{format_duration(found.verdict_s)} after the last growth, "
                f"configured {format_duration(found.configured_verdict_s)}: saves {format_duration(found.saved_s)} a stall",
            )
        )
    return lines


def _line(name: str, text: str) -> str:
    return f"{name:<23}{text}".rstrip()
