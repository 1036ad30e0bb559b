"""A file system that is full and is not the cache's is named; one that the generator does not use is not blamed."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.harness import QUICK, WELL, Place

SHORT = (*QUICK, "--stall-after", "3s", "--first-write-within", "60s")


@pytest.fixture
def small(place: Place) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place.cache.mkdir()
    (point := place.root / "scratch").mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "contract", str(point)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


WRITE = "(PLACE / 'cache/a.bin').write_bytes(os.urandom(50_000))\n"


@pytest.mark.parametrize("how", ["named", "temporary"])
def test_a_generator_that_ends_for_want_of_space_elsewhere(place: Place, small: Path, how: str) -> None:
    source = f"{WRITE}open({str(small / 'part')!r}, 'wb', 0).write(bytes(8 << 20))\n"
    if how == "named":
        source += f"import shutil; shutil.copyfile(PLACE / 'cache/a.bin', {str(small / 'more')!r})\n"
    else:
        place.env["TMPDIR"] = str(small)
        source += "raise OSError(28, 'No space left on device')\n"
    ran = place.exec(*WELL, command=place.program(source))
    assert ran.status == 1
    assert ran.report["diagnosis"]["category"] == "disk_full", ran.said
    assert str(small) in ran.report["message"] and "not the cache's" in ran.report["message"]


def test_a_generator_that_hangs_for_want_of_space_elsewhere(place: Place, small: Path) -> None:
    place.env["TMPDIR"] = str(small)
    source = f"""{WRITE}
file = open({str(small / "part")!r}, 'wb', 0)
file.write(bytes(8 << 20))
print('retry: [Errno 28] No space left on device', flush=True)
time.sleep(3600)
"""
    ran = place.exec(*SHORT, command=place.program(source))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, "disk_full"), ran.said
    assert str(small) in ran.report["message"] and "not the cache's" in ran.report["message"]


def test_a_generator_that_tries_again_and_again_without_a_word(place: Place, small: Path) -> None:
    place.env["TMPDIR"] = str(small)
    (small / "part").write_bytes(bytes((4 << 20) - 8192))
    source = f"""{WRITE}
while True:
    try:
        os.close(os.open({str(small / "more")!r}, os.O_CREAT)); Path({str(small / "more")!r}).write_bytes(bytes(1 << 20)); break
    except OSError:
        time.sleep(0.1)
"""
    ran = place.exec(*SHORT, command=place.program(source))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, "disk_full"), ran.said
    assert str(small) in ran.report["message"] and "not the cache's" in ran.report["message"]


def test_a_part_that_said_so_long_ago_while_the_rest_waits(place: Place, small: Path) -> None:
    (small / "part").write_bytes(bytes((4 << 20) - 4096))
    source = f"""{WRITE}
print('rank 1: [Errno 28] No space left on device: ' + repr({str(small / "more")!r}), flush=True)
for number in range(3000):
    print('waiting for rank 1', number, flush=True)
time.sleep(3600)
"""
    ran = place.exec(*SHORT, command=place.program(source))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, "disk_full"), ran.said
    assert str(small) in ran.report["message"] and "not the cache's" in ran.report["message"]


def test_a_quota_that_is_used_up_elsewhere_is_told_with_the_place(place: Place) -> None:
    place.cache.mkdir()
    source = f"{WRITE}raise OSError(122, 'Disk quota exceeded', str(PLACE / 'home/k.so'))\n"
    ran = place.exec(*WELL, command=place.program(source))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (1, "quota_exceeded")
    assert f"{place.root / 'home/k.so'}, which is not in the cache" in ran.report["message"]


def test_a_full_file_system_that_is_not_used_is_not_blamed(place: Place, small: Path) -> None:
    place.env["TMPDIR"] = str(small)
    (small / "of-another").write_bytes(bytes((4 << 20) - 8192))
    ran = place.exec(*SHORT, command=place.program(f"{WRITE}time.sleep(3600)\n"))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, "unknown"), ran.said
