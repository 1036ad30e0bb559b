"""The planner's tasks: measure a storage's profile, set a concurrency limit; the rules are the engine's.

Generations import `storage_slot` and `store_run_record` from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.logging import get_run_logger
from prefect.variables import Variable

from prefect_cachewatch.capacity.model.profile import StorageProfile
from prefect_cachewatch.capacity.probe.report import ProbeReport, ProbeSettings, ProbeStep
from prefect_cachewatch.capacity.probe.run import run_probe
from prefect_cachewatch.capacity.rollout import LimitDecision, weights_variable
from prefect_cachewatch.common.files import is_special
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.tasks.prefect_api.limits import read_limit, set_limit


@dataclass(frozen=True)
class LimitChange:
    """A change that was made or would be made: old and new value, and a sentence about it."""

    name: str
    before: int | None
    after: int
    weights_before: dict[str, int] | None
    weights: dict[str, int]
    applied: bool
    sentence: str


@task(name="set-storage-limit", cache_policy=NO_CACHE)
def set_storage_limit(decision: LimitDecision, apply: bool) -> LimitChange:
    """Set a storage's global concurrency limit and the weights of its classes, or say what would be set.

    Args:
        decision: the result of `decide_limit`.
        apply: False only looks.

    Returns:
        The old and the new value, and a sentence about the change.
    """
    logger = get_run_logger()
    variable = weights_variable(decision.name)
    with get_client(sync_client=True) as client:
        found = read_limit(client, decision.name)
        before = found.limit if found else None
        stored = Variable.get(variable, default=None)
        weights_before = stored.get("weights") if isinstance(stored, dict) else None
        if apply:
            if found is None:
                client.create_global_concurrency_limit(
                    GlobalConcurrencyLimitCreate(name=decision.name, limit=decision.slots)
                )
            elif before != decision.slots:
                set_limit(client, found, decision.slots)
            Variable.set(variable, {"slots": decision.slots, "weights": decision.weights}, overwrite=True)
    shown = for_terminal(decision.name)
    was = "no limit" if before is None else str(before)
    if before == decision.slots and weights_before == decision.weights:
        sentence = f"The limit of {shown} stays at {before}"
    else:
        done = "was changed" if apply else "would change"
        sentence = f"The limit of {shown} {done} from {was} to {decision.slots}"
        if weights_before != decision.weights:
            sentence += f", and its weights from {_weights(weights_before)} to {_weights(decision.weights)}"
    sentence += f" ({decision.sentence})"
    if not apply:
        sentence += "; this is a dry run: apply=True sets it"
    if found is not None and not found.active:
        sentence += "; the limit is switched off, and stays so until prefect gcl enable"
    logger.info(sentence)
    return LimitChange(
        name=decision.name,
        before=before,
        after=decision.slots,
        weights_before=weights_before,
        weights=decision.weights,
        applied=apply,
        sentence=sentence,
    )


@task(name="probe-storage", cache_policy=NO_CACHE)
def measure_storage(
    directory: Path, name: str, settings: ProbeSettings, profile_path: Path | None
) -> tuple[ProbeReport, StorageProfile]:
    """Probe a storage, and write its profile to a file if one is named.

    Args:
        directory: the directory to probe, on the worker's machine.
        name: name of the storage.
        settings: caps of the probe.
        profile_path: file for the profile; while the probe runs, `*.partial.yaml` beside it.

    Returns:
        The report and the profile.
    """
    from prefect_cachewatch.capacity.probe.profile import (  # noqa: PLC0415 - yaml, imported when it is needed
        profile_from_report,
        profile_yaml,
        write_atomically,
    )

    logger = get_run_logger()
    partial = None
    if profile_path is not None and not is_special(profile_path):
        partial = profile_path.with_name(f"{profile_path.stem}.partial.yaml")
    said = [""]

    def progress(step: ProbeStep) -> None:
        what = step.text.partition(",")[0]
        if what != said[0] and what.startswith("n ="):
            said[0] = what
            logger.info(
                "Probing %s: %s (%d of %d runs done)",
                for_terminal(str(directory)),
                what,
                step.done,
                step.total,
            )

    def save(report: ProbeReport) -> None:
        if partial is not None:
            write_atomically(partial, profile_yaml(profile_from_report(report, name)))

    report = run_probe(directory, settings, on_progress=progress, on_level=save)
    profile = profile_from_report(report, name)
    if profile_path is not None:
        write_atomically(profile_path, profile_yaml(profile))
        if partial is not None:
            partial.unlink(missing_ok=True)
        logger.info("Profile of %s written to %s", for_terminal(name), for_terminal(str(profile_path)))
    for note in profile.notes:
        logger.warning("Probe of %s: %s", for_terminal(name), note)
    return report, profile


def _weights(weights: Any) -> str:
    if not isinstance(weights, dict) or not weights:
        return "none"
    return ", ".join(f"{for_terminal(str(name))} {slots}" for name, slots in sorted(weights.items()))
