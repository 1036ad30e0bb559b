"""The package is upgraded under a run: the verdict, its evidence and its files are those of the version that it began with."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest
from tests.installation import Installation, await_copy

from prefect_cachewatch.common import sources
from support import assert_none_left, eventually, mostly_apart, new_tag, program, running, signal_each

GROWS_THEN_HANGS = """
    import os, time
    while not os.path.exists({go!r}):
        open({file!r}, "ab").write(b"x" * 5000)
        time.sleep(0.1)
    {then}
"""


def scanners(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in children if b"cachewatch-scanner" in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.campaign
@pytest.mark.parametrize("how", mostly_apart(["replace", "remove"], ["replace"]))
def test_a_stall_after_an_upgrade_has_its_cause_its_bundle_and_its_report(tmp_path: Path, how: str) -> None:
    installed, cache, go, tag = Installation(tmp_path / "lib"), tmp_path / "cache", tmp_path / "go", new_tag()
    source = GROWS_THEN_HANGS.format(go=str(go), file=str(cache / "a"), then="os.kill(os.getpid(), 19)")
    argv = [installed.python, "-m", "prefect_cachewatch.cli.main", "exec", "--cache-dir", cache, "--stall-after", "4s"]
    argv += ["--poll", "0.2s", "--grace", "0.3s"]
    argv += ["--report", tmp_path / "report.json", "--bundle-dir", tmp_path / "bundles"]
    with running([*map(str, argv), "--", *program(source, tag)], env=installed.env) as process:
        assert eventually((cache / "a").exists)
        await_copy(process.pid)
        getattr(installed, how)()
        # The next scan process is started after the upgrade too.
        signal_each(scanners(process.pid))
        go.touch()
        _, told = process.communicate(timeout=120)
    assert process.returncode == 124, told
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["outcome"], report["diagnosis"]["category"]) == ("stalled", "stopped_by_signal"), told
    assert [entry["path"] for entry in report["listing"]["entries"]] == [str(cache / "a")]
    assert not [note for note in report["notes"] if "evidence" in note or "bundle" in note], report["notes"]
    bundle = Path(report["bundle"])
    assert "stopped by a signal" in (bundle / "report.html").read_text()
    *listed, last = map(json.loads, gzip.decompress((bundle / "listing.jsonl.gz").read_bytes()).splitlines())
    assert ([Path(one["path"]).name for one in listed], last["cut"]) == (["a"], None)
    assert_none_left(tag)


def test_a_copy_is_used_only_for_files_that_are_others_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_copy", None)
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
        assert (sources.reserve_copy(), sources.package_parent()) == (-1, str(tmp_path))
        os.utime(tmp_path / "prefect_cachewatch" / "__init__.py", (time.time() + 9, time.time() + 9))
        assert sources.package_parent() == f"/proc/{os.getpid()}/fd/{fd}"
        size = os.fstat(fd).st_size
        sources.fill_copy()  # files of another version are no copy of ours
        assert os.fstat(fd).st_size == size
    finally:
        os.close(fd)
