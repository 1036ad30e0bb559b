"""The scan process: answers, deadlines, death, and writers beside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.contract.harness import state

from prefect_cachewatch.errors import ScanError, ScanTimeout
from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.watching.site import CacheDirectories
from support import PATIENCE_S, eventually


@pytest.fixture
def scanner():
    made = DirectoryScanner()
    yield made
    made.close()


def test_clean_spares_what_is_ignored_and_stood_there_before(scanner, tmp_path):
    (tmp_path / "before.log").write_bytes(b"x")
    scanner.request("begin", roots=[str(tmp_path)], ignore=["*.log"])
    scanner.request("remember")
    (tmp_path / "after.log").write_bytes(b"x")
    scanner.request("sight")
    assert scanner.request("clean", PATIENCE_S)["removed"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["before.log"]


def test_an_answer_that_does_not_come_in_time_is_a_timeout_and_stays_pending(scanner, tmp_path):
    scanner.request("begin", roots=[str(tmp_path)], ignore=[])
    os.kill(scanner.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ScanTimeout, match=r"did not answer within 0\.2 s"):
            scanner.request("scan", 0.2)
        assert scanner.pending
        with pytest.raises(ScanTimeout, match="has not answered the last request"):
            scanner.send("scan")
        with pytest.raises(ScanTimeout, match=r"did not answer within 0\.2 s"):
            scanner.request("scan", 0.2)
    finally:
        os.kill(scanner.pid, signal.SIGCONT)
    assert scanner.request("scan", PATIENCE_S)["scan"] == 2  # the late answer of the first one is nobody's any more


def test_a_scan_process_that_dies_is_an_error_and_not_silence(scanner, tmp_path):
    scanner.request("begin", roots=[str(tmp_path)], ignore=[])
    os.kill(scanner.pid, signal.SIGKILL)
    with pytest.raises(ScanError, match="ended"):
        scanner.request("scan")
    assert not scanner.pending


def test_the_scan_process_ends_with_its_owner():
    code = (
        "import time\nfrom prefect_cachewatch.measure.scanner import DirectoryScanner\n"
        "s = DirectoryScanner(); s.request('check', path='/tmp/x', create=False); print(s.pid, flush=True); time.sleep(100)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    assert state(pid) in "SR"
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: state(pid) in "ZX")


def test_the_scan_process_keeps_no_descriptor_on_the_tree(scanner, tmp_path):
    (tmp_path / "d").mkdir()
    scanner.request("begin", roots=[str(tmp_path)], ignore=[])
    links = [os.readlink(f"/proc/{scanner.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{scanner.pid}/fd")]
    assert [link for link in links if link.startswith(str(tmp_path))] == []
    assert os.readlink(f"/proc/{scanner.pid}/cwd") == "/"


# The pre-flight


def test_links_are_resolved_once_and_a_directory_given_twice_is_one(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to("c")
    with CacheDirectories([tmp_path / "link", tmp_path / "c", tmp_path / "c/../c"]) as site:
        assert site.paths == [str((tmp_path / "c").resolve())]
        assert len(site.lock_fds) == 1


def test_a_stuck_scan_process_is_left_without_a_warning(tmp_path, recwarn):
    # SIGSTOP is no D state: what is looked at is that closing does not wait, and that no Popen warns.
    scanner = DirectoryScanner()
    scanner.request("begin", roots=[str(tmp_path)], ignore=[])
    pid = scanner.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ScanTimeout):
        scanner.request("scan", 0.05)
    began_s = time.monotonic()
    scanner.close()
    assert time.monotonic() - began_s < 30
    del scanner
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]
    with contextlib.suppress(ChildProcessError):  # it was waited for
        eventually(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)


def test_a_walk_that_runs_beside_writers_never_fails(tmp_path):
    done = threading.Event()

    def write():
        n = 0
        while not done.wait(0.001):
            n += 1
            path = tmp_path / f"d{n % 5}"
            path.mkdir(exist_ok=True)
            (path / f"{n}.tmp").write_bytes(b"x" * 100)
            (path / f"{n}.tmp").rename(path / f"{n}.bin")
            if n % 3 == 0:
                (path / f"{n}.bin").unlink()

    scanner = DirectoryScanner()
    scanner.request("begin", PATIENCE_S, roots=[str(tmp_path)], ignore=[])
    thread = threading.Thread(target=write)
    thread.start()
    try:
        last, scans, end_s = 0, 0, time.monotonic() + PATIENCE_S
        while scans < 20 or (last == 0 and time.monotonic() < end_s):  # the writer may get no turn for a while
            scans += 1
            answer = scanner.request("scan", PATIENCE_S)
            assert answer["errors"] == []
            assert answer["growth"]["bytes_written"] >= last
            last = answer["growth"]["bytes_written"]
    finally:
        done.set()
        thread.join()
        scanner.close()
    assert last > 0
