"""`cachewatch replay`: what a stall policy would have done on a recorded run; without waiting, without Prefect."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.cli.options.fields import DURATION, SIZE
from prefect_cachewatch.cli.options.guard import RULES, poll_note, stall_from
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.engine.recording import Recording, read_recording
from prefect_cachewatch.engine.replay import Enough, Replay, find_enough, replay_recording
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.watching.learned import refuse_learned
from prefect_cachewatch.watching.servers.warmup import Warmup
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
@click.option(
    "--warmup-within",
    "warmup_within_s",
    type=DURATION,
    help="The run is a server's: silence after its last byte is its warm-up, so long.",
)
@click.option("--expect", "expected_bytes", type=SIZE, help="Size of the finished cache, for the rule of warm-up.")
@json_option()
def command(recording: Path, hang_at: float | None, expected_bytes: int | None, as_json: bool, **options: Any) -> None:
    """Run the stall rule over a recorded run in simulated time, and say what it would have done.

    The exit status is 0 whatever the verdict. `exec --record` and `generate --record` write such files.
    """
    policy = stall_from(options)
    refuse_learned(policy)
    recorded = read_recording(recording)
    found = replay_recording(
        recorded, policy, hang_at, _warmup(policy, options["warmup_within_s"], expected_bytes, recorded)
    )
    enough = find_enough(recorded, policy, hang_at)
    if as_json:
        print(json.dumps(_as_data(recorded, policy, found, enough)))
        return
    if (note := poll_note(policy)) is not None:
        say(note)
    if recorded.torn:
        say("the last line of the recording was cut off and is not used")
    for line in _lines(recorded, policy, found, enough):
        print(line)


def _warmup(
    policy: StallPolicy, asked: float | None, expected_bytes: int | None, recording: Recording
) -> Warmup | None:
    if asked is None:
        if expected_bytes is not None:
            raise InputError("--expect is for the rule of warm-up: give --warmup-within too, if the run is a server's")
        return None
    present = recording.samples[0].bytes_present
    return Warmup(policy.warmup_within_s, expected_bytes=expected_bytes, present_at_start=present)


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


def _lines(recording: Recording, policy: StallPolicy, found: Replay, enough: Enough) -> list[str]:
    frozen = "" if found.hang_at_s is None else f", frozen after {_time(found.hang_at_s)}"
    lines = [
        f"{for_terminal(recording.name, 60)}: {format_count(len(recording.samples), 'sample')} over {_time(recording.end_s)}{frozen}",
        f"window {format_duration(policy.stall_after_s)}, first write within "
        f"{format_duration(policy.first_write_within_s)}, poll {format_duration(effective_poll_s(policy))}",
        "",
        *_verdict(recording, found),
        *(_line("warm-up", f"after {_time(c.at_s)}: {c.why}") for c in found.phases if c.phase == "warm_up"),
        _line("written", format_bytes(found.bytes_written)),
    ]
    if found.first_write_s is not None:
        lines.append(_line("first growth", f"after {_time(found.first_write_s)}"))
        lines.append(_line("longest pause", _time(found.longest_pause_s)))
    lines += _suspicions(found)
    windows = [
        f"{option} {f'{value:.1f}'.removesuffix('.0')}s"
        for option, value in (
            ("--stall-after", enough.stall_after_s),
            ("--first-write-within", enough.first_write_within_s),
        )
        if value is not None
    ]
    lines.append(_line("enough", " ".join(windows) or "no window: the run shows no growth"))
    return lines


def _verdict(recording: Recording, found: Replay) -> list[str]:
    at = _time(found.at_s)
    since = "the last growth" if found.last_growth_s is not None else "the start"
    if found.status == "ended":
        lines = [_line("verdict", f"no stall: {_ENDINGS[recording.ending]} after {at}")]
        if found.after_last_growth_s >= 1:
            lines.append(_line("", f"{_time(found.after_last_growth_s)} after {since}"))
        return lines
    name = found.kind if found.status == "stalled" else "the time limit"
    lines = [
        _line("verdict", f"stopped after {at}: {name}"),
        _line("", f"{_time(found.after_last_growth_s)} after {since}"),
    ]
    if found.grew_again_s is not None:
        later = _time(found.grew_again_s - found.at_s)
        lines.append(_line("", f"in vain: {later} later it grew again"))
    return lines


def _suspicions(found: Replay) -> list[str]:
    if not found.suspicions:
        return [_line("suspicions", "none")]
    count, refuted = len(found.suspicions), len(found.false_suspicions)
    lines = [_line("suspicions", f"{count}, {refuted} of them refuted by growth")]
    for each in found.suspicions[:_SHOWN]:
        end = "" if each.cleared_at_s is None else f", until {_time(each.cleared_at_s)}"
        lines.append(_line("", f"at {_time(each.at_s)}{end}"))
        lines.append(_line("", f"  {each.message}"))
    if count > _SHOWN:
        lines.append(_line("", f"and {count - _SHOWN} more"))
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else format_duration(seconds)


def _line(name: str, text: str) -> str:
    return f"{name:<15}{text}".rstrip()
