"""A file of its whole size may have parts that were never written; a run may exit with 0 after writes that failed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.builds import active, offer
from tests.contract.harness import QUICK, WELL, Place
from tests.support import needs_root, unavailable

KEY = ("--key", "revision=1")
RESERVES = """
cache = Path(sys.argv[1])
cache.mkdir(exist_ok=True)
(cache / "zeros.bin").write_bytes(bytes(1 << 20))  # written, and no hole
with open(cache / "weights.bin", "wb") as file:
    file.truncate(8 << 20)
    file.write(b"x" * (1 << 20))
"""
# The first attempt reserves a file, fills a part of it, and dies long after, while it writes others.
DIES = """
cache, seen = Path(sys.argv[1]), PLACE / "seen"
weights = cache / "weights.bin"
if seen.exists():
    if not weights.exists():
        weights.write_bytes(b"y" * (1 << 20))
    for number in range(50):
        if not (cache / f"layer{number}.bin").exists():
            (cache / f"layer{number}.bin").write_bytes(b"y" * 100_000)
    sys.exit(0)
seen.touch()
file = open(weights, "wb")
if sys.argv[2] == "reserved":
    file.truncate(1 << 20)
    file.close()
else:  # of its whole size, and open to the end, or nearly so
    file.write(bytes(1 << 20))
    file.flush()
for number in range(50):
    (cache / f"layer{number}.bin").write_bytes(b"x" * 100_000)
    time.sleep(0.2)
if sys.argv[2] == "closed":
    file.close()
    time.sleep(0.5)
sys.exit("the connection was lost")
"""
SAYS = """
cache = Path(sys.argv[1])
cache.mkdir(exist_ok=True)
(cache / "a.bin").write_bytes(b"x" * 1000)
print(sys.argv[2], flush=True)
"""
FILLS = """
try:
    with open(Path(sys.argv[1]) / "a.bin", "wb") as file:
        for _ in range(64):
            file.write(b"x" * (1 << 20))
            file.flush()
except OSError:
    pass  # swallowed
"""


@pytest.fixture
def mounted(place: Place) -> Iterator[object]:
    points: list[Path] = []

    def mount(*argv: str) -> None:
        needs_root("mounting")
        point = place.root / "mounted"
        point.mkdir()
        done = subprocess.run(["mount", *argv, str(point)], capture_output=True, text=True, check=False)
        if done.returncode:
            unavailable(done.stderr.strip())
        points.append(point)
        place.cache = point / "cache"

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", str(point)], check=False)


def test_exec_tells_of_a_part_that_was_never_written(place: Place) -> None:
    ran = place.exec(*WELL, command=[*place.program(RESERVES), place.cache])
    assert ran.status == 0
    (finding,) = ran.report["findings"]
    assert finding["category"] == "unwritten_part"
    assert "weights.bin has 8.00 MiB, and 7.00 MiB of them were never written" in ran.report["message"]


def test_a_build_with_a_part_that_was_never_written_is_refused_unless_it_is_meant(root: Path) -> None:
    def reserves(cache: Path) -> None:
        exec(RESERVES.replace("sys.argv[1]", "where"), {"Path": Path, "where": cache})

    refused = offer(root, reserves)
    assert (refused.refused, active(root)) == (["unwritten_part"], None)
    assert refused.findings[0].paths == ("weights.bin",)
    assert offer(root, reserves, allow_sparse=["weights.*"]).findings == []


def test_where_the_file_system_compresses_a_hole_is_no_finding(place: Place, mounted) -> None:
    image = place.root / "btrfs.img"
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    try:
        subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system that compresses can be made here: {error}")
    mounted("-o", "loop,compress=zstd", str(image))
    ran = place.exec(*WELL, command=[*place.program(RESERVES), place.cache])
    assert (ran.status, ran.report["findings"]) == (0, [])


@pytest.mark.parametrize("how", ["reserved", "open", "closed"])
def test_a_retry_writes_again_what_was_reserved_or_open_when_the_tree_died(place: Place, how: str) -> None:
    # Between the end of the generator's last write and its own end is one look of the monitor at most.
    slowly = ("--poll", "2s") if how == "closed" else ()
    options = (*QUICK, *slowly, "--stall-after", "4s", *KEY, "--attempts", "3", "--backoff", "0.1s")
    ran = place.generate(*options, command=[*place.program(DIES), "{cache_dir}", how])
    assert ran.status == 0, ran.stderr
    current = place.current()
    assert current is not None
    assert (current / "weights.bin").read_bytes() == b"y" * (1 << 20)
    assert (current / "layer0.bin").read_bytes()[:1] == b"x"  # it was whole, and stayed


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: [Errno 28] No space left on device: 'b.bin'",
        "write failed: Disk quota exceeded (os error 122)",
        "WARNING 1 of 3 files could not be downloaded: ['b.bin']",
        "b.bin: download failed after 5 attempts: 503",
        "could not download b.bin after 3 retries",
        "WARNING 1 of 3 files failed: ['b.bin']",
        "Failed to fetch b.safetensors: 503 Server Error",
        "curl: (18) transfer closed with 4923 bytes remaining to read",
        "rsync error: some files/attrs were not transferred (code 23) at main.c(1338)",
        "PytorchStreamWriter failed writing file data/3: file write failed",
    ],
)
def test_exec_tells_of_a_write_or_a_download_that_failed(place: Place, line: str) -> None:
    ran = place.exec(*WELL, command=[*place.program(SAYS), place.cache, line])
    assert ran.status == 0
    assert line[:40] in ran.report["message"]
    assert [one["category"] for one in ran.report["findings"]] in (["failed_write"], ["failed_download"])


@pytest.mark.parametrize(
    "line",
    [
        "Error while downloading from https://hub/b.bin: The read operation timed out\nTrying to resume download...",
        "download of b.bin failed, retrying in 5 s",
        "downloaded 12 files, 0 failed, no errors",
        "Downloading shards: 100% 3/3",
        "Downloading... failed=0 ok=3",
        "0 of 3 downloads failed",
        "download attempts: 3, failures: none",
        "no incomplete downloads",
        "curl: (18) transfer closed with 4923 bytes remaining to read\n** Resuming transfer from byte position 4923",
    ],
)
def test_a_download_that_was_tried_again_is_no_finding(place: Place, line: str) -> None:
    ran = place.exec(*WELL, command=[*place.program(SAYS), place.cache, line])
    assert (ran.status, ran.report["findings"]) == (0, []), ran.report["message"]


def test_a_build_after_a_failed_write_is_published_with_a_word_or_refused_as_the_policy_says(place: Place) -> None:
    command = [*place.program(SAYS), "{cache_dir}", "OSError: [Errno 28] No space left on device"]
    ran = place.generate(*WELL, *KEY, command=command)
    assert ran.status == 0, ran.stderr
    assert "No space left on device" in ran.report["message"]
    assert [one["category"] for one in ran.report["publication"]["findings"]] == ["failed_write"]
    ran = place.generate(*WELL, "--key", "revision=2", "--failed-writes", "refuse", "--attempts", "1", command=command)
    assert (ran.status, ran.report["outcome"]) == (1, "verification_failed"), ran.stderr
    assert "No space left on device" in ran.report["message"]


def test_a_file_system_that_was_full_is_told_though_nothing_else_said_so(place: Place, mounted) -> None:
    mounted("-t", "tmpfs", "-o", "size=8m", "cachewatch")
    ran = place.exec(*WELL, command=[*place.program(FILLS), place.cache])
    assert ran.status == 0, ran.stderr
    assert [one["category"] for one in ran.report["findings"]] == ["full_filesystem"]
    assert "was full" in ran.last_line
