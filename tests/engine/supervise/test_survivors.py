"""Who could not be killed: looked at again, waited for, named."""

from __future__ import annotations

import os

from prefect_cachewatch.supervise.proc import read_stat
from prefect_cachewatch.supervise.supervisor import await_survivors, describe_survivors, still_there


def entry(pid: int, ticks: int, state: str = "D") -> dict[str, object]:
    return {"pid": pid, "start_ticks": ticks, "state": state, "argv": ["gen", "-o", "x"]}


def me() -> dict[str, object]:
    found = read_stat(os.getpid())
    assert found is not None
    return entry(os.getpid(), found.start_ticks)


def test_only_the_very_process_is_still_there() -> None:
    now = me()
    later = entry(os.getpid(), int(str(now["start_ticks"])) + 1)
    assert [one["pid"] for one in still_there([now, later])] == [os.getpid()]
    assert still_there([now])[0]["state"] in "RS"


def test_one_that_cannot_be_seen_from_here_is_taken_as_still_there() -> None:
    assert still_there([entry(0, 0, "?")]) == [entry(0, 0, "?")]


def test_the_wait_ends_at_its_deadline_and_says_who_is_left() -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    left = await_survivors([me()], 3.2, clock=lambda: clock[0], sleep=sleep)
    assert ([one["pid"] for one in left], round(clock[0], 6)) == ([os.getpid()], 3.2)
    assert await_survivors([entry(os.getpid(), 1)], 3.2, clock=lambda: clock[0], sleep=sleep) == []


def test_many_are_named_by_the_first_five() -> None:
    text = describe_survivors([entry(pid, 1) for pid in range(10, 17)])
    assert text.startswith("pid 10 (gen -o x, state D), pid 11 ")
    assert text.endswith("state D) and 2 more")
