"""What the next purchase, or a change of the files, would do to the limit.

Each change is planned like the original; nothing is bought.
"""

from __future__ import annotations

import dataclasses

from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.limits import ClassSearch
from prefect_cachewatch.capacity.model.results import Purchase
from prefect_cachewatch.common.units import format_duration

__all__ = ["batch_at", "purchases"]


def purchases(scenario: Scenario, c: int, limit: int, batch_s: float) -> tuple[Purchase, ...]:
    """The changes that make sense for a class, each with the limit and the batch it would give.

    Args:
        scenario: what was planned for.
        c: index of the class.
        limit: its limit now.
        batch_s: seconds of its batch at that limit now.

    A slowdown is measured by what a job took alone before the change, so that the same wall clock
    is accepted after it.

    Returns:
        Changes in a fixed order: link, storage, compression, one file, isolation.
    """
    demands = demands_of(scenario, 1)
    alone = {w.name: w.think_s + seconds for w, seconds in zip(scenario.classes, demands.alone_s, strict=True)}
    scenario = dataclasses.replace(scenario, accepted_alone_s=alone)
    found = []
    for change, changed, at in _variants(scenario, c):
        search = ClassSearch(changed, at)
        most = max(1, search.find().limit)
        batch = batch_at(search, most)
        found.append(Purchase(change, most, batch, _say(limit, batch_s, most, batch)))
    return tuple(found)


def batch_at(search: ClassSearch, limit: int) -> float:
    """Seconds of a class's batch under a limit: never more jobs at once than the batch has.

    Args:
        search: the class's search.
        limit: the limit.

    Returns:
        Seconds.
    """
    jobs = search.scenario.classes[search.c].jobs
    return search.mine(min(limit, jobs if jobs > 1 else limit, search.top)).batch_s


def _variants(scenario: Scenario, c: int) -> list[tuple[str, Scenario, int]]:
    workload = scenario.classes[c]
    variants: list[tuple[str, Scenario, int]] = []
    if scenario.link.bytes_per_s is not None:
        variants.append(("2 x link", dataclasses.replace(scenario, link_factor=2.0), c))
    variants.append(("2 x storage", dataclasses.replace(scenario, storage_factor=2.0), c))
    if workload.codec is None:
        variants += [
            (f"compression ({codec.name}, {codec.ratio:.3g} x)", _with(scenario, c, codec=codec), c)
            for codec in scenario.storage.codecs
        ]
    else:
        variants.append((f"without {workload.codec.name}", _with(scenario, c, codec=None), c))
    if workload.files_per_burst > 1:
        variants.append(("one serialized file", _with(scenario, c, files_per_burst=1), c))
    if len(scenario.classes) > 1:
        variants.append(("isolation", dataclasses.replace(scenario, classes=(workload,)), 0))
    return variants


def _with(scenario: Scenario, c: int, **update: object) -> Scenario:
    changed = scenario.classes[c].model_copy(update=update)
    classes = (*scenario.classes[:c], changed, *scenario.classes[c + 1 :])
    return dataclasses.replace(scenario, classes=classes)


def _say(limit: int, batch_s: float, most: int, batch: float) -> str:
    if most == limit and abs(batch / batch_s - 1) < 0.02:
        return "changes nothing"
    jobs = f"{limit} -> {most} at once" if most != limit else f"{limit} at once as before"
    return f"{jobs}, batch {format_duration(batch_s)} -> {format_duration(batch)}"
