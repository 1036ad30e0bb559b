"""Readers of the streams of `cachewatch watch` who do not read: verdict, stop and report do not wait for them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from processes.test_unread import SOON_S, WINDOW_S, full_pipe, stopped_terminal
from support import CACHEWATCH, PATIENCE_S, eventually


@pytest.mark.campaign
@pytest.mark.parametrize("where", [full_pipe, stopped_terminal])
@pytest.mark.parametrize("on_stall", ["stop", "report"])
def test_a_watch_decides_and_ends_though_nobody_reads_what_it_says(tmp_path: Path, where, on_stall):
    cache, report = tmp_path / "cache", tmp_path / "r.json"
    cache.mkdir()
    generator = subprocess.Popen(["sleep", "900"], start_new_session=True)
    argv = [*CACHEWATCH, "watch", "--pid", str(generator.pid), "--cache-dir", str(cache), "--report", str(report)]
    argv += ["--stall-after", f"{WINDOW_S}s", "--first-write-within", f"{WINDOW_S}s", "--poll", "0.2s"]
    environ = os.environ | {"TERM": "xterm", "XDG_STATE_HOME": str(tmp_path / "state")}
    with where() as unread:
        watching = subprocess.Popen(
            [*argv, "--grace", "0.3s", "--on-stall", on_stall],
            stdin=subprocess.DEVNULL, stdout=unread, stderr=unread, env=environ,
        )  # fmt: skip
        try:
            if on_stall == "report":
                assert eventually(report.exists)
                assert generator.poll() is None
                generator.kill()
            assert watching.wait(SOON_S) == 124
        finally:
            watching.kill()
            watching.wait()
            generator.kill()
            generator.wait(PATIENCE_S)
    found = json.loads(report.read_text())
    assert found["outcome"] == ("stalled" if on_stall == "stop" else "failed")
    assert len(found["attached"]["stalls"]) == (on_stall == "report")
