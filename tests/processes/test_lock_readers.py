"""Strangers that lock our lock files: a reader blocks nobody, and who does block is named as the kernel knows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.errors import StoreBusy
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe
from prefect_cachewatch.supervise.filelocks import find_holders

HOLDS = """
import fcntl, os, sys, time
fd = os.open(sys.argv[2], os.O_RDONLY)
fcntl.flock(fd, getattr(fcntl, sys.argv[1]))
if "--child-holds" in sys.argv and os.fork():
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""
Locker = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def stranger() -> Iterator[Locker]:
    """Starts a process that locks a path until the test ends."""
    started: list[subprocess.Popen[str]] = []

    def lock(kind: str, path: Path, *options: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", HOLDS, kind, str(path), *options]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield lock
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def publish(store: CacheStore) -> None:
    policy = PublishPolicy(store=store.root)
    with store.begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)) as build:
        Path(build.path, "a.bin").write_bytes(b"abc")
        build.publish(policy, findings=build.check(policy))
    store.activate("c", build.build_id)


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    (tmp_path / "store").mkdir()
    found = CacheStore(tmp_path / "store")
    publish(found)
    return found


def locks_of(store: CacheStore) -> list[Path]:
    return sorted(Path(store.root, "c").glob(".*.lock"))


def test_a_reader_of_the_stores_locks_blocks_neither_publishing_nor_a_switch(
    store: CacheStore, stranger: Locker
) -> None:
    assert len(locks_of(store)) == 2
    for path in locks_of(store):
        stranger("LOCK_SH", path)
    publish(store)
    store.rollback("c")


def test_two_publishers_exclude_each_other_beside_a_reader(store: CacheStore, stranger: Locker) -> None:
    for path in locks_of(store):
        stranger("LOCK_SH", path)
    policy = PublishPolicy(store=store.root)
    recipe = BuildRecipe.of(["gen", "{cache_dir}"], policy)
    with store.begin("c", recipe), pytest.raises(StoreBusy, match=f"held by pid {os.getpid()} on "):
        store.begin("c", recipe)


def test_the_stores_locks_are_for_their_owner_alone_but_pins_are_for_every_reader(store: CacheStore) -> None:
    assert [path.stat().st_mode & 0o777 for path in locks_of(store)] == [0o600, 0o600]
    [pin] = Path(store.root).rglob("pin")
    assert pin.stat().st_mode & 0o444 == 0o444


def test_who_really_holds_a_lock_is_named_rather_than_who_wrote_into_it(store: CacheStore, stranger: Locker) -> None:
    writer = next(path for path in locks_of(store) if "writer" in path.name)
    holder = stranger("LOCK_EX", writer)
    with pytest.raises(StoreBusy) as caught:
        publish(store)
    assert f"the lock is held by pid {holder.pid}: " in caught.value.message
    assert sys.executable in caught.value.message
    assert f"pid {os.getpid()}" not in caught.value.message


def test_a_child_that_inherited_a_lock_is_named_when_who_took_it_has_ended(store: CacheStore, stranger: Locker) -> None:
    writer = next(path for path in locks_of(store) if "writer" in path.name)
    took = stranger("LOCK_EX", writer, "--child-holds")
    took.wait(10)
    with pytest.raises(StoreBusy) as caught:
        publish(store)
    [holder] = find_holders(writer.stat())
    assert holder.pid != took.pid
    assert f"the lock is held by pid {holder.pid}: " in caught.value.message


def test_readers_see_that_a_publisher_is_at_work_without_the_right_to_open_its_lock(store: CacheStore) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs another user")
    policy = PublishPolicy(store=store.root)
    script = (
        "import os, sys\n"
        "from prefect_cachewatch.publish.locks import is_locked\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "print(is_locked(fd, '.writer.lock', by_readers=False))\n"
    )
    folder = Path(store.root, "c")
    for parent in folder.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    argv = [sys.executable, "-c", script, str(folder)]
    with store.begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)):
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "True\n"
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "False\n"
