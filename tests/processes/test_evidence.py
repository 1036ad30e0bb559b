"""The evidence of real trees: bounded in time, consistent, honest about what is missing; and examinations that fail."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from prefect_cachewatch.common.aside import InPlace
from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.evidence.collector import collect_evidence
from prefect_cachewatch.evidence.filesystem import FilesystemProbe
from prefect_cachewatch.evidence.model import Evidence
from prefect_cachewatch.evidence.proctree import find_descendants
from prefect_cachewatch.evidence.rules import find_cause
from prefect_cachewatch.run.examination import PostMortem
from prefect_cachewatch.watching.attempt import Watch, run_watch
from prefect_cachewatch.watching.site import CacheDirectories


@pytest.fixture
def start():
    """Start a command in a session of its own; its whole tree ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, ready: bool = True, env: dict[str, str] | None = None) -> int:
        child = subprocess.Popen(
            argv, stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, **(env or {})}
        )
        started.append(child)
        if ready:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        return child.pid

    yield run
    for child in started:
        for pid in find_descendants([child.pid]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_tree_of_two_hundred_processes_is_seen_whole_and_frozen_once(start, tmp_path):
    root = start("sh", "-c", "for i in $(seq 200); do sleep 99 & done; echo ready; wait")
    frozen = []
    evidence = collect_evidence([root], [tmp_path], budget_s=60.0, ask=lambda: frozen.append(time.monotonic()))
    assert evidence.process_count == 201
    assert len(evidence.processes) == 201
    assert len(frozen) == 1


def test_the_budget_holds_when_freezing_itself_is_late(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")
    evidence = collect_evidence([root], [tmp_path], budget_s=0.3, ask=lambda: time.sleep(0.4))
    assert evidence.took_s < 60
    assert any("time for the evidence was up" in missing.why for missing in evidence.missing)


def test_a_freeze_that_fails_is_reported_and_costs_nothing_else(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")

    def freeze() -> None:
        raise BrokenPipeError("the guard is gone")

    evidence = collect_evidence([root], [tmp_path], ask=freeze)
    assert [m.part for m in evidence.missing if "guard is gone" in m.why] == ["freeze"]
    assert {process.name for process in evidence.processes} == {"sh", "sleep"}


def test_evidence_that_fails_does_not_keep_the_tree_from_being_stopped(tmp_path, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no evidence today")

    monkeypatch.setattr("prefect_cachewatch.run.examination.collect_evidence", broken)
    examiner = PostMortem()
    with CacheDirectories([tmp_path / "cache"]) as site:
        job = CacheJob(name="x", command=["sleep", "99"], cache_dirs=site.paths)
        stall = StallPolicy(stall_after_s=0.5, first_write_within_s=0.5, poll_s=0.2)
        watch = Watch(
            site, job, stall, StopPolicy(grace_s=1), on_sample=examiner.sampled, before_stop=examiner.before_stop
        )
        outcome = examiner.conclude(watch, run_watch(watch))
    assert outcome.name == "stalled"
    assert examiner.cause is None
    assert examiner.notes == ["no evidence was collected: RuntimeError: no evidence today"]


def test_a_thread_that_is_late_is_no_silence_of_the_file_system(tmp_path, monkeypatch):
    asked, answer = threading.Event(), threading.Event()

    def late(path):
        asked.set()
        answer.wait()  # as on a machine that does not get round to it
        return {}

    monkeypatch.setattr("prefect_cachewatch.evidence.filesystem.probe_directory", late)
    probe = FilesystemProbe([str(tmp_path)])
    assert asked.wait(60)
    (facts,) = probe.facts().values()
    answer.set()
    assert (facts.responded, facts.error) == (True, "not known: the thread that asks was late")
    assert find_cause(Evidence(filesystems=(facts,))).category != "filesystem_unresponsive"


def test_a_crash_is_named_even_if_the_helper_that_collects_evidence_is_late(tmp_path):
    class Late(InPlace):
        def consult(self, *_, **__):
            raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")

    command = [sys.executable, "-c", "raise MemoryError('sesame-raw-22222')"]
    job = CacheJob(name="x", command=command, cache_dirs=[tmp_path / "c"])
    with CacheDirectories(job.cache_dirs) as site:
        watch = Watch(site, job, StallPolicy(poll_s=0.3), StopPolicy())
        examiner = PostMortem(files=Late(), secrets=("sesame-raw-22222",))
        outcome = examiner.conclude(watch, run_watch(watch))
    assert outcome.message.startswith(
        "x failed: memory ran out: MemoryError: *** [<module> (<string>:1)]. Exit code 1. Tensor cache generation failed: "
    )
    assert outcome.diagnosis is not None and outcome.diagnosis.category == "host_out_of_memory"
    # A busy machine delays it as much as a file system that hangs: neither is blamed.
    assert examiner.notes == ["no evidence was collected: the helper that collects it was late (2.5 s)"]
