"""Several processes and one cache: one writes, the others are told who; whoever dies holds nothing up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from prefect_cachewatch import CacheStore, PublishPolicy, StoreBusy
from tests.contract.builds import NAME, Recipe, active, offer, states
from tests.contract.harness import LONG_S, WELL, Place, eventually
from tests.contract.test_store_kills import REPOSITORY, reader


def worker(root: Path, *words: object, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-m", "tests.contract.store_worker", str(root), *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
    )  # fmt: skip


@contextlib.contextmanager
def writer(root: Path, how: str = "hold") -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """A process that is writing a build; yields it, the build's id and the children that it started."""
    with worker(root, how) as process:
        assert process.stdout is not None
        build_id, *children = process.stdout.readline().split()
        try:
            yield process, build_id, [int(pid) for pid in children]
        finally:
            process.kill()
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def test_a_second_writer_is_refused_and_told_who_the_first_is(root: Path, place: Place) -> None:
    first = offer(root)
    with writer(root) as (process, build_id, _):
        for key in ("1", "2"):
            with pytest.raises(StoreBusy) as caught:
                offer(root, key=key)
            assert f"pid {process.pid} " in str(caught.value)
        place.store = root
        ran = place.generate(*WELL, "--key", "v=2", name=NAME, command=["true", "{cache_dir}"])
        assert ran.status == 125 and f"pid {process.pid} " in ran.stderr
        assert states(root) == {build_id: "staging", first.build_id: "active"}
    assert states(root)[build_id] == "abandoned"


def test_readers_and_operators_are_not_held_up_by_a_writer(root: Path) -> None:
    store = CacheStore(root)
    first, second = offer(root).build_id, offer(root).build_id
    with writer(root) as (_, build_id, _):
        with store.open_current(NAME) as held:
            assert held.build_id == second
        assert store.verify(NAME).whole
        assert store.rollback(NAME).build_id == first
        store.gc(NAME, keep=1, grace_s=0)
        assert states(root) == {build_id: "staging", first: "active"}, "its build is no surplus"


@pytest.mark.parametrize("how", ["hold", "hold with children"])
def test_the_lock_of_a_killed_writer_is_free_at_once_even_while_its_children_live(root: Path, how: str) -> None:
    with writer(root, how) as (process, build_id, children):
        process.kill()
        process.wait()
        # A child that was forked and is not yet the program holds what the writer held.
        assert eventually(lambda: states(root) == {build_id: "abandoned"}), states(root)
        assert all(Path(f"/proc/{pid}").exists() for pid in children)
        again = offer(root)
        assert (again.adopted, again.build_id) == (True, build_id)
        assert active(root) == build_id


def test_a_writer_whose_lock_file_was_removed_is_waited_for_while_it_lives(root: Path) -> None:
    with writer(root) as (process, build_id, _):
        (root / NAME / ".lock").unlink()
        with pytest.raises(StoreBusy) as caught:
            offer(root)
        assert caught.value.data["key"] == Recipe(cache_key={"v": "1"}).key
        process.kill()
        process.wait()
        assert offer(root).build_id == build_id


def test_of_many_that_wait_for_a_dead_writer_one_takes_over_at_a_time(root: Path) -> None:
    with writer(root) as (process, build_id, _):
        process.kill()
        process.wait()
    workers = [worker(root, "publish", 1) for _ in range(6)]
    said = [process.communicate(timeout=LONG_S)[0].splitlines() for process in workers]
    assert [lines[-1] for lines in said] == ["done 1"] * 6 and all(len(lines) == 2 for lines in said), said
    found = states(root)
    assert sorted(found.values()) == ["abandoned", "active", *["published"] * 5]
    assert found[build_id] == "abandoned", "it is of another key"


def test_a_lock_file_that_a_dead_holder_left_is_no_lock(root: Path) -> None:
    offer(root)
    for name in (".lock", ".switch"):
        (root / NAME / name).write_text(
            '{"pid": 1, "host": "elsewhere", "purpose": "publish", "since": "then", "boot": "another", "key": "k"}'
        )
    assert offer(root).build_id == active(root)
    assert CacheStore(root).rollback(NAME).previous == max(states(root))


def test_clean_up_between_publication_and_activation_takes_no_build_of_a_live_writer(root: Path) -> None:
    first = offer(root)
    store, rules = CacheStore(root), PublishPolicy(store=root)
    with store.begin(NAME, Recipe(cache_key={"v": "2"})) as build:  # type: ignore[arg-type]
        Path(build.path, "a.bin").write_bytes(b"abc")
        build.publish(rules, findings=build.check(rules))
        assert not store.gc(NAME, keep=1, grace_s=0).removed
        store.activate(NAME, build.build_id)
    assert [one.build_id for one in store.gc(NAME, keep=1, grace_s=0).removed] == [first.build_id]


def test_twenty_threads_that_switch_read_and_list_leave_a_whole_cache(root: Path) -> None:
    store = CacheStore(root)
    builds = [offer(root).build_id for _ in range(4)]
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(6):
                store.activate(NAME, builds[(number + turn) % 4])
                with store.open_current(NAME) as pinned:
                    assert Path(pinned.path, "a.bin").read_bytes() == b"abc"
                store.list_builds(NAME)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and store.verify(NAME).whole


@pytest.mark.parametrize("turns", [5, pytest.param(60, marks=pytest.mark.campaign)])
def test_publishers_operators_and_clean_up_at_once_leave_a_whole_cache(root: Path, turns: int) -> None:
    offer(root)
    acts = ["publish", "publish", "refuse", "roll back", "unhealthy", "clean up", "verify", "list", "activate"]
    with reader(root, "pinned") as seen:
        workers = [worker(root, act, turns) for act in acts]
        said = [process.communicate(timeout=LONG_S)[0].splitlines() for process in workers]
    assert [lines for lines in said if lines[1:] != [f"done {turns}"]] == []
    assert seen["bad"] == [] and seen["builds"] > 1
    assert CacheStore(root).verify(NAME).whole
    assert "damaged" not in states(root).values()


def test_a_writer_killed_at_a_random_moment_leaves_a_whole_cache(root: Path) -> None:
    offer(root)
    with reader(root, "plain") as seen:
        for number in range(5):
            process = worker(root, "publish", 10**6)
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            before = active(root)
            eventually(lambda before=before: active(root) != before)  # and it is at the next one
            process.kill()
            process.communicate()
            assert CacheStore(root).verify(NAME).whole, number
            CacheStore(root).gc(NAME, keep=1, grace_s=60)
    assert seen["bad"] == []
