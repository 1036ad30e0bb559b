"""`cachewatch probe` on real directories, and fio's own reports: what is measured, refused, doubted, always cleaned up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from prefect_cachewatch.capacity.inputs import StorageProfile
from prefect_cachewatch.capacity.planfile import read_storage
from prefect_cachewatch.capacity.probe.measure import ProbeSettings, run_probe
from prefect_cachewatch.capacity.probe.rates import Rates, profile_of
from prefect_cachewatch.cli.main import main
from prefect_cachewatch.errors import InputError

MIB = 2**20


def probe(directory: Path, say: Callable[[str], None] = lambda text: None, **changes: Any) -> StorageProfile | None:
    settings = ProbeSettings(**{"max_concurrency": 2, "size_bytes": 16 * MIB, "time_s": 60} | changes)
    return run_probe(directory, "disk", settings, Event(), say)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 48 MiB."""
    point = tmp_path / "mount"
    point.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is some: hundreds of calls to fsync cost nothing there."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(prefix="cachewatch-probe-", dir=where) as path:
        yield Path(path)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a disk beside it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    return tmp_path


def told(*words: object, status: int, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["probe", *map(str, words)])
    out, err = capsys.readouterr()
    assert int(caught.value.code or 0) == status, err
    return out, err


def test_every_kind_is_measured_with_every_number_of_streams_and_nothing_is_left(
    place: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--size", "16MiB", "--time", "8s", "--max-concurrency", "2", "--name", "nfs a"]
    out, err = told(memory, *words, status=0, capsys=capsys)
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert "Whoever shares" in err.replace("\n", " ")
    assert "1 of 6: fresh writes, n = 1" in err
    profile = read_storage(Path("storage-nfs-a.yaml"))
    assert (profile.name, profile.basis, profile.source.startswith("cachewatch probe, ")) == ("nfs a", "measured", True)
    for curve in (profile.write, profile.read, profile.random_read):
        assert curve is not None
        assert [point.n for point in curve.points] == [1, 2]
    assert not any(note.startswith("partial") for note in profile.notes)
    assert [path.name for path in Path.cwd().iterdir()] == ["storage-nfs-a.yaml"]
    assert list(memory.iterdir()) == []


def test_whatever_ends_the_probe_its_directory_goes(memory: Path) -> None:
    def say(text: str) -> None:
        if text.startswith("3 of"):
            assert len(list(memory.iterdir())) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(memory, say, time_s=8)
    assert list(memory.iterdir()) == []


def test_what_the_time_allowed_is_kept_and_the_rest_is_named(tmp_path: Path) -> None:
    profile = probe(tmp_path, time_s=1, max_concurrency=64, size_bytes=128 * MIB)
    assert profile is not None
    assert profile.notes[0].startswith("partial: the time of 1 s was up at n = ")


def test_signals_one_upon_another_end_it_and_leave_nothing(place: Path) -> None:
    argv = [sys.executable, "-m", "prefect_cachewatch.cli.main", "probe", "../disk", "--size", "128MiB", "--time", "10m",
            "--max-concurrency", "64"]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "random reads, n = 1" in line:  # each repetition of it takes seconds
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT, signal.SIGTERM):
                    run.send_signal(number)
                break
        out, err = run.communicate(timeout=120)
    # Of several that wait, the kernel delivers the lowest number first.
    assert run.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert (out, "Traceback" in err) == ("", False)
    assert [*(place / "disk").iterdir(), *(place / "out").iterdir()] == []


def test_a_file_system_that_fills_up_meanwhile_is_one_sentence(small_tmpfs: Path) -> None:
    def say(text: str) -> None:
        if text.startswith("1 of"):  # there was room, and now someone else fills the disk
            with open(small_tmpfs / "filler", "wb") as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(64 * 1024))
                    file.flush()

    with pytest.raises(InputError, match=r"cannot be written to \(No space left on device\): make room there"):
        probe(small_tmpfs, say, time_s=8)
    assert [path.name for path in small_tmpfs.iterdir()] == ["filler"]


def test_a_full_and_a_read_only_file_system_are_one_sentence(
    small_tmpfs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_tmpfs / "filler").write_bytes(bytes(40 * MIB))
    _, err = told(small_tmpfs, status=125, capsys=capsys)
    assert "16 streams need 32 MiB on " in err
    assert "and may have 4 MiB, half of what is free or --size: make room" in err
    (small_tmpfs / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,ro", small_tmpfs], check=True)
    _, err = told(small_tmpfs, "--size", "16MiB", "--max-concurrency", 1, status=125, capsys=capsys)
    assert err.endswith(
        f"cachewatch: {small_tmpfs} cannot be written to (Read-only file system): make room there, or name a directory on the "
        "storage that you may write to\n"
    )


def test_a_missing_permission_is_one_sentence() -> None:
    with tempfile.TemporaryDirectory() as place:  # in /tmp, which every user may enter
        os.chmod(place, 0o555)
        if (pid := os.fork()) == 0:
            status = 4
            try:
                if os.geteuid() == 0:  # who may write anywhere
                    os.setuid(65534)
                probe(Path(place))
            except InputError as error:
                status = 0 if f"{place} cannot be written to (Permission denied): " in error.message else 3
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ({"write": {1: [100.0] * 2}, "read": {1: [290.0] * 2}}, []),
        ({"write": {1: [1e8]}, "read": {1: [3e8] * 2, 4: [3e8]}},
         ["measured once, so that nothing is known of the spread: fresh writes at n = 1 and 1 more"]),
        ({"write": {1: [1e8] * 2}, "read": {1: [301e6] * 2}}, ["reads reach 301 MB/s, 3.01 times the fresh writes"]),
        ({"write": {1: [1.0] * 2, 8: [100, 150]}}, ["repetitions differ by up to 40% (fresh writes, n = 8): the storage is busy"]),
    ],
)  # fmt: skip
def test_what_makes_figures_doubtful_is_named(rates: Rates, told: list[str]) -> None:
    notes = profile_of("x", "by hand", rates, []).notes
    assert len(notes) == len(told)
    assert all(note.startswith(start) for note, start in zip(notes, told, strict=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a directory to measure, or the JSON of fio"),
        (["nowhere"], "/nowhere cannot be written to (No such file or directory)"),
        (["../disk", "--size", "1 furlong"], "is not a size"),
        (["../disk", "--size", "16MiB"], "/disk, and may have 16 MiB"),
        (["../disk", "-o", "no/x.yaml"], "no/x.yaml is a directory or in none"),
        (["../disk", "--name", "a\nb"], "give 1 to 100 characters"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_touched(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    Path("mine.txt").write_text("my notes\n")
    out, err = told(*words, status=125, capsys=capsys)
    assert said in err
    assert (out, err.startswith("cachewatch: "), err.count("\n")) == ("", True, 1)
    assert Path("mine.txt").read_text() == "my notes\n"
    assert list((place / "disk").iterdir()) == []


def fio_job(rw: str, numjobs: int, moved: int, runtime_ms: int, **more: Any) -> dict[str, Any]:
    side = "write" if "write" in rw else "read"
    options = {"rw": rw, "numjobs": str(numjobs), "direct": "1"} | more.pop("options", {})
    sides = {
        name: {"io_bytes": moved * (name == side), "runtime": runtime_ms * (name == side)} for name in ("read", "write")
    }
    return {"jobname": "w", "groupid": 0, "error": 0, "job options": options} | sides | more


def fio_file(name: str, *jobs: dict[str, Any], head: str = "") -> str:
    Path(name).write_text(head + json.dumps({"fio version": "fio-3.33", "jobs": jobs}))
    return name


def test_fios_reports_are_curves_with_their_spread_and_doubts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        fio_file("1.json", fio_job("write", 1, 100_000_000, 1000), head="fio: a warning\n"),
        fio_file("1b.json", fio_job("write", 1, 120_000_000, 1000)),
        fio_file("4.json", fio_job("write", 4, 150_000_000, 1000)),
        fio_file("r.json", fio_job("randread", 1, 10_000, 10),
                 fio_job("randread", 4, 40_000, 10, groupid=1, options={"numjobs": "4", "direct": "0"})),
    ]  # fmt: skip
    words = [word for file in files for word in ("--fio", file)]
    out, _ = told(*words, "--name", "nfs-a", status=0, capsys=capsys)
    profile = read_storage(Path("storage-nfs-a.yaml"))
    assert profile.write is not None
    assert profile.random_read is not None
    assert [(p.n, p.bytes_per_s, p.spread) for p in profile.write.points] == [(1, 1.1e8, 0.182), (4, 1.5e8, 0.0)]
    assert [(p.n, p.bytes_per_s) for p in profile.random_read.points] == [(1, 1e6), (4, 4e6)]
    assert (profile.basis, profile.read) == ("measured", None)
    assert profile.notes == [
        "r.json: direct=1 was not given, so the page cache may have answered",
        "measured once, so that nothing is known of the spread: fresh writes at n = 4 and 2 more",
    ]  # fmt: skip
    assert re.search(r"^ +1 +110 MB/s \+-9% +- +1 MB/s\n +4 +150 MB/s +- +4 MB/s$", out, re.M)  # once is no +-0 %


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not the report of whole runs"), ("{}", "not the report of whole runs"), ('{"jobs": 5}', "not the report of whole runs"),
        ('{"jobs": []}', "not the report of whole runs"), ('{"jobs": [{"error": 0}]}', "not the report of whole runs"),
        (json.dumps({"jobs": [fio_job("write", 1, 5, 900, error=28)]}), "mend what fio itself complains of"),
        (json.dumps({"jobs": [fio_job("write", 1, 0, 900)]}), "not the report of whole runs of fio that moved bytes"),
        (json.dumps({"jobs": [fio_job("write", 1, 5, 900, options={"numjobs": "9999999"})]}), "not the report of whole runs of fio that moved bytes"),
        (json.dumps({"jobs": [fio_job("rw", 1, 5, 900)]}), "run it with rw=write, rw=read or rw=randread"),
        (json.dumps({"jobs": [fio_job("write", 1, 5, 900, options={"iodepth": "4"})]}), "iodepth=1 and more numjobs"),
        (json.dumps({"jobs": [fio_job("write", 2, 5, 900)] * 2}), "--output-format=json --group_reporting"),
        (json.dumps({"jobs": [fio_job("write", 2, 5, 900)]}), "nothing was measured with one stream for fresh writes"),
    ],
)  # fmt: skip
def test_what_fio_did_not_measure_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    Path("fio.json").write_text(text)
    out, err = told("--fio", "fio.json", status=125, capsys=capsys)
    assert said in err
    assert (out, err.count("\n"), [path.name for path in Path.cwd().iterdir()]) == ("", 1, ["fio.json"])
