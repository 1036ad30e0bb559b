"""From a plan to the limit that is set: the plan's own number, or a reason to set none.

It decides; `tasks.capacity` sets the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_cachewatch.capacity.model.results import LimitPlan
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.errors import InputError


@dataclass(frozen=True)
class LimitDecision:
    """The value of a concurrency limit, the slots of each class, and how that came about."""

    name: str
    slots: int
    weights: dict[str, int]
    sentence: str


def decide_limit(limit_plan: LimitPlan, *, name: str | None = None, force: bool = False) -> LimitDecision:
    """Say which limit to set for a plan.

    Args:
        limit_plan: the plan.
        name: name of the concurrency limit; default: the storage's.
        force: set it even where nothing was measured, or where not even one job meets the policy.

    Returns:
        The decision; its slots are the plan's.

    Raises:
        InputError: without `force`, if the profile is not measured, or not even one job meets the policy.
    """
    name = name or limit_plan.storage
    weights = {entry.name: entry.occupy for entry in limit_plan.classes}
    shown = for_terminal(limit_plan.storage)
    if not limit_plan.feasible and not force:
        raise InputError(
            f"the plan for {shown} has no room for even one job within its policy, so no limit is set: "
            "relax the policy, or use force to set 1 at a time"
        )
    if limit_plan.measured_n is None and not force:
        raise InputError(
            f"{shown} was not measured (its profile is given, or a vendor's ceiling), so no limit is set: "
            "run cachewatch probe, or use force"
        )
    return LimitDecision(name, limit_plan.slots, weights, _sentence(name, limit_plan, weights))


def weights_variable(name: str) -> str:
    """Name the Prefect variable that holds the slots of each class of jobs on a storage.

    Args:
        name: name of the concurrency limit.

    Returns:
        A name of small letters, digits and dashes, as Prefect wants it.

    Example:
        >>> weights_variable("NFS a")
        'cachewatch-weights-nfs-a'
    """
    return f"cachewatch-weights-{slugify(name, most=236, other='storage')}"


def _sentence(name: str, limit_plan: LimitPlan, weights: dict[str, int]) -> str:
    shown, slots = for_terminal(name), limit_plan.slots
    if set(weights.values()) == {1}:
        return f"{slots} job{'' if slots == 1 else 's'} at once on {shown}: {limit_plan.reason}"
    each = ", ".join(f"{for_terminal(key)} takes {value}" for key, value in weights.items())
    first = f"{for_terminal(limit_plan.classes[0].name)} {limit_plan.limit} at once"
    return f"{slots} slots on {shown}, of which a job of {each}; {first}: {limit_plan.reason}"
