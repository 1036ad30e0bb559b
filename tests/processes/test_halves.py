"""The experiment of two processes that share a scan counts what one counts, whatever happens between the halves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, random, sys
from pathlib import Path
from tests.benchmarks.halves import HalvesScan

root, steps = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
places = [root / name / inner for name in "abcd" for inner in ("x", "y")]
for place in places:
    place.mkdir(parents=True)
one, two = HalvesScan(root), HalvesScan(root)
number = 0
for _ in range(40):
    for _ in range(steps.randrange(6)):
        files = sorted(path for place in places if place.exists() for path in place.iterdir() if path.is_file())
        doing, place = steps.choice(["make", "append", "move", "link", "remove", "turn"]), steps.choice(places)
        number += 1
        if doing == "make" or not files:
            (place / f"f{number}").write_bytes(bytes(steps.randrange(9000)))
            continue
        path = steps.choice(files)
        if doing == "append":
            with path.open("ab") as file:
                file.write(bytes(5000))
        elif doing == "move":
            path.rename(place / f"f{number}")
        elif doing == "link":
            os.link(path, place / f"f{number}")
        elif doing == "remove":
            path.unlink()
        else:
            other = steps.choice(places)
            for old, new in ((place, root / "t"), (other, place), (root / "t", other)) if other != place else ():
                old.rename(new)
    alone, shared = one.once(1), two.once(2)
    # Of several names the one that is listed first is kept, and the order is not the same.
    assert alone._replace(last_path=None) == shared._replace(last_path=None), (alone, shared)
print(alone.files_present, alone.bytes_written)
"""


def test_two_processes_count_what_one_counts(tmp_path):
    for seed in range(3):
        argv = [sys.executable, "-c", PROGRAM, str(tmp_path / str(seed)), str(seed)]
        done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files, written = map(int, done.stdout.split())
        assert files > 5
        assert written > 10_000
