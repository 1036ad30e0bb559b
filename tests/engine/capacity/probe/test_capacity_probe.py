"""The probe on real directories: what it measures, refuses, and always cleans up."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Timer

import psutil
import pytest

from prefect_cachewatch.capacity.planfile import read_storage
from prefect_cachewatch.capacity.probe.disks import Disk
from prefect_cachewatch.capacity.probe.fio import find_fio
from prefect_cachewatch.capacity.probe.profile import profile_from_report, profile_yaml, write_atomically
from prefect_cachewatch.capacity.probe.report import ProbeSettings
from prefect_cachewatch.capacity.probe.run import run_probe
from prefect_cachewatch.capacity.probe.target import (
    SCRATCH_PREFIX,
    ProbeTarget,
    inspect_target,
    scratch_directory,
    size_budget,
)
from prefect_cachewatch.cli.main import main
from prefect_cachewatch.errors import InputError

ENGINES = ["direct", pytest.param("fio", marks=pytest.mark.skipif(not find_fio(), reason="fio is not installed"))]
MIB = 2**20


def quick(**changes):
    return ProbeSettings(
        **{"max_concurrency": 2, "size_bytes": 32 * MIB, "time_s": 150, "run_s": 0.15, "keep_free": 0} | changes
    )


@pytest.fixture
def small_tmpfs(tmp_path):
    """Mount a tmpfs of 48 MiB, with a directory of the user's own in it."""
    point = tmp_path / "mount"
    point.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        (point / "own").mkdir()
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ENGINES)
def test_every_phase_is_measured_at_every_concurrency_and_nothing_is_left(tmp_path, engine):
    saved = []
    report = run_probe(tmp_path, quick(engine=engine), on_level=saved.append)
    measured = {(level.phase, level.concurrency): level for level in report.levels}
    assert set(measured) == {(p, n) for p in ("write", "read", "random_read", "metadata") for n in (1, 2)}
    assert all(level.repetitions == 3 for level in measured.values())
    assert all(level.rate_bytes_per_s > 0 and level.mean_latency_s > 0 for level in measured.values())
    # More than n cannot be in flight; less happens when streams end apart on a fast disk.
    assert all(level.in_flight <= level.concurrency * 1.1 for level in measured.values())
    assert report.stopped is None
    assert [len(part.samples) for part in saved] == [12, 24]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ENGINES)
def test_a_probe_that_is_stopped_ends_soon_keeps_its_figures_and_cleans_up(tmp_path, engine):
    stop = Event()
    steps = []

    def progress(step):
        steps.append(step)
        if step.done == 7:  # within the second phase or later; the rest would take minutes
            Timer(0.2, stop.set).start()

    before_s = time.monotonic()
    report = run_probe(
        tmp_path,
        quick(engine=engine, time_s=600, run_s=1, max_concurrency=8, size_bytes=16 * MIB),
        stop=stop,
        on_progress=progress,
    )
    assert report.stop_cause == "interrupted"
    assert len(report.samples) >= 7
    assert time.monotonic() - before_s < 90
    assert list(tmp_path.iterdir()) == []
    assert not [child for child in psutil.Process().children(recursive=True) if child.name() == "fio"]


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_ends_the_probe_its_directory_goes(tmp_path, engine, error):
    def progress(step):
        if step.done == 4:
            assert [path.name.startswith(SCRATCH_PREFIX) for path in tmp_path.iterdir()] == [True]
            raise error

    with pytest.raises(error):
        run_probe(tmp_path, quick(engine=engine), on_progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_what_the_time_allowed_is_kept_and_the_rest_is_named(tmp_path):
    report = run_probe(tmp_path, quick(engine="direct", time_s=1, max_concurrency=256))
    assert report.stop_cause == "time"
    assert report.stopped.startswith("the time of 1 s was up at n = ")
    assert report.samples
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_fills_up_meanwhile_ends_the_probe_and_keeps_its_figures(small_tmpfs):
    own = small_tmpfs / "own"

    def progress(step):
        if step.done == 13:  # the first concurrency is measured: now someone else fills the disk
            with open(small_tmpfs / "filler", "wb") as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(64 * 1024))
                    file.flush()

    report = run_probe(own, quick(engine="direct"), on_progress=progress)
    assert report.stop_cause == "storage"
    assert report.stopped == f"{own} is full, by space, inodes or quota: make room, then probe again"
    assert {level.phase for level in report.levels if level.concurrency == 1} == {
        "write", "read", "random_read", "metadata",
    }  # fmt: skip
    assert list(own.iterdir()) == []


def test_memory_is_probed_and_said_to_be_memory(small_tmpfs):
    report = run_probe(small_tmpfs / "own", quick(engine="direct", size_bytes=16 * MIB))
    assert report.notes[0].startswith("tmpfs is memory")


def test_a_full_file_system_is_refused(small_tmpfs):
    (small_tmpfs / "filler").write_bytes(bytes(40 * MIB))
    with pytest.raises(
        InputError, match=r"own is too full to probe: .* free, of which 2\.40 MiB \(5% of the file system\)"
    ):
        run_probe(small_tmpfs / "own", quick(keep_free=0.05))


def test_a_read_only_file_system_is_refused(small_tmpfs):
    subprocess.run(["mount", "-o", "remount,ro", small_tmpfs], check=True)
    with pytest.raises(InputError, match="own is on a read-only file system"):
        run_probe(small_tmpfs / "own", quick())


def test_the_root_of_a_mounted_file_system_is_refused(small_tmpfs):
    with pytest.raises(
        InputError, match=r"is the root of a mounted file system \(tmpfs\): make a directory of your own"
    ):
        run_probe(small_tmpfs, quick())


def mounts(tmp_path, filesystem, point):
    table = tmp_path / "mountinfo"
    escaped = str(point).replace(" ", "\\040")
    table.write_text(
        f"22 1 0:1 / / rw - ext4 /dev/a rw\n23 22 0:2 / {escaped} rw shared:1 - {filesystem} server:/x rw\n"
    )
    return table


def test_the_root_of_a_network_file_system_is_refused_by_the_kernels_table(tmp_path):
    point = tmp_path / "my share"
    point.mkdir()
    with pytest.raises(InputError, match=r"my share is the root of a mounted network file system \(nfs4\)"):
        inspect_target(point, mounts(tmp_path, "nfs4", point))


def test_a_network_file_system_is_probed_only_when_that_is_said_to_be_fine(tmp_path):
    own = tmp_path / "share" / "own"
    own.mkdir(parents=True)
    target = inspect_target(own, mounts(tmp_path, "nfs4", tmp_path / "share"))
    assert target.is_network
    with pytest.raises(InputError, match=r"network file system \(nfs4\), and a probe slows everyone .* --network-ok"):
        run_probe(own, quick(), target=target)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", "/ is the root directory"),
        ("/nonexistent/x", "/nonexistent/x does not exist"),
        ("/etc/passwd", "/etc/passwd is not a directory"),
    ],
)
def test_a_directory_that_cannot_be_probed_is_one_sentence(path, said):
    with pytest.raises(InputError, match=said) as caught:
        run_probe(Path(path), quick())
    assert "\n" not in caught.value.message


def test_the_home_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="is your home directory: make a directory of your own in it"):
        inspect_target(tmp_path)


def test_the_space_asked_for_is_cut_to_what_may_be_used():
    target = ProbeTarget(Path("/x"), "ext4", total_bytes=1000 * MIB, free_bytes=150 * MIB)
    assert size_budget(target, 512 * MIB, 0.05) == 100 * MIB
    assert size_budget(target, 64 * MIB, 0.05) == 64 * MIB
    with pytest.raises(InputError, match="too full to probe"):
        size_budget(target, 512 * MIB, 0.14)


def test_what_a_killed_probe_left_behind_is_named_and_not_touched(tmp_path):
    left = tmp_path / f"{SCRATCH_PREFIX}4711-abc"
    left.mkdir()
    report = run_probe(tmp_path, quick(engine="direct", time_s=1))
    assert f"an earlier probe left {left} behind: delete it if no probe runs there now" in report.notes
    assert list(tmp_path.iterdir()) == [left]


def test_fio_that_is_asked_for_and_missing_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="fio is not installed: apt install fio, or use --engine direct"):
        run_probe(tmp_path, quick(engine="fio"))
    assert list(tmp_path.iterdir()) == []


def test_without_fio_the_probes_own_engine_measures(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_probe(tmp_path, quick(time_s=1)).engine == "the probe's own O_DIRECT engine"


def test_a_fio_that_fails_is_told_in_its_own_words(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    fake = tmp_path / "fio"
    fake.write_text('#!/bin/sh\ntest "$1" = --version && echo fio-9.9 && exit 0\necho "bad option <x>" >&2\nexit 3\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Exception, match="fio failed with exit code 3: bad option <x>"):
        run_probe(own, quick(engine="fio"))
    assert list(own.iterdir()) == []


def test_a_directory_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("prefect_cachewatch.capacity.probe.target.remove_path", lambda *args: None)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with scratch_directory(inspect_target(tmp_path), said.append) as scratch:
        pass
    assert said == [f"the probe's own directory could not be removed: delete {scratch} by hand"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return run_probe(tmp_path_factory.mktemp("disk"), quick(engine="direct"))


def test_a_profile_written_is_the_profile_read(tmp_path, report):
    profile = profile_from_report(report, "nfs a")
    assert profile.through == report.target.through
    for changed, through, shared in (
        ({"filesystem": "nfs4"}, "network", True),
        ({"disk": Disk(True, network="iSCSI (sdb)")}, "network", False),
        ({"disk": Disk(True)}, "local", False),
        ({"disk": Disk(True, virtual=True)}, None, False),
        ({"disk": Disk()}, None, False),
    ):
        elsewhere = profile_from_report(replace(report, target=replace(report.target, **changed)), "x")
        assert (elsewhere.through, elsewhere.contains_link, elsewhere.shared) == (through, through == "network", shared)
    assert profile.basis == "measured"
    assert profile.measured_n == 2
    assert profile.small_file_s > 0
    path = tmp_path / "storage.yaml"
    write_atomically(path, profile_yaml(profile))
    assert read_storage(path) == profile
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_probe_of_one_concurrency_promises_no_more_for_many(report):
    part = replace(report, samples=report.samples[:12], stopped="it was interrupted")
    first = profile_from_report(part, "x")
    assert first.sequential_write.aggregate_bytes_per_s == first.sequential_write.per_stream_bytes_per_s
    assert first.measured_n is None
    assert first.notes[0].startswith("measured at n = 1 only")
    assert first.notes[1] == "partial: it was interrupted"


def test_nothing_measured_is_no_profile(report):
    with pytest.raises(InputError, match="nothing was measured"):
        profile_from_report(replace(report, samples=()), "x")


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    path = tmp_path / "full" / "storage.yaml"
    with pytest.raises(InputError, match=r"cannot be written .* name another file with --output"):
        write_atomically(path, "x")
    old = tmp_path / "old.yaml"
    old.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(old, "\udcff")
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old.yaml"]


def cachewatch(*words, cwd, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "prefect_cachewatch.cli.main", *map(str, words)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


@pytest.fixture
def place(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path


def test_the_command_writes_a_profile_and_a_table_that_fits_the_terminal(place):
    run = cachewatch(
        "probe", "../disk", "--size", "32MiB", "--time", "12s", "--max-concurrency", "2", "--name", "nfs a",
        "--keep-free", "0", "--engine", "direct", cwd=place / "out",
    )  # fmt: skip
    out, err = run.communicate(timeout=120)
    assert (run.returncode, (place / "disk").exists()) == (0, True)
    assert "Profile of nfs a written to storage-nfs-a.yaml" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert "Whoever shares" in err.replace("\n", " ")
    assert "[0/24] n = 1, fresh writes" in err
    assert "\x1b" not in out + err
    assert read_storage(place / "out" / "storage-nfs-a.yaml").name == "nfs a"
    assert [path.name for path in (place / "out").iterdir()] == ["storage-nfs-a.yaml"]
    assert list((place / "disk").iterdir()) == []


def test_on_a_terminal_a_bar_shows_how_far_it_is(place):
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "prefect_cachewatch.cli.main", "probe", "../disk", "--size", "16MiB", "--time", "3s",
         "--max-concurrency", "2", "--keep-free", "0", "--engine", "direct"],
        cwd=place / "out", stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the terminal's other end is closed
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    assert run.communicate(timeout=60)[0].decode().count("storage-disk.yaml") == 1
    assert run.returncode == 0
    assert re.search(rb"\d+/24 n = \d, ", seen)
    assert b"Traceback" not in seen


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_was_measured_marked_as_partial(place, engine, number, status):
    good = place / "out" / "storage-disk.yaml"
    good.write_text("# Storage profile of last week\nname: disk\n")
    run = cachewatch(
        "probe", "../disk", "--size", "16MiB", "--time", "60s", "--max-concurrency", "64", "--keep-free", "0",
        "--engine", engine, cwd=place / "out",
    )  # fmt: skip
    seen = []
    for line in run.stderr:
        seen.append(line)
        if "n = 2, fresh writes" in line:
            run.send_signal(number)
            break
    out, err = run.communicate(timeout=60)
    assert run.returncode == status, seen
    assert "Traceback" not in err
    partial = read_storage(place / "out" / "storage-disk.partial.yaml")
    assert any(note == "partial: it was interrupted" for note in partial.notes)
    assert "partial: it was interrupted" in out
    assert good.read_text().startswith("# Storage profile of last week")
    assert list((place / "disk").iterdir()) == []


READ_FOR_MINUTES = """
import sys
from pathlib import Path
from threading import Event
from prefect_cachewatch.capacity.probe.checks import Repetition
from prefect_cachewatch.capacity.probe.direct import lay_out
from prefect_cachewatch.capacity.probe.fio import FioEngine, find_fio

place, stop = Path(sys.argv[1]), Event()
lay_out(place, 1, 2**20, direct=True, stop=stop, time_s=60)
engine = FioEngine(find_fio(), direct=True, stop=stop)
engine.run(Repetition("random_read", place, streams=1, stream_bytes=2**20, block_bytes=4096, time_s=120))
"""


def command_line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.skipif(not find_fio(), reason="fio is not installed")
def test_fio_does_not_outlive_a_probe_that_was_killed(tmp_path):
    probe = subprocess.Popen([sys.executable, "-c", READ_FOR_MINUTES, tmp_path])
    fios = []
    deadline_s = time.monotonic() + 60
    while not fios and time.monotonic() < deadline_s:
        # The one that asks for fio's version is gone at once, and is not the one meant.
        fios = [child for child in psutil.Process(probe.pid).children() if "--thread" in command_line(child)]
    probe.kill()
    probe.wait(60)
    assert fios
    _, alive = psutil.wait_procs(fios, timeout=20)
    for fio in alive:
        fio.kill()
    assert alive == []


@pytest.mark.campaign
def test_even_a_killed_probe_leaves_the_concurrencies_it_had_measured(place):
    run = cachewatch(
        "probe", "../disk", "--size", "16MiB", "--time", "60s", "--max-concurrency", "64", "--keep-free", "0",
        "--engine", "direct", cwd=place / "out",
    )  # fmt: skip
    for line in run.stderr:
        if "n = 2, fresh writes" in line:
            run.kill()
            break
    run.communicate(timeout=60)
    partial = read_storage(place / "out" / "storage-disk.partial.yaml")
    assert partial.sequential_write.per_stream_bytes_per_s > 0
    assert "partial: the probe was still running when this was written" in partial.notes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/"], "/ is the root directory"),
        (["nowhere"], "nowhere does not exist"),
        (["../disk", "--size", "1 furlong"], "is not a size"),
        (["../disk", "--size", "1KiB"], "--size 1.00 KiB is out of range: give at least 16.0 MiB"),
        (["../disk", "--time", "soon"], "is not a duration"),
        (["../disk", "--time", "10ms"], "--time 0 s is out of range: give at least 1 s"),
        (["../disk", "--keep-free", "120%"], "is not a share"),
        (["../disk", "--repetitions", "1"], "1 is not in the range 3<=x<=50"),
        (["../disk", "--level", "3"], "--level belongs to a codec"),
        (["../disk", "-o", "/nonexistent/x.yaml"], "/nonexistent does not exist"),
        (["../disk", "-o", "."], ". is a directory"),
        (["../disk", "-o", "mine.txt"], "mine.txt exists and is no profile"),
        (["../disk", "--name", ""], "--name"),
        (["--codec", "zstd", "nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_touched(place, monkeypatch, capsys, words, said):
    (place / "out" / "mine.txt").write_text("my notes\n")
    monkeypatch.chdir(place / "out")
    with pytest.raises(SystemExit) as caught:
        main(["probe", *words])
    out, err = capsys.readouterr()
    assert caught.value.code == 125
    assert said in err
    assert err.startswith("cachewatch: ")
    assert err.count("\n") == 1
    assert out == ""
    assert (place / "out" / "mine.txt").read_text() == "my notes\n"
    assert list((place / "disk").iterdir()) == []


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
