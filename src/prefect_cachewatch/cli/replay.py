"""`cachewatch replay`: what a stall policy would have done on a recorded run; without waiting, without Prefect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.cli.options.fields import DURATION
from prefect_cachewatch.cli.options.guard import RULES, poll_note, stall_from
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.engine.recording import Recording, read_recording
from prefect_cachewatch.engine.replay import Enough, Replay, find_enough, replay_recording
from prefect_cachewatch.watching.learned import refuse_learned
from prefect_cachewatch.watching.stall import effective_poll_s

_SHOWN = 10
_ENDINGS = {
    "exited": "the generator ended",
    "ready": "the server was ready",
    "stopped": "cachewatch stopped the generator",
    "cut_off": "the recording was cut off",
}


@click.command("replay", params=RULES.options())
@click.argument("recording", type=click.Path(path_type=Path), metavar="RUN.jsonl")
@click.option("--hang-at", type=DURATION, help="Freeze the generator so long after the start, for ever.")
@json_option()
def command(recording: Path, hang_at: float | None, as_json: bool, **options: Any) -> None:
    """Run the stall rule over a recorded run in simulated time, and say what it would have done.

    The exit status is 0 whatever the verdict. `exec --record` and `generate --record` write such files.
    """
    policy = stall_from(options)
    refuse_learned(policy)
    recorded = read_recording(recording)
    found, enough = replay_recording(recorded, policy, hang_at), find_enough(recorded, policy, hang_at)
    if as_json:
        print(json.dumps(_as_data(recorded, policy, found, enough)))
        return
    if (note := poll_note(policy)) is not None:
        say(note)
    if recorded.torn:
        say("the last line of the recording was cut off and is not used")
    frozen = "" if found.hang_at_s is None else f", frozen after {_time(found.hang_at_s)}"
    samples = format_count(len(recorded.samples), "sample")
    print(f"{for_terminal(recorded.name, 60)}: {samples} over {_time(recorded.end_s)}{frozen}")
    first_write, poll = format_duration(policy.first_write_within_s), format_duration(effective_poll_s(policy))
    print(f"window {format_duration(policy.stall_after_s)}, first write within {first_write}, poll {poll}\n")
    for name, text in _rows(recorded, found, enough):
        print(f"{name:<15}{text}")


def _as_data(recording: Recording, policy: StallPolicy, found: Replay, enough: Enough) -> dict[str, Any]:
    def seconds(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 3)
        if isinstance(value, dict):
            return {key: seconds(each) for key, each in value.items()}
        return [seconds(each) for each in value] if isinstance(value, list | tuple) else value

    about = {
        "name": recording.name,
        "samples": len(recording.samples),
        "duration_s": recording.end_s,
        "ending": recording.ending,
        "torn": recording.torn,
    }
    data = {
        "recording": about,
        "policy": policy.model_dump() | {"poll_s": effective_poll_s(policy)},
        **asdict(found),
        "after_last_growth_s": found.after_last_growth_s,
        "stopped_in_vain": found.grew_again_s is not None,
        "enough": asdict(enough),
    }
    result: dict[str, Any] = seconds(data)
    return result


def _rows(recording: Recording, found: Replay, enough: Enough) -> Iterator[tuple[str, str]]:
    at, since = _time(found.at_s), "the last growth" if found.last_growth_s is not None else "the start"
    if found.status == "ended":
        yield "verdict", f"no stall: {_ENDINGS[recording.ending]} after {at}"
    else:
        yield "verdict", f"stopped after {at}: {found.kind if found.status == 'stalled' else 'the time limit'}"
    if found.status != "ended" or found.after_last_growth_s >= 1:
        yield "", f"{_time(found.after_last_growth_s)} after {since}"
    if found.grew_again_s is not None:
        yield "", f"in vain: {_time(found.grew_again_s - found.at_s)} later it grew again"
    yield "written", format_bytes(found.bytes_written)
    if found.first_write_s is not None:
        yield "first growth", f"after {_time(found.first_write_s)}"
        yield "longest pause", _time(found.longest_pause_s)
    count = len(found.suspicions)
    yield "suspicions", f"{count}, {len(found.false_suspicions)} of them refuted by growth" if count else "none"
    for each in found.suspicions[:_SHOWN]:
        until = "" if each.cleared_at_s is None else f", until {_time(each.cleared_at_s)}"
        yield "", f"at {_time(each.at_s)}{until}: {each.message}"
    if count > _SHOWN:
        yield "", f"and {count - _SHOWN} more"
    windows = {"--stall-after": enough.stall_after_s, "--first-write-within": enough.first_write_within_s}
    told = [f"{option} {f'{s:.1f}'.removesuffix('.0')}s" for option, s in windows.items() if s is not None]
    yield "enough", " ".join(told) or "no window: the run shows no growth"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else format_duration(seconds)
