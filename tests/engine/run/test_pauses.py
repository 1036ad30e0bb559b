"""The file of past pauses: many writers, hostile contents, and jobs that must not learn from each other."""

from __future__ import annotations

import fcntl
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from prefect_cachewatch.common.directories import FileRefused
from prefect_cachewatch.run import pauses
from prefect_cachewatch.run.learning import job_fingerprint
from prefect_cachewatch.run.pauses import PAUSES, add_run, find_pauses_file, read_runs
from prefect_cachewatch.watching.learned import PastPauses

JOB = "0123456789abcdef"


def add(path: Path, seconds: float = 1.0, job: str = JOB, warm: bool = False) -> None:
    add_run(str(path), job, warm, PastPauses(seconds, 2 * seconds), "2026-01-01T00:00:00.000+00:00")


def add_many(path: Path, writer: int) -> None:
    for number in range(20):
        add(path, 100 * writer + number)


def test_runs_come_back_in_order_those_of_other_jobs_do_not(tmp_path: Path):
    path = tmp_path / "x"
    assert read_runs(str(path), JOB) == []
    add(path, 1.00001)
    add(path, 7, job="another")
    add(path, 2, warm=True)
    assert read_runs(str(path), JOB) == [(False, PastPauses(1.001, 2.001)), (True, PastPauses(2, 4))]


def test_no_run_of_several_writers_is_lost_not_even_when_the_file_is_replaced(tmp_path: Path):
    path = tmp_path / "x"
    path.write_text(("x" * 900 + "\n") * 300)  # more than its bound: the first writer replaces it
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(add_many, [path] * 4, range(4)))
    found = [run.before_first_byte_s for _, run in read_runs(str(path), JOB)]
    assert sorted(found) == [100 * writer + number for writer in range(4) for number in range(20)]
    assert path.stat().st_size < 256 << 10
    assert os.listdir(tmp_path) == ["x"]


def test_a_line_cut_by_a_crash_costs_itself_alone(tmp_path: Path):
    path = tmp_path / "x"
    add(path, 1)
    with path.open("ab") as file:
        file.write(b'{"job": "0123456789abcdef", "warm": fal')
    add(path, 2)
    assert [run.before_first_byte_s for _, run in read_runs(str(path), JOB)] == [1, 2]


def test_hostile_lines_are_skipped(tmp_path: Path):
    path = tmp_path / "x"
    good = {"job": JOB, "warm": False, "before_first_byte_s": 1, "writing_s": 2, "warm_up_s": None}
    lines = [
        b"\x00\xff", b"[" * 900, b"null", b'"text"', b"{}", b"1" * 2000,
        *(
            json.dumps({**good, **bad}).encode()
            for bad in (
                {"writing_s": -1}, {"writing_s": float("nan")}, {"writing_s": float("inf")}, {"writing_s": "2"},
                {"writing_s": True}, {"writing_s": 1e300}, {"warm": 1}, {"job": [JOB]}, {"x": "y" * 2000},
            )
        ),
    ]  # fmt: skip
    path.write_bytes(b"\n".join([*lines, json.dumps(good).encode()]) + b"\n")
    assert read_runs(str(path), JOB) == [(False, PastPauses(1, 2))]


def test_a_huge_file_is_read_from_its_end_and_cut_by_the_next_writer(tmp_path: Path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(1 << 33)
    add(path, 3)
    assert [run.before_first_byte_s for _, run in read_runs(str(path), JOB)] == [3]
    assert path.stat().st_size < 512 << 10


def test_a_file_that_cannot_be_locked_is_bounded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x"
    monkeypatch.setattr(pauses, "_LOCK_S", 0.0)
    with path.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"x" * ((512 << 10) + 1))
        other.flush()
        add(path, 4)
        add(path, 5)
    assert [run.before_first_byte_s for _, run in read_runs(str(path), JOB)] == [4, 5]
    assert path.stat().st_size < 256 << 10


def test_a_file_system_whose_inode_numbers_change_hangs_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pauses, "_LOCK_S", 0.1)
    monkeypatch.setattr(pauses, "_is_at", lambda fd, path: False)
    add(tmp_path / "x", 6)
    assert len(read_runs(f"{tmp_path}/x", JOB)) == 1


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "hard link"])
def test_what_is_no_file_of_ours_is_neither_read_nor_written(tmp_path: Path, kind: str):
    path, other = tmp_path / "x", tmp_path / "other"
    other.write_text("mine\n")
    {
        "link": lambda: path.symlink_to(other),
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "hard link": lambda: path.hardlink_to(other),
    }[kind]()
    with pytest.raises(OSError):
        read_runs(str(path), JOB)
    with pytest.raises(OSError):
        add(path)
    assert other.read_text() == "mine\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_that_another_user_planted_where_all_may_write_is_refused(tmp_path: Path):
    tmp_path.chmod(0o1777)
    path = tmp_path / "x"
    add(path)
    os.chown(path, 4711, 4711)
    with pytest.raises(FileRefused):
        read_runs(str(path), JOB)


def test_it_lies_beside_the_cache_and_in_it_where_that_is_a_mount(tmp_path: Path):
    (tmp_path / "cache").mkdir()
    assert find_pauses_file(f"{tmp_path}/cache") == f"{tmp_path}/.cache{PAUSES}"
    if os.stat("/dev/shm").st_dev != os.stat("/dev").st_dev:
        assert find_pauses_file("/dev/shm") == f"/dev/shm/{PAUSES}"


def test_a_changed_command_key_or_storage_is_another_job_a_changed_secret_is_not():
    def of(*argv: str, storage: str = "nfs4 a:/x", key: str = "") -> str:
        return job_fingerprint(["gen", *argv], storage, {"key": key})

    assert of("a", "--token", "s1") == of("a", "--token", "s2")
    assert len({of("a"), of("b"), of("a", storage="nfs4 b:/x"), of("a", key="k")}) == 4
