"""Disks that take no more: full, without inodes, over a quota, read-only; of the generator and of the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import Sandbox, living, until
from tests.faults.test_watch import HangingMount, wait_written
from tests.support import unavailable

SECTION = "3 The disk"
WRITER = (
    "import os,sys,time\nd,size=sys.argv[1],int(sys.argv[2])\n"
    "for i in range(10000):\n open(f'{d}/f.{i}','wb').write(b'x'*size); time.sleep(.01)\n"
)


def small_disk(sandbox: Sandbox, name: str, options: str) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to mount a small file system")
    sandbox.mkdir(name)
    sandbox.mounts += ["--tmpfs", str(sandbox.root / name), f"{options},mode=777"]


def writer(sandbox: Sandbox, size: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", WRITER, str(sandbox.cache), str(size)]


def test_a_full_disk_is_reported_by_the_generators_own_error(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "disk full",
        "a tmpfs of 4 MB fills up under the generator",
        "the generator's exit code and its own error are reported, not a stall",
    )
    small_disk(sandbox, "mount", "size=4m")
    sandbox.cache_name = "mount/cache"
    process = sandbox.guarded(writer(sandbox, 100_000), window="5s")
    assert process.wait(60) == 1, sandbox.stderr()
    report = sandbox.report()
    assert (report["outcome"], report["exit_code"], report["stall"]["kind"]) == ("failed", 1, None)
    assert "No space left on device" in report["log_tail"][-1]
    assert report["listing"]["total_files"] >= 39
    row.measured.append((who, f"`{report['log_tail'][-1]}`"))


def test_no_inodes_left_is_reported_by_the_generators_own_error(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(SECTION, "inodes exhausted", "a tmpfs with 60 inodes", "as above")
    small_disk(sandbox, "mount", "size=64m,nr_inodes=60")
    sandbox.cache_name = "mount/cache"
    process = sandbox.guarded(writer(sandbox, 5000), window="5s")
    assert process.wait(60) == 1, sandbox.stderr()
    report = sandbox.report()
    assert "No space left on device" in report["log_tail"][-1]
    assert report["outcome"] == "failed"
    row.measured.append((who, f"failed after {report['listing']['total_files']} files"))


def test_a_disk_that_is_full_at_the_start_is_refused(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION, "full at the start", "a tmpfs with less than 1 MiB free", "one sentence, exit 125, nothing run"
    )
    small_disk(sandbox, "mount", "size=512k")
    sandbox.cache_name = "mount/cache"
    process = sandbox.guarded(["touch", str(sandbox.root / "out" / "ran")])
    assert process.wait(60) == 125
    assert "is full (512 KiB free): make room first" in sandbox.stderr()
    assert sandbox.stderr().count("\n") == 1
    assert not (sandbox.root / "out" / "ran").exists()
    row.measured.append((who, "refused"))


def test_a_report_that_does_not_fit_is_shortened_and_says_so(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "report's disk nearly full",
        "the file system of --report has room for a short report only",
        "the run's own exit status; a shortened report that says what is missing",
    )
    small_disk(sandbox, "reports", "size=32k")
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        WRITER.replace("10000", "400").replace(".01", "0"),
        str(sandbox.cache),
        "4096",
    ]
    path = sandbox.root / "reports" / "report.json"
    show = f'"$@"; code=$?; cat {path}; exit $code'
    with open(sandbox.root / "shown", "wb") as shown:
        process = sandbox.guarded(command, "--report", str(path), before=["sh", "-c", show, "sh"], stdout=shown)
    assert process.wait(60) == 0, sandbox.stderr()
    report = json.loads((sandbox.root / "shown").read_bytes())
    assert report["outcome"] == "completed"
    assert report["listing"]["total_files"] == 400
    assert 0 < len(report["listing"]["entries"]) < 400
    assert report["listing"]["truncated"]
    assert any("shortened" in note and "No space left on device" in note for note in report["notes"])
    row.measured.append((who, f"{len(report['listing']['entries'])} of 400 files listed, noted"))


def test_a_report_that_cannot_be_written_goes_elsewhere_and_the_run_ends_rightly(
    sandbox: Sandbox, who: str, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "report's and log's disk full",
        "the file system of --report and --log fills up in mid-run",
        "the run's own exit status; one sentence names the whole report in the temporary directory, which says that the "
        "log is cut",
    )
    small_disk(sandbox, "reports", "size=64k")
    temporary = sandbox.mkdir("tmp")
    path, log = sandbox.root / "reports" / "report.json", sandbox.root / "reports" / "log.txt"
    script = 'head -c 20000 /dev/urandom > "$0/f"; head -c 1000000 /dev/zero; exit 3'
    process = sandbox.guarded(
        ["sh", "-c", script, str(sandbox.cache)],
        *("--report", str(path), "--log", str(log)),
        env=sandbox.env(TMPDIR=str(temporary)),
    )
    assert process.wait(60) == 3, sandbox.stderr()
    elsewhere = list(temporary.iterdir())
    assert len(elsewhere) == 1
    assert elsewhere[0].stat().st_mode & 0o777 == 0o600
    assert f"cannot be written: No space left on device; it is in {elsewhere[0]} instead" in sandbox.stderr()
    report = json.loads(elsewhere[0].read_text())
    assert report["exit_code"] == 3
    assert any("the log is incomplete" in note for note in report["notes"])
    row.measured.append((who, "exit 3, report kept elsewhere"))


@pytest.fixture
def quota(sandbox: Sandbox) -> Iterator[HangingMount]:
    mount = HangingMount(sandbox)
    yield mount
    mount.end()


def kept_elsewhere(temporary: Path, sandbox: Sandbox, why: str) -> str:
    """The outcome in the one report in the temporary directory, which standard error names."""
    (elsewhere,) = temporary.iterdir()
    assert f"cannot be written: {why}; it is in {elsewhere} instead" in sandbox.stderr()
    return str(json.loads(elsewhere.read_text())["outcome"])


def test_a_quota_that_is_used_up_is_the_cause_and_the_report_goes_elsewhere(
    sandbox: Sandbox, quota: HangingMount, who: str, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "quota used up",
        "a FUSE file system under cache, state and report answers EDQUOT from mid-run on",
        "the generator's exit code; the cause names the quota; the whole report in the temporary directory",
    )
    temporary, report = sandbox.mkdir("tmp"), sandbox.root / "mount" / "report.json"
    sandbox.more_env = {"XDG_STATE_HOME": str(sandbox.root / "mount" / "state"), "TMPDIR": str(temporary)}
    process = sandbox.guarded(writer(sandbox, 5000), "--report", str(report), window="20s")
    wait_written(sandbox, process.pid)
    quota.signal(signal.SIGALRM)
    assert process.wait(60) == 1, sandbox.stderr()
    assert "Disk quota exceeded" in sandbox.stderr()
    assert kept_elsewhere(temporary, sandbox, "Disk quota exceeded") == "failed"
    (elsewhere,) = temporary.iterdir()
    category = json.loads(elsewhere.read_text())["diagnosis"]["category"]
    assert category == "quota_exceeded"
    row.measured.append((who, f"exit 1, `{category}`, report kept elsewhere"))


def make_read_only(sandbox: Sandbox, pid: int, name: str) -> None:
    """Remount, in a process's own namespace; refused while a file is open for writing."""
    argv = ["nsenter", "-t", str(pid), "-m", "mount", "-o", "remount,ro", str(sandbox.root / name)]
    until(lambda: subprocess.run(argv, check=False, capture_output=True).returncode == 0, 20, "it is remounted")


@pytest.mark.parametrize("ends", [True, False], ids=["ends of it", "tries again in silence"])
def test_a_cache_that_becomes_read_only_is_the_cause(ends: bool, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "cache read-only in mid-run",
        "its tmpfs is remounted `ro`; one generator ends of it, one tries again and says nothing",
        "exit code of its own, or stalled; `read_only_filesystem`",
    )
    small_disk(sandbox, "mount", "size=64m")
    sandbox.cache_name = "mount/cache"
    command = writer(sandbox, 5000)
    command[4] = WRITER.replace(".01", ".2")  # most of the time no file is open for writing, as a remount needs it
    if not ends:
        command[4] = command[4].replace(" open(", " try: open(").replace("; time", "\n except OSError: 0\n time")
    process = sandbox.guarded(command, window="3s")
    wait_written(sandbox, process.pid)
    make_read_only(sandbox, process.pid, "mount")
    assert process.wait(60) == (1 if ends else 124), sandbox.stderr()
    report = sandbox.report()
    assert report["outcome"] == ("failed" if ends else "stalled")
    assert report["diagnosis"]["category"] == "read_only_filesystem"
    assert "read-only" in report["message"]
    row.measured.append((who, f"{report['outcome']}, {report['diagnosis']['confidence']}"))


@pytest.mark.parametrize("ending", ["3", "stall"])
def test_a_report_whose_disk_becomes_read_only_goes_elsewhere(
    ending: str, sandbox: Sandbox, who: str, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "report's disk read-only in mid-run",
        "its tmpfs is remounted `ro`",
        "the run's own exit status; one sentence names the whole report in the temporary directory",
    )
    small_disk(sandbox, "reports", "size=4m")
    temporary, path = sandbox.mkdir("tmp"), sandbox.root / "reports" / "report.json"
    sandbox.more_env = {"TMPDIR": str(temporary)}
    go = sandbox.root / "out" / "go"
    script = 'head -c 20000 /dev/urandom > "$0/f"; while [ ! -e "$1" ]; do sleep 0.1; done; exit 3'
    tag, command = sandbox.tree("plain", writes=3)
    if ending == "3":
        command = ["sh", "-c", script, str(sandbox.cache), str(go)]
    process = sandbox.guarded(command, "--report", str(path), window="20s" if ending == "3" else "3s")
    until(lambda: sandbox.cache.exists() and any(sandbox.cache.iterdir()), 30, "the generator writes")
    make_read_only(sandbox, process.pid, "reports")
    go.touch()
    assert process.wait(60) == (3 if ending == "3" else 124), sandbox.stderr()
    assert living(tag) == []
    outcome = kept_elsewhere(temporary, sandbox, "Read-only file system")
    assert outcome == ("failed" if ending == "3" else "stalled")
    row.measured.append((who, f"{outcome}, report kept elsewhere"))
