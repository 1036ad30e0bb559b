"""What each generator really did, from its own notes, against the state that its flow run ended in; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

# From the last byte to the decision a run may be seen as silent; not less, by more than the clocks' grain.
_CLOCK_S = 0.5


@dataclass(frozen=True)
class Truth:
    """What a generator noted of itself."""

    starts: int
    writes: int
    last_write_s: float | None
    began_s: float | None
    silent_s: float | None
    ended_s: float | None
    code: int | None


@dataclass(frozen=True)
class Ended:
    """How Prefect says that a run ended."""

    type: str
    name: str
    pending_s: float | None  # wall time at which a worker took it
    ended_s: float | None


@dataclass(frozen=True)
class Interruptions:
    """What the test did to the system, in wall time."""

    server_away: tuple[tuple[float, float], ...] = ()
    workers_killed_s: tuple[float, ...] = ()


def read_truth(text: str) -> Truth:
    """Read a generator's notes; a last line cut short by a SIGKILL is left out.

    Args:
        text: content of the file.

    Returns:
        What it did.
    """
    events = []
    for line in text.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    at = {kind: [e["at_s"] for e in events if e["event"] == kind] for kind in ("begin", "write", "silent", "end")}
    codes = [e["code"] for e in events if e["event"] == "end"]
    return Truth(
        starts=len(at["begin"]),
        writes=len(at["write"]),
        began_s=at["begin"][0] if at["begin"] else None,
        last_write_s=at["write"][-1] if at["write"] else None,
        silent_s=at["silent"][-1] if at["silent"] else None,
        ended_s=at["end"][-1] if at["end"] else None,
        code=codes[-1] if codes else None,
    )


def judge(
    truth: Truth, ended: Ended, window_s: float, interruptions: Interruptions, flow_killed: bool = False
) -> tuple[str, str | None]:
    """Hold a run's state against what its generator did.

    Args:
        truth: the generator's notes.
        ended: the run's final state.
        window_s: the run's stall window.
        interruptions: what was done to the server and the workers meanwhile.
        flow_killed: the test killed this run's flow process.

    Returns:
        What really happened, in a word, and None, or the sentence that says how the state is untrue.
    """
    said = f"{ended.type}/{ended.name}"
    if truth.starts > 1:
        return "started twice", f"its generator was started {truth.starts} times for one attempt; the state is {said}"
    if truth.starts == 0:
        if ended.type == "CRASHED" and _excused(ended, interruptions):
            return "never begun", None
        return "never begun", f"its generator was never started, nothing explains it, and the state is {said}"
    if flow_killed:
        return "flow killed", _unless(said == "CRASHED/Crashed", said, "its flow process was killed")
    if truth.code == 0:
        return "finished", _unless(said == "COMPLETED/Completed", said, "its generator ended with exit code 0")
    if truth.code is not None:
        return "failed", _unless(said == "FAILED/GeneratorFailed", said, f"its generator ended with {truth.code}")
    if truth.silent_s is not None:
        return "fell silent", _unless(said == "FAILED/Stalled", said, "its generator fell silent")
    # Neither silent nor ended by its own account: somebody stopped it as it worked. Right only if it had had no turn
    # of the processor for a whole window.
    last_s = truth.last_write_s or truth.began_s or 0.0
    starved = ended.ended_s is not None and ended.ended_s - last_s >= window_s - _CLOCK_S
    what = "its generator was at work"
    return "starved" if starved else "at work", _unless(starved and said == "FAILED/Stalled", said, what)


def _excused(ended: Ended, interruptions: Interruptions) -> bool:
    """Whether the server was away, or a worker died, between a worker's taking the run and its end."""
    if ended.pending_s is None or ended.ended_s is None:
        return False
    away = any(begin <= ended.ended_s and end >= ended.pending_s for begin, end in interruptions.server_away)
    return away or any(ended.pending_s <= at <= ended.ended_s for at in interruptions.workers_killed_s)


def _unless(right: bool, said: str, what: str) -> str | None:
    return None if right else f"{what}, and the state is {said}"


def modes(runs: int, stalling: float, failing: float) -> Sequence[str]:
    """Say what each run's generator is to do, the kinds spread evenly over the order.

    Args:
        runs: how many.
        stalling: share that falls silent, in each of the three ways in turn.
        failing: share that fails.

    Returns:
        One mode a run.

    Example:
        >>> list(modes(10, 0.2, 0.1))
        ['finish', 'finish', 'sleep', 'finish', 'finish', 'fail', 'finish', 'stopped', 'finish', 'finish']
    """
    silent = ("sleep", "stopped", "daemon")
    stalls, fails = round(runs * stalling), round(runs * failing)
    found = ["finish"] * runs
    for rank in range(stalls):
        found[int((rank + 0.5) * runs / stalls)] = silent[rank % len(silent)]
    for rank in range(fails):
        place = int((rank + 0.5) * runs / fails)
        while found[place % runs] != "finish":
            place += 1
        found[place % runs] = "fail"
    return found
