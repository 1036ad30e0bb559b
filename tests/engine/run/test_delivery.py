"""A run's way into a store whose file system stops answering: it is told, and nobody waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.common.aside import InPlace
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.run.delivery import PublishSession
from prefect_cachewatch.store.contents import find_broken
from prefect_cachewatch.store.policy import PublishPolicy

SAYS = "cannot be used: its file system does not answer within 10 s; check the mount"


class MayHang(InPlace):
    """Does what it is asked for, until its file system hangs."""

    hangs = False

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        if self.hangs:
            raise TimeoutError
        return function(*arguments)


JOB = CacheJob(name="c", command=["gen", "{cache_dir}"])


def test_a_store_that_does_not_answer_is_refused_before_it_is_touched(tmp_path):
    files = MayHang()
    files.hangs = True
    with pytest.raises(StoreError) as caught:
        PublishSession(JOB, PublishPolicy(store=tmp_path), files=files)
    assert caught.value.message == f"cache store {tmp_path} {SAYS}"


@pytest.mark.parametrize(
    "step",
    [
        lambda delivery: delivery.begin(clean=False),
        lambda delivery: delivery.prepare_retry(300),
        lambda delivery: delivery.verify({}),
    ],
    ids=["begin", "prepare_retry", "verify"],
)
def test_a_store_that_hangs_later_ends_the_run_and_holds_nobody(tmp_path, step):
    files = MayHang()
    with PublishSession(JOB, PublishPolicy(store=tmp_path), files=files) as delivery:
        delivery.begin(clean=False)
        files.hangs = True
        with pytest.raises(StoreError, match=SAYS):
            step(delivery)
        assert delivery.last_bytes() is None


@pytest.mark.parametrize(
    ("content", "hangs", "stays"), [("refuse", False, False), ("warn", False, True), ("refuse", True, True)]
)
def test_a_retry_removes_a_broken_file_unless_that_is_only_a_warning_or_its_storage_hangs(
    tmp_path, content, hangs, stays
):
    class OneHangs(InPlace):
        def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
            if hangs and function is find_broken:
                raise TimeoutError
            return function(*arguments)

    policy, said = PublishPolicy(store=tmp_path, on_broken_content=content), list[str]()
    with PublishSession(JOB, policy, lambda text, fault=False: said.append(text), OneHangs()) as delivery:
        delivery.begin(clean=False)
        cut = Path(delivery.target.path, "w.safetensors")
        cut.write_bytes(b"half")
        time.sleep(0.05)
        delivery.target.note_growth()
        Path(delivery.target.path, "later.bin").write_bytes(b"x")
        delivery.prepare_retry(0)
        assert cut.exists() == stays
    assert any("no answer within 1 minute" in text for text in said) == hangs


def test_a_check_command_that_does_not_end_is_stopped_and_refuses_the_build(tmp_path, monkeypatch):
    monkeypatch.setattr("prefect_cachewatch.run.delivery._CHECK_S", 1.0)
    policy = PublishPolicy(store=tmp_path, check_command=["sleep", "600"])
    with PublishSession(JOB, policy) as delivery:
        delivery.begin(clean=False)
        Path(delivery.target.path, "a.bin").write_bytes(b"whole")
        (refused,) = delivery.verify(dict(os.environ))
    assert "did not end within 1 s and was stopped" in refused.message
