"""The package is upgraded under a run: how it ends, its evidence and its files are those of the version that it began with."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.installation import Installation, await_copy, children

from prefect_cachewatch.common import sources
from support import assert_none_left, eventually, new_tag, program, running, signal_each

GROWS = """
    import os, time
    while not os.path.exists({go!r}):
        open({file!r}, "ab").write(b"x" * 5000)
        print("shard 1/9", flush=True)
        time.sleep(0.1)
    {then}
"""
STOPS_ITSELF = "os.kill(os.getpid(), 19)"
FINDS = "finds"


def has_growth(trace: Path) -> bool:
    rows = [row.split(",") for row in trace.read_text().splitlines()[1:] if row[:1].isdigit()] if trace.exists() else []
    return len(rows) > 1 and int(rows[-2][4]) > 0  # the last one may not be whole yet


class Upgraded:
    """A run of `exec` under which the package is upgraded while its generator grows; with it go its scan process and, as
    an administrator's `kill` may have it, the helper process for files."""

    def __init__(
        self,
        folder: Path,
        how: str,
        *options: str,
        then: str,
        after: Callable[[int], None] | None = None,
        kill_helper: bool = False,
    ) -> None:
        self.cache, self.bundles, self.metrics = folder / "cache", folder / "bundles", folder / "metrics"
        self.metrics.mkdir()
        self.installed, go, tag = Installation(folder / "lib"), folder / "go", new_tag()
        source = GROWS.format(go=str(go), file=str(self.cache / "a"), then=then)
        argv = [self.installed.python, "-m", "prefect_cachewatch.cli.main", "exec", "--cache-dir", self.cache]
        argv += ["--stall-after", "4s", "--poll", "0.2s", "--grace", "0.3s", "--report", folder / "report.json"]
        argv += ["--bundle-dir", self.bundles, "--metrics", f"file:{self.metrics}", "--record", folder / "trace.csv"]
        argv += ["--progress-log", r"shard (?P<done>\d+)/(?P<total>\d+)", *options]
        with running([*map(str, argv), "--", *program(source, tag)], env=self.installed.env) as process:
            # The next scan process is to go on from growth that was measured.
            assert eventually(lambda: has_growth(folder / "trace.csv"))
            await_copy(process.pid)
            getattr(self.installed, how)()
            # The next scan process is started after the upgrade, and so is the next helper process for files.
            signal_each(children(process.pid, b"cachewatch-scanner"))
            signal_each(children(process.pid, b"prefect_cachewatch.cli.main") if kill_helper else [])
            go.touch()
            if after is not None:
                after(process.pid)
            _, self.told = process.communicate(timeout=120)
        self.status = process.returncode
        assert self.installed.strangers() == [], self.told
        self.report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        self.trace = (folder / "trace.csv").read_text()
        assert not [note for note in self.report["notes"] if "evidence" in note or "bundle" in note], self.report[
            "notes"
        ]
        assert_none_left(tag)
        self.metric = "".join(path.read_text() for path in self.metrics.iterdir())

    @property
    def page(self) -> str:
        return Path(self.report["bundle"], "report.html").read_text()


def stop_with_ctrl_c(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["replace", "remove"])
def test_a_stall_after_an_upgrade_has_its_cause_its_bundle_and_its_report(tmp_path: Path, how: str) -> None:
    ran = Upgraded(tmp_path, how, then=STOPS_ITSELF, kill_helper=how == "replace")
    assert ran.status == 124, ran.told
    assert 'outcome="stalled"' in ran.metric, ran.told
    assert len(ran.trace.splitlines()) > 10
    assert (ran.report["outcome"], ran.report["diagnosis"]["category"]) == ("stalled", "stopped_by_signal"), ran.told
    assert [entry["path"] for entry in ran.report["listing"]["entries"]] == [str(ran.cache / "a")]
    assert "stopped by a signal" in ran.page
    listed = gzip.decompress((Path(ran.report["bundle"]) / "listing.jsonl.gz").read_bytes()).splitlines()
    *files, last = map(json.loads, listed)
    assert ([Path(one["path"]).name for one in files], last["cut"]) == (["a"], None)


@pytest.mark.campaign
def test_a_crash_after_an_upgrade_has_its_cause_and_its_page(tmp_path: Path) -> None:
    ran = Upgraded(tmp_path, "replace", then="raise OSError(28, 'No space left on device')")
    assert ran.status == 1, ran.told
    assert ran.report["diagnosis"]["category"] == "disk_full", ran.told
    assert "No space left on device" in ran.page


@pytest.mark.campaign
def test_a_run_cancelled_after_an_upgrade_leaves_its_bundle(tmp_path: Path) -> None:
    ran = Upgraded(tmp_path, "replace", then="time.sleep(600)", after=stop_with_ctrl_c)
    assert (ran.status, ran.report["outcome"]) == (130, "cancelled"), ran.told
    assert "SIGINT" in ran.page


@pytest.mark.campaign
def test_a_stall_left_alone_after_an_upgrade_is_told_and_its_bundle_knows_the_end(tmp_path: Path) -> None:
    ran = Upgraded(tmp_path, "replace", "--on-stall", "report", then="time.sleep(8)")
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.told
    (stall,) = ran.report["would_be_stops"]
    assert json.loads(Path(stall["bundle"], "end.json").read_text()), os.listdir(stall["bundle"])


@pytest.mark.campaign
def test_a_server_ready_after_an_upgrade_is_handed_over(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    then = f"open({str(ready)!r}, 'w'); time.sleep(600)"
    ran = Upgraded(tmp_path, "replace", "--ready", f"file={ready}", "--then", "stop", then=then)
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.told
    assert ran.report["ready"] is not None


IMPORTS_LATE = """
import importlib, sys
from prefect_cachewatch.common import sources
sources.reserve_copy()
sources.fill_copy()
print("copied", flush=True)
sys.stdin.readline()
for name in sys.argv[1:]:
    print(importlib.import_module("prefect_cachewatch." + name).__name__, flush=True)
"""


@pytest.mark.parametrize("how", ["replace", "remove"])
def test_a_module_that_is_first_imported_after_an_upgrade_is_of_the_version_that_the_process_began_with(
    tmp_path: Path, how: str
) -> None:
    installed, late = (
        Installation(tmp_path / "lib"),
        ["metrics", "metrics.textfile", "postmortem.html", "run.trace.rows"],
    )
    with running([installed.python, "-c", IMPORTS_LATE, *late], env=installed.env, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "copied\n"
        getattr(installed, how)()
        told, errors = process.communicate("go\n", timeout=120)
    assert told.split() == [f"prefect_cachewatch.{name}" for name in late], errors
    assert installed.strangers() == []


def test_a_copy_is_used_only_for_files_that_are_others_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_copy", None)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sources, "_PARENT", str(tmp_path))
    for mark in sources._MARKS:
        path = tmp_path / "prefect_cachewatch" / mark
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(sources, "_BEGAN_WITH", sources._identify())
    fd = sources.reserve_copy()
    try:
        assert (sources.reserve_copy(), sources.package_parent()) == (fd, str(tmp_path))  # it is empty yet
        sources.fill_copy()
        assert (sources.reserve_copy(), sources.package_parent()) == (fd, str(tmp_path))
        os.utime(tmp_path / "prefect_cachewatch" / "__init__.py", (time.time() + 9, time.time() + 9))
        assert sources.package_parent() == f"/proc/{os.getpid()}/fd/{fd}"
        size = os.fstat(fd).st_size
        sources.fill_copy()  # files of another version are no copy of ours
        assert os.fstat(fd).st_size == size
    finally:
        os.close(fd)
