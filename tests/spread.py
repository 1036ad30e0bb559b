"""In what order several workers run the tests: those that wait first and apart, the fast ones last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
SERVERS = ("server", "prefect_harness")  # fixtures that start a Prefect server: 6 s of CPU for each worker


def kind_of(path: str, fixtures: Sequence[str]) -> str:
    """Tell the tests of one server, those that wait for other things, and the `fast` ones apart."""
    return next((name for name in SERVERS if name in fixtures), "fast" if "/engine/" in path else "other")


def spread(tests: Sequence[T], kind: Callable[[T], str], workers: int) -> list[T]:
    """Order tests for `--dist worksteal`, which gives each worker a part of the list and steals from the parts' ends.

    The tests of one server are at the beginning of one part, those that wait for other things are at the beginnings
    of the others, and fast ones fill each part up: so a server is started once, and no worker ends with a long test.

    Args:
        tests: as they were collected.
        kind: of a test, as `kind_of` tells.
        workers: how many parts there are.

    Returns:
        The same tests, each kind in its order; all as they were if there are no fast ones.
    """
    if not any(kind(test) == "fast" for test in tests):
        return list(tests)
    kinds = {name: [test for test in tests if kind(test) == name] for name in (*SERVERS, "other", "fast")}
    parts: list[list[T]] = [[] for _ in range(workers)]
    wanted = [name for name in SERVERS if kinds[name]]
    for place, name in enumerate(wanted):
        parts[place % workers] += kinds[name]
    free = parts[len(wanted) :] or parts
    for place, part in enumerate(free):
        part.extend(_share(kinds["other"], place, len(free)))
    fast, left = iter(kinds["fast"]), len(tests)
    for place, part in enumerate(parts):
        size = left // (workers - place)
        part.extend(islice(fast, max(0, size - len(part))))
        left -= len(part)
    return [*(test for part in parts for test in part), *fast]


def _share(tests: Sequence[T], place: int, places: int) -> Sequence[T]:
    return tests[len(tests) * place // places : len(tests) * (place + 1) // places]
