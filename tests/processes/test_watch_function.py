"""`watch`, for programs without Prefect: a command under guard, its ends, and what it refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefect_cachewatch import CacheJob, InputError, StallPolicy, StopPolicy, watch
from prefect_cachewatch.supervise.proc import descendants

QUICK = StallPolicy(stall_after_s=1.5, first_write_within_s=300, poll_s=0.3)
# Writes, then waits with a child until somebody ends it.
STUCK = 'echo layer 0; head -c 100000 /dev/zero > "$0/layers.0.bin"; sleep 601 & sleep 602'


@pytest.fixture(autouse=True)
def state_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))


@pytest.fixture
def cache(tmp_path) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    return path


def test_a_stall_is_a_report_and_nothing_is_left(cache, tmp_path):
    job = CacheJob(name="stuck", command=["sh", "-c", STUCK, str(cache)], cache_dirs=[cache])
    report = watch(job, QUICK, StopPolicy(grace_s=1), log=tmp_path / "log")
    assert (report.outcome, report.stall.kind, report.growth.files_present) == ("stalled", "no_growth", 1)
    assert report.log_tail == ["layer 0"]
    assert (tmp_path / "log").read_text() == "layer 0\n"
    assert report.bundle is not None and Path(report.bundle).is_dir()
    assert report.stop is not None and report.stop.survivors == []
    stopped = [*report.stop.terminated, *report.stop.killed]
    assert len(stopped) == 3
    assert not [process for process in stopped if Path(f"/proc/{process.pid}").exists()]


def test_an_interrupt_stops_the_generator(cache, tmp_path):
    program = (
        "import sys; from prefect_cachewatch import CacheJob, watch\n"
        f"watch(CacheJob(name='x', command=['sh', '-c', {STUCK!r}, sys.argv[1]], cache_dirs=[sys.argv[1]]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(cache)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (cache / "layers.0.bin").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    of_it = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    while left := [pid for pid in of_it if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline + 30, left
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"env_secrets": {"HF_TOKEN": "hf-token"}}, "there is no Prefect here"),
        ({"command": ["no-such-program"]}, "no-such-program"),
        ({"cache_dirs": ["/mnt/{cache_dir}"]}, "names no cache_dirs"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_touched(more, sentence, tmp_path):
    cache = tmp_path / "new"
    with pytest.raises(InputError, match=sentence):
        watch(CacheJob(**{"name": "x", "command": ["true"], "cache_dirs": [cache], **more}))
    assert not cache.exists()
