"""Every bad end of every flow, and the next step after it: the list that notifications are built from. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_cachewatch.watching.outcomes import ENDINGS

#: Name of the flow `generate_cache` at Prefect.
GENERATION_FLOW = "generate-cache"


@dataclass(frozen=True)
class BadEnd:
    """A state in which a run of a flow ends and that needs a person; `type` is Prefect's type of that state."""

    flow: str
    state: str
    type: str = "FAILED"


_FROM_PREFECT = ("Failed", "TimedOut")
_GENERATION = tuple(dict.fromkeys(ending.state for ending in ENDINGS if ending.failure and ending.state != "Crashed"))
_STATES = {
    GENERATION_FLOW: _GENERATION,
    "deploy-cache": (*_GENERATION, "ActivationFailed", "Unhealthy"),
    "generate-fleet": ("Refused", "PartlyFailed", "FleetFailed"),
    "follow-up-stall": ("Refused",),
    "plan-capacity": ("Refused",),
    "check-capacity": ("Refused",),
}

BAD_ENDS = tuple(
    end
    for flow, states in _STATES.items()
    for end in (*(BadEnd(flow, state) for state in (*states, *_FROM_PREFECT)), BadEnd(flow, "Crashed", "CRASHED"))
)

_OWN_STEPS = {
    "Refused": "Correct what the sentence names and start the run again: nothing was started.",
    "Stalled": "Open the run: its artifact has the cause, the files and what to do.",
    "ActivationFailed": "The build is published and not current: mend what the sentence names, then cachewatch store activate.",
    "Unhealthy": "Look at the health check's output in the run's log; the message says which build is current now.",
    "PartlyFailed": "Open the run: its table has each job with its cause. Start the fleet again; whole caches are skipped.",
    "FleetFailed": "Open the run: no job made its cache, look for one cause of all. Then start the fleet again.",
    "Failed": "The flow itself failed: read the end of the run's log.",
    "TimedOut": "The flow's own time limit ended it: compare the limit with the time that the job needs.",
    "Late": "No worker took the run: see that one polls its pool (prefect work-pool inspect POOL), and start one.",
}

#: What a person does first after a state, where the run has not left a step of its own.
NEXT_STEPS = {
    ending.state: ending.advice for ending in reversed(ENDINGS) if ending.failure and ending.advice
} | _OWN_STEPS
