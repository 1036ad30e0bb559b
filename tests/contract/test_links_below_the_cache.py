"""Links below the cache directory: to a file it is that file, once; to a directory it is told of; nothing behind them is removed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.harness import QUICK, WELL, Place

WINDOW = (*QUICK, "--stall-after", "5s", "--first-write-within", "5s")
# 14 s, with no pause near the window.
FILL = "with open(TARGET, 'wb', 0) as file:\n    for _ in range(70):\n        file.write(os.urandom(100_000)); time.sleep(0.2)\n"
HANG = "(PLACE / 'cache/a.bin').write_bytes(os.urandom(90_000))\ntime.sleep(3600)\n"


@pytest.fixture
def outside(place: Place) -> Path:
    place.cache.mkdir()
    (place.root / "blobs").mkdir()
    return place.root / "blobs"


def test_a_file_that_a_link_leads_to_grows_as_if_it_lay_in_the_directory(place: Place, outside: Path) -> None:
    source = f"os.symlink('../blobs/b', PLACE / 'cache/model.bin')\nTARGET = {str(outside / 'b')!r}\n"
    ran = place.exec(*WINDOW, command=place.program(source + FILL))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said
    assert ran.report["growth"]["bytes_present"] == 7_000_000


def test_a_file_counts_once_however_many_links_lead_to_it(place: Place, outside: Path) -> None:
    (outside / "b").write_bytes(b"x" * 1000)
    os.link(outside / "b", outside / "c")
    source = """
        for number in range(200):
            os.symlink('../blobs/' + 'bc'[number % 2], PLACE / f'cache/link{number}')
        (PLACE / 'cache/own').write_bytes(b'y' * 500)
        os.symlink('own', PLACE / 'cache/to-own')
        time.sleep(1)
    """
    ran = place.exec(*WELL, command=place.program(source))
    assert ran.status == 0
    assert ran.report["growth"]["bytes_present"] == 1500
    assert ran.report["growth"]["files_present"] == 2


@pytest.fixture
def grown_by_another(place: Place, outside: Path) -> Iterator[None]:
    """A link to a file into which a process that is not of the tree writes for ever."""
    os.symlink(outside / "of-another", place.cache / "of-another")
    source = "import sys, time\nf = open(sys.argv[1], 'ab', 0)\nwhile True:\n    f.write(bytes(range(250)) * 200); time.sleep(0.1)\n"
    with subprocess.Popen([sys.executable, "-c", source, outside / "of-another"]) as other:
        yield
        other.kill()


def test_a_file_behind_a_link_that_another_process_grows_does_not_hide_a_stall(
    place: Place, grown_by_another: None
) -> None:
    chatty = HANG.replace("time.sleep(3600)", "while True:\n    print('waiting', flush=True); time.sleep(0.2)")
    for hang in (HANG, chatty):
        ran = place.exec(*QUICK, "--stall-after", "3s", command=place.program(hang))
        assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth"), ran.said


def test_a_tree_that_writes_less_than_another_process_does_is_not_stopped(
    place: Place, outside: Path, grown_by_another: None
) -> None:
    (outside / "b").touch()
    os.symlink("../blobs/b", place.cache / "model.bin")
    for target in (outside / "b", place.cache / "a.bin"):
        source = f"TARGET = {str(target)!r}\n{FILL.replace('100_000', '10_000')}"
        ran = place.exec(*WINDOW, command=place.program(source))
        assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said


def test_a_link_to_a_directory_is_named_at_the_start_and_a_tree_that_writes_there_is_not_taken_for_silent(
    place: Place, outside: Path
) -> None:
    os.symlink(outside, place.cache / "hub")
    source = f"print('go', flush=True)\nTARGET = {str(outside / 'b')!r}\n"
    ran = place.exec(*WINDOW, "--progress", "plain", command=place.program(source + FILL))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said
    assert f"{place.cache / 'hub'} is a link to the directory {outside}" in ran.stderr.partition("was not stopped")[0]
    assert f"was not stopped (1 of 4): it writes to {outside / 'b'}" in ran.stderr
    assert ran.report["growth"]["bytes_written"] == 0


def test_a_link_to_a_directory_is_named_in_the_message_of_a_stall(place: Place, outside: Path) -> None:
    os.symlink(outside, place.cache / "hub")
    ran = place.exec(*QUICK, "--stall-after", "3s", command=place.program(HANG))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")
    assert f"{place.cache / 'hub'} is a link to the directory {outside}" in ran.report["message"]


def test_a_link_to_a_watched_directory_is_not_spoken_of(place: Place, outside: Path) -> None:
    os.symlink(outside, place.cache / "hub")
    os.symlink(".", place.cache / "self")
    (place.cache / "sub").mkdir()
    os.symlink("sub", place.cache / "other")
    source = f"TARGET = {str(outside / 'b')!r}\n"
    ran = place.exec(*WINDOW, "--cache-dir", outside, command=place.program(source + FILL))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said
    assert "is a link" not in ran.said


def test_links_to_nothing_in_loops_and_to_devices_and_pipes_hold_up_nothing(place: Place, outside: Path) -> None:
    os.mkfifo(outside / "pipe")
    for name, target in {"a": "b", "b": "a", "z": "/dev/zero", "p": "../blobs/pipe", "n": "nowhere"}.items():
        os.symlink(target, place.cache / name)
    ran = place.exec(*QUICK, "--stall-after", "3s", command=place.program(HANG))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")
    assert ran.report["growth"]["files_present"] == 1


def test_a_clean_up_before_a_retry_removes_links_and_nothing_that_they_lead_to(place: Place, outside: Path) -> None:
    (outside / "b").write_bytes(b"precious")
    (outside / "d").mkdir()
    (outside / "d" / "f").write_bytes(b"precious")
    source = """
        if (PLACE / 'again').exists():
            assert list((PLACE / 'cache').iterdir()) == []
            sys.exit((PLACE / 'cache/whole').write_bytes(b'x' * 9000) and 0)
        (PLACE / 'again').touch()
        os.symlink('../blobs/b', PLACE / 'cache/file'); os.symlink('../blobs/d', PLACE / 'cache/directory')
        (PLACE / 'cache/part').write_bytes(b'x' * 9000)
        sys.exit(3)
    """
    retries = ("--attempts", "2", "--backoff", "0s", "--on-retry", "clean")
    file = place.root / "report.json"
    command = ["generate", "--cache-dir", place.cache, "--name", "m", *WELL, *retries, "--report", file, "--"]
    assert place.run(*command, *place.program(source)).status == 0
    assert (place.root / "again").exists()
    assert (outside / "b").read_bytes() == (outside / "d" / "f").read_bytes() == b"precious"
