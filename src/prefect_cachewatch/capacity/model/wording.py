"""A plan in words: the answer, the bottleneck, the assumptions."""

from __future__ import annotations

from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.limits import ClassSearch, Found
from prefect_cachewatch.capacity.model.profile import LinkProfile, StorageProfile
from prefect_cachewatch.common.units import format_bytes, format_duration

_RULES = {
    "slowdown": "the slowdown rule",
    "stall": "the stall window",
    "latency": "the latency asked for",
    "usl_peak": "the peak of the storage's curve",
    "deadline": "the deadline",
    "capacity": "the free space",
    "measured_n": "twice the measured n",
    "max_concurrency": "max_concurrency",
}
_NOUNS = {"generation": "generation", "inference": "model load", "training": "training job"}


def say_bottleneck(search: ClassSearch, limit: int, where: str) -> str:
    """The bottleneck at a limit, in words.

    Args:
        search: the class's search.
        limit: jobs at once.
        where: the station with the largest demand.

    Returns:
        A clause without its full stop.
    """
    busy = search.mine(limit).utilisation
    names = {
        "link": search.scenario.link.name,
        "storage": search.scenario.storage.name,
        "codec": "codec's cores",
        "operations": f"of {search.scenario.storage.name}",
    }
    most = max(busy, key=lambda name: busy[name])
    shown = f"the {most} ({names[most]}), {busy[most]:.0%} of its capacity in use at {limit}"
    if busy[most] < 0.5:
        return f"none yet; first will be the {where} ({names[where]}), {busy[where]:.0%} in use at {limit}"
    return shown


def say_answer(
    search: ClassSearch,
    found: Found,
    band: tuple[int, int],
    slower: tuple[int | None, int | None],
    limit: int,
    reason: str,
) -> str:
    """The one sentence of a plan: from where on bursts wait, the most that is admitted, what is recommended.

    Args:
        search: the search of the class that the answer is about.
        found: what the rules admit of it.
        band: the most that is admitted with lower and with higher rates.
        slower: the number of jobs from which on a burst takes 10 % longer, and twice as long.
        limit: the number recommended.
        reason: why it is no other.

    Returns:
        The sentence without its full stop.
    """
    workload, storage = search.scenario.classes[search.c], search.scenario.storage
    noun = _NOUNS[workload.kind]
    if found.most < 1:
        return f"not even 1 {noun} of {workload.name} meets the policy on {storage.name}: {found.reason}"
    ten, two = slower
    if ten is None:
        told = f"latency is not 10 % up at {search.top} {noun}s yet"
    else:
        told = f"latency is 10 % up at {ten} {noun}s, "
        told += f"not yet doubled at {search.top}" if two is None else f"doubled at {two}"
    rules = [_RULES[rule.rule] for rule in found.rules if rule.n == found.most]
    verb = "admits" if len(rules) == 1 else "admit"
    return (
        f"{storage.name}: {told}; {found.most} ({band[0]}-{band[1]}) is the most that {' and '.join(rules)} {verb} "
        f"({found.reason}). Recommended: {limit} at once, {reason}"
    )


def list_assumptions(
    storage: StorageProfile,
    link: LinkProfile,
    classes: tuple[WorkloadClass, ...],
    policy: Policy,
    notes: tuple[str, ...],
) -> tuple[str, ...]:
    """What a plan takes for granted, most important first.

    Args:
        storage: the storage.
        link: the link.
        classes: all classes.
        policy: the policy.
        notes: what was said while the network was built.

    Returns:
        Sentences without full stops.
    """
    said = [
        f"{storage.name}: {_origin(storage.basis, storage.source, str(storage.date or ''))}",
        ("the network is in the measured curves" if storage.contains_link else "no network between jobs and storage")
        if link.bytes_per_s is None
        else f"link {link.name}: {format_bytes(link.bytes_per_s)}/s raw x {link.efficiency:g} on each of "
        f"{link.hosts} host{'s' if link.hosts > 1 else ''}",
        f"all rates are taken {policy.derate:.0%} lower (derate); the band is rates {policy.band:.0%} lower and higher",
        f"a slowdown of {policy.max_slowdown:g} and a silence of {format_duration(policy.stall_window_s)} are accepted",
        "storage and link share their rates evenly among bursts; pauses between bursts vary by half",
    ]
    if any(w.is_watched and w.bytes_appear == "at_end" for w in classes):
        said.append("bytes of a file appear at its end (worst case for the stall window)")
    said.append("nothing here sees a cliff: a storage that collapses beyond its measured n does so unannounced")
    if storage.free_bytes is not None:
        batch = sum(w.kept_bytes * w.jobs for w in classes)
        if batch > storage.free_bytes:
            said.append(
                f"all jobs of the batch keep {format_bytes(batch)}, and {format_bytes(storage.free_bytes)} "
                "are free: remove old caches between them"
            )
    return tuple(said) + tuple(note for note in (*notes, *storage.notes) if note)


def _origin(basis: str, source: str, date: str) -> str:
    told = {
        "measured": "measured",
        "vendor ceiling": "a vendor's ceiling, not a measurement: run cachewatch probe",
        "given": "given by hand",
    }[basis]
    return ", ".join(part for part in (told, source, date) if part)
