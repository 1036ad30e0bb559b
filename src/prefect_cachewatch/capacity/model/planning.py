"""The plan: how many jobs at once, why this number, and what would change it.

Joins demands, limits and slots into a `LimitPlan`; it measures nothing and changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from prefect_cachewatch.capacity.model.convolution import MAX_STATES
from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.limits import ClassSearch, Found
from prefect_cachewatch.capacity.model.prediction import predict
from prefect_cachewatch.capacity.model.profile import LinkProfile, StorageProfile
from prefect_cachewatch.capacity.model.queueing import stall_bound
from prefect_cachewatch.capacity.model.recommendation import Recommendation, edge_of, recommend, recommend_slots
from prefect_cachewatch.capacity.model.results import ClassLimit, ClassPrediction, LimitPlan, Purchase
from prefect_cachewatch.capacity.model.slots import choose_slots
from prefect_cachewatch.capacity.model.wording import list_assumptions, say_answer, say_bottleneck
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import InputError

_ROWS = 16
_MOST_CLASSES = 32


def plan(
    storage: StorageProfile,
    link: LinkProfile,
    workloads: Sequence[WorkloadClass],
    policy: Policy | None = None,
) -> LimitPlan:
    """How many jobs may run at once before each is so slow that it looks stalled.

    Args:
        storage: the storage, measured or as a vendor gives it.
        link: the network between jobs and storage.
        workloads: classes of jobs; those with `running` always run, of the others the plan says
            how many may. The first of those is the one that the answer is about.
        policy: stall window, accepted slowdown, derate and band; None: the defaults.

    Returns:
        The limit with its band and reason, slots for a shared limit, predictions over n.

    Raises:
        InputError: if the parts do not fit together, or no class asks for a limit.

    Source: Denning and Buzen 1978 for the bounds, Baskett et al. 1975 for the exact means,
        Gunther 2007 for the peak.

    Example:
        >>> from prefect_cachewatch.capacity import ServiceCurve
        >>> disk = ServiceCurve(per_stream_bytes_per_s="125MiB/s", aggregate_bytes_per_s="125MiB/s")
        >>> answer = plan(
        ...     StorageProfile(name="gp3", sequential_write=disk),
        ...     LinkProfile(),
        ...     [WorkloadClass(name="caches", burst_bytes="2GB", think_s=10)],
        ...     Policy(derate=0, p99_factor=1.5, max_slowdown=20),
        ... )
        >>> answer.most, answer.binding
        (13, 'stall')
        >>> answer.limit, answer.reason
        (4, 'the smallest number within 2 % of the highest throughput')
    """
    policy = policy or Policy()
    classes = tuple(workloads)
    _check_classes(classes)
    asked = [c for c, workload in enumerate(classes) if workload.running is None]
    whole = Scenario(storage, link, classes, policy)
    searches = {c: ClassSearch(*_isolated(whole, c)) for c in asked}
    found = {c: search.find() for c, search in searches.items()}
    chosen = {c: recommend(searches[c], found[c]) for c in asked}
    edges = {c: _edges(whole, c, found[c].most) for c in asked}
    first = asked[0]
    search, answer = searches[first], found[first]
    slots, occupy, checked, fewest = _share_slots(whole, searches, [chosen[c] for c in asked])
    limit, reason = slots // occupy[0], chosen[first].reason
    if limit != chosen[first].n:
        together = f"which {len(asked)} classes have together{', ' * bool(fewest)}{fewest}"
        reason = f"its share of {slots} slots, {together}; alone {chosen[first].n} would be recommended"
    low, high = edges[first]
    shown = search.c
    where, dmax = search.demands.largest_demand_s(shown)
    edge, there = edge_of(search, search.top), edge_of(search, limit)
    slower, doubled = search.slower_from(1.1), search.slower_from(2.0)
    notes = (*search.demands.notes, *_beyond_measured(search, answer), checked)
    return LimitPlan(
        storage=storage.name,
        link=link.name,
        answer=say_answer(search, answer, (low, high), (slower, doubled), limit, reason),
        limit=limit,
        reason=reason,
        most=max(1, answer.most),
        low=low,
        high=high,
        binding=answer.binding,
        slower_n=slower,
        doubled_n=doubled,
        slots=slots,
        classes=tuple(
            ClassLimit(
                name=classes[c].name,
                limit=chosen[c].n,
                most=max(1, found[c].most),
                low=edges[c][0],
                high=edges[c][1],
                occupy=weight,
                binding=found[c].binding,
                rules=found[c].rules,
            )
            for c, weight in zip(asked, occupy, strict=True)
        ),
        measured_n=search.demands.measured_n,
        derate=policy.derate,
        band=policy.band,
        knee_n=edge.knee_n,
        bounds={
            **dataclasses.asdict(edge),
            "population": limit,
            "throughput_max_per_s": there.throughput_max_per_s,
            "residence_min_s": there.residence_min_s,
            "stall_n": _stall_bound(classes[first], policy, dmax),
        },
        table=_table(search, limit, max(1, answer.most)),
        mix=_mix(whole, asked, slots, occupy) if len(asked) > 1 and not policy.isolated else (),
        bottleneck=say_bottleneck(search, limit, where),
        what_if=_purchases(search.scenario, shown, chosen[first].n, search.mine(chosen[first].n).batch_s),
        assumptions=list_assumptions(storage, link, classes, policy, notes),
        feasible=answer.most > 0,
        small_files=_small_files(search.scenario, shown),
        kinds={workload.name: workload.kind for workload in classes},
    )


def _check_classes(classes: tuple[WorkloadClass, ...]) -> None:
    if not classes:
        raise InputError("workloads is empty: give at least one class of jobs")
    if len(classes) > _MOST_CLASSES:
        raise InputError(
            f"workloads has {len(classes)} classes, and up to {_MOST_CLASSES} are planned: merge classes that are alike"
        )
    names = [workload.name for workload in classes]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"workloads has {name!r} twice: give each class a name of its own")
    if all(workload.running is not None for workload in classes):
        raise InputError("every class says how many always run: leave out `running` of the one whose limit is wanted")


def _share_slots(
    whole: Scenario, searches: Mapping[int, ClassSearch], chosen: Sequence[Recommendation]
) -> tuple[int, tuple[int, ...], str, str]:
    """Slots of the shared limit and of each class, what was checked, why so few; no more jobs than were measured."""
    if whole.policy.isolated or len(searches) == 1:
        checked = "each kind has a cluster of its own" if whole.policy.isolated else ""
        return chosen[0].n, (1,) * len(searches), checked, ""
    alone = [each.n for each in chosen]
    # A class alone may need few because its batch is small: what all need is judged by what the rules admit of each.
    wide = [each.most for each in chosen] if whole.policy.aim == "batch" else alone
    slots, together, checked = choose_slots(whole, list(searches), wide)
    if not together.possible:
        slots, together, checked = choose_slots(whole, list(searches), alone)
    room = next(iter(searches.values())).measured_room
    if room is not None and not whole.policy.beyond_measured:
        slots = max(*together.occupy, min(slots, room * min(together.occupy)))
    slots, fewest = recommend_slots(searches, together, slots)
    return slots, tuple(together.occupy), checked, fewest


def _beyond_measured(search: ClassSearch, found: Found) -> tuple[str, ...]:
    measured, peak = search.demands.measured_n, search.demands.peak_n
    if measured is None or found.most <= measured:
        return ()
    how = "without a decline, since none was measured" if peak is None else "by the decline that was measured"
    return (f"nothing was measured beyond n = {measured}: what is said of more is extrapolated, {how}",)


def _isolated(whole: Scenario, c: int) -> tuple[Scenario, int]:
    """The scenario that a class is in: alone with its kind where clusters are isolated."""
    if not whole.policy.isolated:
        return whole, c
    kept = tuple(w for w in whole.classes if w.kind == whole.classes[c].kind)
    return dataclasses.replace(whole, classes=kept), kept.index(whole.classes[c])


def _stall_bound(workload: WorkloadClass, policy: Policy, dmax: float) -> float:
    """The asymptote's answer for a class; infinite where silence does not stop it."""
    if not workload.is_watched or workload.bytes_appear == "while_moving":
        return math.inf
    k = policy.p99_over_mean(workload.burst_cv) / workload.files_per_burst
    return float(stall_bound(policy.stall_window_s, workload.think_s, dmax, k))


def _edges(whole: Scenario, c: int, most: int) -> tuple[int, int]:
    """The most with all rates lower and higher by the band; a deadline missed at any number bounds none of them."""
    scenario, c = _isolated(whole, c)
    band = scenario.policy.band
    slow = dataclasses.replace(scenario, rate_factor=1 - band)
    fast = dataclasses.replace(scenario, rate_factor=1 + band, side="high")
    low, high = (ClassSearch(side, c).find().most for side in (slow, fast))
    return max(1, min(low, most)), max(1, high, most)


def _table(search: ClassSearch, limit: int, most: int) -> tuple[tuple[ClassPrediction, ...], ...]:
    top = min(search.top, max(most + 3, round(1.4 * most)))
    if top <= _ROWS:
        return rows_at(search, range(1, top + 1))
    even = {max(1, round(top * i / (_ROWS - 3))) for i in range(1, _ROWS - 2)}
    return rows_at(search, sorted(even | {1, limit, most, min(top, most + 1)}))


def rows_at(search: ClassSearch, numbers: Iterable[int]) -> tuple[tuple[ClassPrediction, ...], ...]:
    """Predictions with their band at given numbers of jobs of the class searched for.

    Args:
        search: the class, with what runs beside it.
        numbers: jobs at once, none above `search.top`.

    Returns:
        A row for each number, with a prediction of each class in it.
    """
    band = search.scenario.policy.band
    slow, fast = _at_rates(search, 1 - band), _at_rates(search, 1 + band)
    return tuple(
        tuple(
            dataclasses.replace(entry, burst_low_s=below.burst_s, burst_high_s=above.burst_s)
            for entry, below, above in zip(search.at(n), fast(search.counts(n)), slow(search.counts(n)), strict=True)
        )
        for n in numbers
    )


def _at_rates(search: ClassSearch, factor: float) -> Callable[[list[int]], tuple[ClassPrediction, ...]]:
    scenario = dataclasses.replace(search.scenario, rate_factor=factor)
    most = search.counts(search.top)
    demands = demands_of(scenario, sum(most))
    network = demands.network(most)
    return lambda counts: predict(demands, network, counts)[0]


def _mix(whole: Scenario, asked: Sequence[int], slots: int, occupy: Sequence[int]) -> tuple[ClassPrediction, ...]:
    """Predictions with the slots shared out evenly among the classes that ask."""
    counts = [workload.running or 0 for workload in whole.classes]
    for c, weight in zip(asked, occupy, strict=True):
        counts[c] = max(1, slots // len(asked) // weight)
    if math.prod(count + 1 for count in counts) > MAX_STATES // 8:
        return ()
    demands = demands_of(whole, sum(counts))
    return predict(demands, demands.network(counts), counts)[0]


def _small_files(scenario: Scenario, c: int) -> tuple[tuple[int, float], ...]:
    """Seconds of a burst alone over the number of files it is cut into; empty where not measured."""
    if not scenario.storage.small_file_s:
        return ()
    points = []
    for files in sorted({1, 10, 100, 1000, 10_000, 100_000, scenario.classes[c].files_per_burst}):
        if files <= scenario.classes[c].burst_bytes:
            changed = scenario.classes[c].model_copy(update={"files_per_burst": files})
            alone = demands_of(dataclasses.replace(scenario, classes=(changed,)), 1).alone_s[0]
            points.append((files, alone))
    return tuple(points)


def _purchases(scenario: Scenario, c: int, limit: int, batch_s: float) -> tuple[Purchase, ...]:
    """The changes that make sense for a class, each with the limit and the batch it would give.

    Args:
        scenario: what was planned for.
        c: index of the class.
        limit: the number recommended now.
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
        then = recommend(search, search.find()).n
        batch = search.mine(then).batch_s
        found.append(Purchase(change, then, batch, _say_change(limit, batch_s, then, batch)))
    return tuple(found)


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


def _say_change(limit: int, batch_s: float, most: int, batch: float) -> str:
    if most == limit and abs(batch / batch_s - 1) < 0.02:
        return "changes nothing"
    jobs = f"{limit} -> {most} at once" if most != limit else f"{limit} at once as before"
    return f"{jobs}, batch {format_duration(batch_s)} -> {format_duration(batch)}"
