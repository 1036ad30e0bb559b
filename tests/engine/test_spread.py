"""The order of tests for several workers: nothing is lost, servers stay together, fast tests fill the parts up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.spread import kind_of, spread


def kind(test: str) -> str:
    return {"s": "server", "h": "prefect_harness", "o": "other", "f": "fast"}[test[0]]


def test_each_part_begins_with_what_waits_and_ends_with_fast_tests() -> None:
    tests = ["f1", "f2", "f3", "f4", "f5", "f6", "f7", "h1", "h2", "o1", "o2", "s1"]
    assert spread(tests, kind, 4) == ["s1", "f1", "f2", "h1", "h2", "f3", "o1", "f4", "f5", "o2", "f6", "f7"]
    assert spread(tests, kind, 2) == ["s1", "o1", "f1", "f2", "f3", "f4", "h1", "h2", "o2", "f5", "f6", "f7"]


def test_no_part_is_kept_for_a_server_that_no_test_asks_for() -> None:
    assert spread(["f1", "f2", "h1", "o1", "o2", "o3"], kind, 2) == ["h1", "f1", "f2", "o1", "o2", "o3"]


def test_where_all_tests_wait_their_order_stays() -> None:
    assert spread(["o1", "s1", "h1"], kind, 3) == ["o1", "s1", "h1"]


@given(st.text("shof"), st.integers(1, 9))
def test_no_test_is_lost_or_run_twice(kinds: str, workers: int) -> None:
    tests = [f"{name}{place}" for place, name in enumerate(kinds)]
    assert sorted(spread(tests, kind, workers)) == sorted(tests)


def test_a_test_is_of_the_server_that_it_asks_for() -> None:
    assert kind_of("/x/tests/orchestration/test_a.py", ["tmp_path", "server"]) == "server"
    assert kind_of("/x/tests/orchestration/test_a.py", ["prefect_harness"]) == "prefect_harness"
    assert kind_of("/x/tests/processes/test_a.py", ["tmp_path"]) == "other"
    assert kind_of("/x/tests/engine/test_a.py", ["tmp_path"]) == "fast"
