"""The probe on real directories, and fio's own reports: what is measured, refused, doubted, and always cleaned up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from prefect_cachewatch.capacity.planfile import read_storage
from prefect_cachewatch.capacity.probe.checks import Level, doubts
from prefect_cachewatch.capacity.probe.fio import profile_from_fio
from prefect_cachewatch.capacity.probe.measure import ProbeReport, ProbeSettings, check_probe, run_probe
from prefect_cachewatch.capacity.probe.profile import profile_from_report, profile_yaml, write_atomically
from prefect_cachewatch.capacity.probe.target import (
    SCRATCH_PREFIX,
    ProbeTarget,
    inspect_target,
    scratch_directory,
    size_budget,
)
from prefect_cachewatch.cli.main import main
from prefect_cachewatch.errors import InputError

MIB = 2**20


def quick(**changes: Any) -> ProbeSettings:
    return ProbeSettings(**{"max_concurrency": 2, "size_bytes": 16 * MIB, "time_s": 8, "keep_free": 0} | changes)


def probe(directory: Path, **changes: Any) -> ProbeReport:
    settings = quick(**changes)
    return run_probe(check_probe(directory, settings), settings)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
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


def test_every_phase_is_measured_with_every_number_of_streams_and_nothing_is_left(tmp_path: Path) -> None:
    said: list[str] = []
    settings = quick(time_s=20, max_concurrency=2)
    stop = Event()
    report = run_probe(check_probe(tmp_path, settings), settings, stop, said.append)
    assert {(level.phase, level.n) for level in report.levels} == {
        (phase, n) for phase in ("write", "read", "random_read", "files") for n in (1, 2)
    }
    assert all(len(level.rates) == 3 and level.rate > 0 and level.latency_s > 0 for level in report.levels)
    assert (report.stopped, said[0], len(said)) == ("", "1 of 8: fresh writes, n = 1", 8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_ends_the_probe_its_directory_goes(tmp_path: Path, error: type[BaseException]) -> None:
    def say(text: str) -> None:
        if text.startswith("4 of"):
            assert [path.name.startswith(SCRATCH_PREFIX) for path in tmp_path.iterdir()] == [True]
            raise error

    with pytest.raises(error):
        run_probe(check_probe(tmp_path, quick()), quick(), say=say)
    assert list(tmp_path.iterdir()) == []


def test_what_the_time_allowed_is_kept_and_the_rest_is_named(tmp_path: Path) -> None:
    report = probe(tmp_path, time_s=1, max_concurrency=64, size_bytes=128 * MIB)
    assert report.cause == "time"
    assert "within the time" in report.stopped or "was up at n = " in report.stopped
    assert report.levels


def test_a_file_system_that_fills_up_meanwhile_ends_the_probe_and_keeps_its_figures(small_tmpfs: Path) -> None:
    own, settings = small_tmpfs / "own", quick(size_bytes=24 * MIB)

    def say(text: str) -> None:
        if text.startswith("5 of"):  # one stream is measured: now someone else fills the disk
            with open(small_tmpfs / "filler", "wb") as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(64 * 1024))
                    file.flush()

    report = run_probe(check_probe(own, settings), settings, say=say)
    assert report.cause == "storage"
    assert report.stopped == f"{own} is full, by space, inodes or quota: make room, then probe again"
    assert {level.phase for level in report.levels if level.n == 1} == {"write", "read", "random_read", "files"}
    assert list(own.iterdir()) == []


def test_memory_is_probed_and_said_to_be_memory(small_tmpfs: Path) -> None:
    assert probe(small_tmpfs / "own").notes[0].startswith("tmpfs is memory")


def test_a_full_file_system_is_refused(small_tmpfs: Path) -> None:
    (small_tmpfs / "filler").write_bytes(bytes(40 * MIB))
    with pytest.raises(
        InputError, match=r"own is too full to probe: .* free, of which 2\.52 MB \(5% of the file system\)"
    ):
        probe(small_tmpfs / "own", keep_free=0.05)


def test_a_read_only_file_system_and_the_root_of_one_are_refused(small_tmpfs: Path) -> None:
    with pytest.raises(
        InputError, match=r"is the root of a mounted file system \(tmpfs\): make a directory of your own"
    ):
        probe(small_tmpfs)
    subprocess.run(["mount", "-o", "remount,ro", small_tmpfs], check=True)
    with pytest.raises(InputError, match="own is on a read-only file system"):
        probe(small_tmpfs / "own")


def mounts(tmp_path: Path, filesystem: str, point: Path) -> Path:
    table = tmp_path / "mountinfo"
    escaped = str(point).replace(" ", "\\040")
    table.write_text(
        f"22 1 0:1 / / rw - ext4 /dev/a rw\n23 22 0:2 / {escaped} rw shared:1 - {filesystem} server:/x rw\n"
    )
    return table


def test_the_root_of_a_network_file_system_is_refused_by_the_kernels_table(tmp_path: Path) -> None:
    point = tmp_path / "my share"
    point.mkdir()
    with pytest.raises(InputError, match=r"my share is the root of a mounted network file system \(nfs4\)"):
        inspect_target(point, mounts(tmp_path, "nfs4", point))


def test_a_network_file_system_is_probed_only_when_that_is_said_to_be_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "share" / "own"
    own.mkdir(parents=True)
    target = inspect_target(own, mounts(tmp_path, "nfs4", tmp_path / "share"))
    assert target.is_network
    monkeypatch.setattr("prefect_cachewatch.capacity.probe.measure.inspect_target", lambda path: target)
    with pytest.raises(InputError, match=r"network file system \(nfs4\), and a probe slows everyone .* --network-ok"):
        check_probe(own, quick())
    assert check_probe(own, quick(network_ok=True)) == target


def test_the_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="is your home directory: make a directory of your own in it"):
        inspect_target(tmp_path)


def test_the_space_asked_for_is_cut_to_what_may_be_used(tmp_path: Path) -> None:
    target = ProbeTarget(Path("/x"), "ext4", total_bytes=1000 * MIB, free_bytes=150 * MIB)
    assert size_budget(target, 512 * MIB, 0.05) == 100 * MIB
    assert size_budget(target, 64 * MIB, 0.05) == 64 * MIB
    with pytest.raises(InputError, match="too full to probe"):
        size_budget(target, 512 * MIB, 0.14)
    with pytest.raises(InputError, match="64 streams need 128 MiB"):
        check_probe(tmp_path, quick(max_concurrency=64))


def test_what_a_killed_probe_left_behind_is_named_and_not_touched(tmp_path: Path) -> None:
    left = tmp_path / f"{SCRATCH_PREFIX}4711-abc"
    left.mkdir()
    assert (
        f"an earlier probe left {left} behind: delete it if no probe runs there now" in probe(tmp_path, time_s=1).notes
    )
    assert list(tmp_path.iterdir()) == [left]


def test_a_directory_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("prefect_cachewatch.capacity.probe.target.remove_path", lambda *args: None)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with scratch_directory(inspect_target(tmp_path), said.append) as scratch:
        pass
    assert said == [f"the probe's own directory could not be removed: delete {scratch} by hand"]


def level(phase: Any, n: int, *rates: float, in_flight: float | None = None) -> Level:
    return Level(phase, n, rates, 0.001, n if in_flight is None else in_flight)


@pytest.mark.parametrize(
    ("levels", "direct", "told"),
    [
        ([], True, []),
        ([level("write", 1, 100), level("read", 1, 290)], True, []),
        ([level("write", 1, 1e8), level("read", 1, 301e6)], True, ["reads reach 301 MB/s, 3.01 times the fresh writes"]),
        ([level("random_read", 2, 100, 130, 160)], True, ["random reads at n = 2 got 1.6 times faster", "repetitions differ"]),
        ([level("write", 8, 100, 150)], True, ["repetitions differ by up to 40% (fresh writes, n = 8): the storage is busy"]),
        ([level("write", 4, 100, in_flight=3)], True, ["throughput times latency is 3 where n = 4 (fresh writes)"]),
        ([], False, ["ext4 does not open files with O_DIRECT: reads may come from this machine's page cache"]),
    ],
)  # fmt: skip
def test_what_makes_figures_doubtful_is_named(levels: list[Level], direct: bool, told: list[str]) -> None:
    found = list(doubts(levels, "ext4", direct=direct, memory=False))
    assert len(found) == len(told)
    assert all(sentence.startswith(start) for sentence, start in zip(found, told, strict=True))


def test_a_profile_written_is_the_profile_read(tmp_path: Path) -> None:
    disk, path = tmp_path / "disk", tmp_path / "storage.yaml"
    disk.mkdir()
    profile = profile_from_report(probe(disk, time_s=20), "nfs a")
    assert (profile.basis, profile.write and profile.write.measured_n) == ("measured", 2)
    assert profile.small_file_s and profile.files_per_s
    write_atomically(path, profile_yaml(profile))
    assert read_storage(path).write == profile.write
    with pytest.raises(InputError, match=r"cannot be written .* name another file with --output"):
        write_atomically(tmp_path / "no" / "storage.yaml", "x")


def fio_file(tmp_path: Path, name: str, jobs: list[dict[str, Any]], head: str = "", **options: str) -> Path:
    path = tmp_path / name
    path.write_text(head + json.dumps({"fio version": "fio-3.33", "global options": options, "jobs": jobs}))
    return path


def fio_job(rw: str, n: int, size: int, runtime_ms: int, error: int = 0, **options: str) -> dict[str, Any]:
    side = {"io_bytes": size, "runtime": runtime_ms}
    job = {"rw": rw, "numjobs": str(n), "direct": "1"} | options
    return {"jobname": rw, "groupid": 0, "error": error, "job options": job, "read": side, "write": side}


def test_what_a_person_measured_with_fio_is_a_profile(tmp_path: Path) -> None:
    one = fio_file(tmp_path, "1.json", [fio_job("write", 1, 100_000_000, 1000)], head="fio: a warning first\n")
    again = fio_file(tmp_path, "1b.json", [fio_job("write", 1, 120_000_000, 1000)])
    # Without group_reporting there is one entry for each of the four jobs; the slowest one's time counts.
    four = fio_file(tmp_path, "4.json", [fio_job("write", 4, 50_000_000, 900 + 50 * i) for i in range(3)])
    deep = fio_file(
        tmp_path,
        "r.json",
        [fio_job("randread", 1, 10_000, 10), fio_job("randread", 1, 40_000, 10, iodepth="4") | {"groupid": 1}],
    )
    profile = profile_from_fio([one, again, four, deep], "nfs-a")
    assert profile.write is not None and profile.random_read is not None
    assert [(p.n, p.bytes_per_s, p.spread) for p in profile.write.points] == [(1, 1.1e8, 0.182), (4, 1.5e8, 0.0)]
    assert [(p.n, p.bytes_per_s) for p in profile.random_read.points] == [(1, 1e6), (4, 4e6)]
    assert (profile.basis, profile.read, profile.notes) == ("measured", None, [])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not JSON of fio"), ("{}", "not the report of a whole run"),
        ('{"jobs": []}', "not the report of a whole run"),
        ('{"jobs": [{"error": 0}]}', "not the report of a whole run"),
        (json.dumps({"jobs": [fio_job("write", 1, 5, 900, error=28)]}), "fio itself reports error 28"),
        (json.dumps({"jobs": [fio_job("write", 1, 0, 900)]}), "moved nothing that can be"),
        (json.dumps({"jobs": [fio_job("rw", 1, 5, 900)]}), "rw=rw is no curve of a plan"),
        (json.dumps({"jobs": [fio_job("write", 2, 5, 900)]}), "no run of fio has numjobs=1 for write"),
    ],
)  # fmt: skip
def test_what_fio_did_not_measure_is_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "fio.json"
    path.write_text(text)
    with pytest.raises(InputError, match=told) as caught:
        profile_from_fio([path], "x")
    assert "\n" not in caught.value.message


def cachewatch(*words: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "prefect_cachewatch.cli.main", *map(str, words)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path


def test_the_command_writes_a_profile_and_a_table_that_fits_the_terminal(place: Path) -> None:
    run = cachewatch(
        "probe", "../disk", "--size", "32MiB", "--time", "15s", "--max-concurrency", "2", "--name", "nfs a",
        "--keep-free", "0", cwd=place / "out",
    )  # fmt: skip
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert "Profile of nfs a written to storage-nfs-a.yaml" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert "Whoever shares" in err.replace("\n", " ")
    assert "1 of 8: fresh writes, n = 1" in err
    assert read_storage(place / "out" / "storage-nfs-a.yaml").name == "nfs a"
    assert [path.name for path in (place / "out").iterdir()] == ["storage-nfs-a.yaml"]
    assert list((place / "disk").iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_was_measured_marked_as_partial(place: Path, number: int, status: int) -> None:
    good = place / "out" / "storage-disk.yaml"
    good.write_text("# Storage profile of last week\nname: disk\n")
    run = cachewatch(
        "probe",
        "../disk",
        "--size",
        "128MiB",
        "--time",
        "10m",
        "--max-concurrency",
        "64",
        "--keep-free",
        "0",
        cwd=place / "out",
    )
    assert run.stderr is not None
    for line in run.stderr:
        if "random reads, n = 1" in line:  # each repetition of it takes seconds
            run.send_signal(number)
            break
    out, err = run.communicate(timeout=120)
    assert run.returncode == status, err
    assert "Traceback" not in err
    partial = read_storage(place / "out" / "storage-disk.partial.yaml")
    assert "partial: it was interrupted" in partial.notes
    assert "partial: it was interrupted" in out
    assert good.read_text().startswith("# Storage profile of last week")
    assert list((place / "disk").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a directory to measure, or the JSON of fio"),
        (["/"], "/ is the root directory"),
        (["nowhere"], "nowhere cannot be probed"),
        (["../disk", "--size", "1 furlong"], "is not a size"),
        (["../disk", "--keep-free", "120%"], "is not a share"),
        (["../disk", "-o", "mine.txt"], "mine.txt exists and is no profile"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_touched(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
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
