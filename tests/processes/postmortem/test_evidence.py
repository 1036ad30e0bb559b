"""The evidence of real trees: bounded in time, consistent, without secrets, honest about what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from prefect_cachewatch.postmortem.evidence import collect_evidence
from prefect_cachewatch.postmortem.proctree import find_descendants, sample_processes


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


def test_a_tree_of_two_hundred_processes_fits_the_budget(start, tmp_path):
    root = start("sh", "-c", "for i in $(seq 200); do sleep 99 & done; echo ready; wait")
    frozen = []
    began_s = time.process_time()
    evidence = collect_evidence([root], [tmp_path], budget_s=60.0, freeze=lambda: frozen.append(time.monotonic()))
    assert time.process_time() - began_s < 2.0  # the usual budget, on a core of our own
    assert evidence.process_count == 201
    assert len(evidence.processes) == 201
    assert len(frozen) == 1


def test_the_budget_holds_when_freezing_itself_is_late(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")
    evidence = collect_evidence([root], [tmp_path], budget_s=0.3, freeze=lambda: time.sleep(0.4))
    assert evidence.took_s < 1.0
    assert any("time for the evidence was up" in missing.why for missing in evidence.missing)


def test_a_freeze_that_fails_is_reported_and_costs_nothing_else(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")

    def freeze() -> None:
        raise BrokenPipeError("the guard is gone")

    evidence = collect_evidence([root], [tmp_path], freeze=freeze)
    assert [m.part for m in evidence.missing if "guard is gone" in m.why] == ["freeze"]
    assert {process.name for process in evidence.processes} == {"sh", "sleep"}


def test_a_process_that_began_in_the_window_counts_in_full(start, tmp_path):
    before = sample_processes(1, include_roots=False).__class__(time.monotonic() - 60, {}, 0)
    root = start(sys.executable, "-c", "sum(range(3_000_000)); print('ready', flush=True); import time; time.sleep(99)")
    process = collect_evidence([root], [tmp_path], before=before, python_stacks=False).processes[0]
    assert process.cpu_in_window_s == pytest.approx(process.cpu_s, abs=0.02)


def test_the_guard_itself_is_not_part_of_the_tree(start, tmp_path):
    root = start("sh", "-c", "sleep 99 & sleep 0.3; echo ready; wait")
    evidence = collect_evidence([root], [tmp_path], include_roots=False, python_stacks=False)
    assert [process.name for process in evidence.processes] == ["sleep"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_an_ordinary_user_gets_evidence_of_their_own_processes():
    code = """
import json, subprocess, sys, time
from pathlib import Path
from prefect_cachewatch.postmortem.evidence import collect_evidence
from prefect_cachewatch.postmortem.diagnosis import diagnose
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
time.sleep(0.3)
evidence = collect_evidence([child.pid], [Path("/tmp")], python_stacks=False)
print(json.dumps([evidence.processes[0].threads[0].syscall, [m.part for m in evidence.missing], diagnose(evidence).category]))
child.kill()
"""
    import site

    import prefect_cachewatch

    # An editable install is found through an import hook that only this environment has.
    source = os.path.dirname(os.path.dirname(prefect_cachewatch.__file__))
    packages = os.pathsep.join([source, *site.getsitepackages()])
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    # It has to be able to start itself once more: setpriv's own exec still has root's rights.
    same = (
        f"import subprocess, sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r} or "
        "subprocess.run([sys.executable, '-c', '']).returncode)"
    )
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python]
        if subprocess.run([*nobody, "-c", same], cwd="/", capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip(f"no Python {version} that another user may run")
    answer = subprocess.run(
        [*nobody, "-c", code],
        env={"PYTHONPATH": packages, "PATH": os.environ["PATH"]}, capture_output=True, text=True, cwd="/", check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    syscall, missing, category = json.loads(answer.stdout)
    assert (syscall, category) == ("read", "waiting_for_input")
    assert "kernel stacks" in missing
