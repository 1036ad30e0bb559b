"""The scan process: answers, deadlines, death, and a file system that never answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from prefect_cachewatch.errors import CacheDirectoryBusy, CacheDirectoryError, ScanError, ScanTimeout
from prefect_cachewatch.measure import scanner as scanner_module
from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.watching.site import CacheDirectories
from support import PATIENCE_S, eventually, exec_argv, needs_root, unavailable

HERE = Path(__file__).parent


@pytest.fixture
def scanner():
    made = DirectoryScanner()
    yield made
    made.close()


def _state(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2]


def test_a_real_sparse_file_is_followed_by_its_blocks(scanner, tmp_path):
    scanner.request("begin", roots=[str(tmp_path)], ignore=[])
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        made = scanner.request("scan")["growth"]
        assert made["bytes_written"] == 64 << 20
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        filled = scanner.request("scan")["growth"]
    assert filled["bytes_written"] == 64 << 20
    assert filled["allocated_written"] - made["allocated_written"] >= 1 << 20
    assert filled["last_path"] == str(tmp_path / "sparse")


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
            scanner.request("scan", 0.2)
    finally:
        os.kill(scanner.pid, signal.SIGCONT)
    assert scanner.receive(PATIENCE_S)["scan"] == 1
    assert scanner.request("scan", PATIENCE_S)["scan"] == 2


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
    assert _state(pid) in "SR"
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}") or _state(pid) in "ZX")


def test_the_scan_process_keeps_no_descriptor_on_the_tree(scanner, tmp_path):
    (tmp_path / "d").mkdir()
    scanner.request("begin", roots=[str(tmp_path)], ignore=[])
    links = [os.readlink(f"/proc/{scanner.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{scanner.pid}/fd")]
    assert [link for link in links if link.startswith(str(tmp_path))] == []
    assert os.readlink(f"/proc/{scanner.pid}/cwd") == "/"


def test_clean_removes_what_the_job_wrote_and_nothing_else(scanner, tmp_path):
    root, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    (root / "kept").mkdir(parents=True)
    (root / "kept/before").write_bytes(b"x" * 10)
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"x")
    scanner.request("begin", roots=[str(root)], ignore=["*.log"])
    scanner.request("remember")
    (root / "kept/new").write_bytes(b"x" * 20)
    (root / "made/deep").mkdir(parents=True)
    (root / "made/deep/f").write_bytes(b"x" * 30)
    (root / "made/link").symlink_to(elsewhere)
    (root / "before-renamed").hardlink_to(root / "kept/before")
    scanner.request("sight")
    answer = scanner.request("clean", PATIENCE_S)
    assert (answer["removed"], answer["problems"]) == (2, [])
    assert (root / "kept/before").read_bytes() == b"x" * 10
    assert (elsewhere / "precious").exists()
    assert not (root / "kept/new").exists()
    assert not (root / "made/deep").exists()


# The pre-flight


@pytest.mark.parametrize(("first", "second", "how"), [("c", "c/below/it", "lies in"), ("c/below/it", "c", "holds")])
def test_a_job_in_a_directory_above_or_below_anothers_is_refused(tmp_path, first, second, how):
    (tmp_path / "link").symlink_to(tmp_path)
    with CacheDirectories([tmp_path / first], lock=True):
        for path in (tmp_path / second, tmp_path / "link" / second):
            with pytest.raises(CacheDirectoryBusy, match=f"{how} .*, which is in use by another job") as error:
                CacheDirectories([path])
            assert error.value.data["holder_pid"] == os.getpid()
        CacheDirectories([tmp_path / "beside"]).close()
    CacheDirectories([tmp_path / second]).close()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["below", "beside", "c", "it", "link"]


def test_a_job_with_directories_in_one_another_is_no_hindrance_to_itself(tmp_path):
    with CacheDirectories([tmp_path / "c", tmp_path / "c/below"]) as site:
        assert len(site.paths) == 2


def test_a_lock_of_a_program_that_is_no_job_does_not_keep_jobs_out_below_it(tmp_path):
    held = subprocess.Popen(["flock", "-x", str(tmp_path), "sleep", "60"], start_new_session=True)
    try:
        eventually(lambda: f":{tmp_path.stat().st_ino} " in Path("/proc/locks").read_text())
        CacheDirectories([tmp_path / "c"]).close()
    finally:
        os.killpg(held.pid, signal.SIGKILL)
        held.wait()


def test_links_are_resolved_once_and_a_directory_given_twice_is_one(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to("c")
    with CacheDirectories([tmp_path / "link", tmp_path / "c", tmp_path / "c/../c"]) as site:
        assert site.paths == [str((tmp_path / "c").resolve())]
        assert len(site.lock_fds) == 1


def test_nothing_is_created_when_another_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheDirectoryError, match="is not a directory"):
        CacheDirectories([tmp_path / "new", tmp_path / "file"])
    assert not (tmp_path / "new").exists()


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
    if pid in scanner_module.abandoned:
        eventually(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)


# A file system that never answers


def in_namespace(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own, with the hanging file system on $M and its flag $FLAG."""
    needs_root("a FUSE mount")
    if not os.path.exists("/dev/fuse"):
        unavailable("there is no /dev/fuse")
    mount_point = tmp_path / "mnt"
    mount_point.mkdir()
    prepared = f"""
        {sys.executable} {HERE}/fuse_cache.py "$M" "$FLAG" || exit 99
        {script}
    """
    environ = os.environ | {"M": str(mount_point), "FLAG": str(tmp_path / "hang"), "PY": sys.executable}
    process = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", prepared],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, error = process.communicate(timeout=2 * PATIENCE_S)
    finally:
        _end_server(str(mount_point))  # aborts the connection: whoever hangs in it wakes up
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode == 99:
        unavailable(f"mounting failed: {error}")
    return subprocess.CompletedProcess([], process.returncode, out, error)


def _end_server(mount_point: str) -> None:
    for name in os.listdir("/proc"):
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
        except OSError:
            continue
        if (
            b"fuse_cache.py" in argv
            and mount_point.encode() in argv
            and b"unshare" not in argv
            and b"sh\0-c" not in argv
        ):
            os.kill(int(name), signal.SIGKILL)


@pytest.mark.campaign
def test_a_file_system_that_hangs_under_a_generator_is_its_own_verdict(tmp_path):
    report = tmp_path / "report.json"
    argv = exec_argv(
        "$M/cache", "--stall-after", "3s", "--first-write-within", "1h", "--poll", "0.5s", "--grace", "0.2s", "--no-bundle",
        "--report", report, command=["sh", "-c", '"sleep 1; touch $FLAG; sleep 100"'],
    )  # fmt: skip
    done = in_namespace(tmp_path, " ".join(argv))
    assert done.returncode == 124, done.stderr
    last = done.stderr.rstrip().rpartition("\n")[2]
    assert last.startswith("cache stalled: ")
    assert f" Tensor cache generation stalled: {tmp_path}/mnt/cache could not be measured for " in last
    assert "(the file system does not answer)." in last
    told = json.loads(report.read_text())
    assert (told["outcome"], told["stall"]["kind"], told["listing"]) == ("stalled", "filesystem_unresponsive", None)
    assert told["notes"][0] == "no listing: the cache directory does not answer"
    assert told["stop"]["survivors"] == []


def test_a_directory_that_hangs_at_the_start_is_refused_and_nothing_runs(tmp_path):
    start = tmp_path / "start.py"  # the command, with less patience than its 10 s
    start.write_text(
        "import os\n"
        "from prefect_cachewatch.watching import site\n"
        "from prefect_cachewatch.cli.main import main\n"
        "site._CHECK_TIMEOUT_S = 1.0\n"
        f"main(['exec', '--cache-dir', os.environ['M'] + '/cache', '--', 'touch', {str(tmp_path / 'ran')!r}])\n"
    )
    done = in_namespace(tmp_path, f'touch "$FLAG"; "$PY" {start}')
    assert done.returncode == 125, done.stderr
    assert done.stderr == (
        f"cachewatch: cache directory {tmp_path}/mnt/cache does not answer within 1 s: "
        "its file system hangs; check the mount\n"
    )
    assert not (tmp_path / "ran").exists()


def test_a_walk_that_runs_beside_writers_never_fails(tmp_path):
    done = threading.Event()

    def write():
        n = 0
        while not done.is_set():
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
        last = 0
        for _ in range(60):
            answer = scanner.request("scan", PATIENCE_S)
            assert answer["errors"] == []
            assert answer["growth"]["bytes_written"] >= last
            last = answer["growth"]["bytes_written"]
    finally:
        done.set()
        thread.join()
        scanner.close()
    assert last > 0
