"""Publishing's two costs: digesting what was generated, and looking whether a published build is whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import interleaved, make_files, median, row, scratch, spread, timed

from prefect_cachewatch.store.key import BuildRecipe
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.store.verify import digest_files

FILES, FILE_BYTES = 8, 128 << 20
SMALL_FILES = 10_000

_MEMORY = """
import os, resource, sys
from prefect_cachewatch.store.verify import digest_files
fd = os.open(sys.argv[1], os.O_RDONLY)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
digest_files(fd, os.listdir(fd), threads=2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def run(quick: bool = False) -> list[dict[str, Any]]:
    """Digest 1 GiB in 8 files from the page cache, and verify a build of 10,000 files (an eighth of it if quick).

    Args:
        quick: smaller and fewer.

    Returns:
        Rows for the digests against `sha256sum` (and `b3sum` where there is one), for their memory, and for the
        quick and the full verification.
    """
    runs = 3 if quick else 5
    with scratch() as root:
        return [*_digests(root, runs, FILE_BYTES // 8 if quick else FILE_BYTES), *_verification(root, runs, quick)]


def _digests(root: Path, runs: int, file_bytes: int) -> list[dict[str, Any]]:
    build = root / "build"
    build.mkdir()
    for number in range(FILES):
        (build / f"layers.{number}.tensorbin").write_bytes(os.urandom(file_bytes))
    paths = sorted(map(str, build.iterdir()))
    total = FILES * file_bytes
    fd, names = os.open(build, os.O_RDONLY), sorted(os.listdir(build))
    peers = [("sha256sum", ["sha256sum", *paths])]
    # As many processes as threads of ours: the same digest on the same cores.
    peers.append(("xargs -P2 sha256sum", ["sh", "-c", 'printf "%s\\n" "$@" | xargs -P2 -n1 sha256sum', "sh", *paths]))
    if shutil.which("b3sum"):
        peers.append(("b3sum", ["b3sum", *paths]))
    try:
        ours, one, *theirs = interleaved(
            runs,
            lambda: timed(lambda: digest_files(fd, names, threads=2)),
            lambda: timed(lambda: digest_files(fd, names, threads=1)),
            *(lambda argv=argv: timed(lambda: _quiet(argv)) for _, argv in peers),
        )
        ours_cpu = _cpu_seconds(lambda: digest_files(fd, names, threads=2))
        peer_cpu = _cpu_seconds(lambda: _quiet(peers[0][1]))
    finally:
        os.close(fd)

    def speed(seconds: float) -> float:
        return total / seconds / 1e9

    speed_2 = speed(median(ours))
    fastest = max(speed(median(found)) for found in theirs)
    # Whichever is lower: 1 GB/s, or nine tenths of the fastest reader of the same files.
    ok = speed_2 >= min(1.0, 0.9 * fastest)
    rows = [
        row(f"digest {total >> 20} MiB, 2 threads", speed_2, "GB/s", name, speed(median(found)),
            target="at least 1 GB/s, or 0.9 of the fastest peer", ok=ok, note=spread(ours))
        for (name, _), found in zip(peers, theirs, strict=True)
    ]  # fmt: skip
    rows.append(
        row(f"digest {total >> 20} MiB, 1 thread", speed(median(one)), "GB/s", "sha256sum", speed(median(theirs[0])),
            note=spread(one))
    )  # fmt: skip
    # A busy machine halves the speed of all of them; what a byte costs a core it does not change.
    rows.append(
        row("digest per CPU second", total / ours_cpu / 1e9, "GB/s", "sha256sum", total / peer_cpu / 1e9, note="1 run")
    )
    grown = subprocess.run([sys.executable, "-c", _MEMORY, build], capture_output=True, text=True, check=True).stdout
    rows.append(
        row("memory gained by digesting it", int(grown) / 1024, "MiB", "", None,
            target="at most 8 MiB", ok=int(grown) <= 8192, note="1 run")
    )  # fmt: skip
    return rows


def _verification(root: Path, runs: int, quick: bool) -> list[dict[str, Any]]:
    count = SMALL_FILES // 8 if quick else SMALL_FILES
    (root / "store").mkdir()
    store = CacheStore(root / "store")
    policy = PublishPolicy(store=store.root)
    recipe = BuildRecipe(("bench", "{cache_dir}"), policy.cache_key)
    with store.begin("bench", recipe) as build:
        make_files(Path(build.path), count)
        publish_s = timed(lambda: build.publish(policy, findings=build.check(policy)))
        path = build.path
    store.activate("bench")
    find, fast, full, skip = interleaved(
        runs,
        lambda: timed(lambda: _quiet(["find", path, "-type", "f", "-printf", "%s %p\n"])),
        lambda: timed(lambda: store.verify("bench", depth="quick")),
        lambda: timed(lambda: store.verify("bench", depth="full")),
        lambda: timed(lambda: store.find_whole("bench", recipe.key)),
    )
    what = f"{count:,} files"
    return [
        row(f"verify {what}, names and sizes", median(fast), "s", "find -printf", median(find),
            target="under 1 s", ok=median(fast) < 1, note=spread(fast)),
        row(f"skip when whole, {what}", median(skip), "s", "find -printf", median(find), note=spread(skip)),
        row(f"verify {what}, every digest", median(full), "s", "find -printf", median(find), note=spread(full)),
        row(f"publish {what} with fsync", publish_s, "s", "", None, note="1 run"),
    ]  # fmt: skip


def _cpu_seconds(action: Callable[[], object]) -> float:
    """User and system time of this process and of the children that it waited for."""
    before = os.times()
    action()
    return sum(os.times()[:4]) - sum(before[:4])


def _quiet(argv: list[str]) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
