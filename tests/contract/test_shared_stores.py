"""A store whose lock files others have locked: readers block nobody, and who does block is named as the kernel knows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_cachewatch import CacheStore, StoreBusy
from tests.contract.builds import NAME, Recipe, offer
from tests.contract.harness import eventually, state
from tests.contract.test_shared_caches import stranger


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "store").mkdir()
    offer(tmp_path / "store")
    return tmp_path / "store"


def locks_of(root: Path) -> list[Path]:
    found = [root / NAME / ".lock", root / NAME / ".switch"]
    assert [path.stat().st_mode & 0o777 for path in found] == [0o600, 0o600]
    return found


def test_a_reader_of_its_locks_blocks_neither_publishing_nor_a_switch_but_a_second_publisher_does(root: Path) -> None:
    one, other = locks_of(root)
    store = CacheStore(root)
    with stranger("LOCK_SH", one), stranger("LOCK_SH", other):
        offer(root, key="2")
        store.rollback(NAME)
        busy = pytest.raises(StoreBusy, match=f"held by pid {os.getpid()} on ")
        with store.begin(NAME, Recipe()), busy:  # type: ignore[arg-type]
            store.begin(NAME, Recipe())  # type: ignore[arg-type]
    assert {manifest.stat().st_mode & 0o444 for manifest in root.rglob("builds/*.json")} == {0o444}, "readers lock it"


def test_who_really_holds_a_lock_is_named_rather_than_who_wrote_into_it(root: Path) -> None:
    writer = locks_of(root)[0]
    with stranger("LOCK_EX", writer) as holder, pytest.raises(StoreBusy) as caught:
        offer(root, key="2")
    assert f"the lock is held by pid {holder}: {sys.executable}" in str(caught.value)
    assert f"pid {os.getpid()}" not in str(caught.value)


def test_a_child_that_inherited_a_lock_is_named_when_who_took_it_has_ended(root: Path) -> None:
    writer = locks_of(root)[0]
    with stranger("LOCK_EX", writer, "--child-holds") as took:
        assert eventually(lambda: state(took) in ("Z", ""))
        with pytest.raises(StoreBusy) as caught:
            offer(root, key="2")
    assert "the lock is held by pid " in str(caught.value) and f"pid {took}: " not in str(caught.value)
