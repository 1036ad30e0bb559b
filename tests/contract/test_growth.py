"""What counts as growth, and what does not: each way to change a cache directory, through `cachewatch exec`.

What counts ends the pause, as the samples of `--progress json` tell. The generator waits until each step has been measured, so that no
window decides. What does not count is done for ever, and is a stall.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.contract.harness import LONG_S, QUICK, WELL, Place, Ran

# For the generators: the cache, a directory beside it, a writer, and a wait until the cache has been measured twice more.
HEAD = """
import itertools, mmap, shutil, socket, subprocess
C, OUT, SIZE = PLACE / 'cache', PLACE / 'outside', 20_000
def put(path, mode='wb', size=SIZE):
    with open(path, mode) as file:
        file.write(os.urandom(size))
def samples():
    return (PLACE / 'stderr').read_bytes().count(b'"event": "progress"')
def seen():
    enough = samples() + 2
    while samples() < enough:
        time.sleep(0.02)
"""
MIB = 1 << 20
ANY = ("--progress-by", "any")
OLD = "for n in range(3): put(C / f'old{n}')\n"
ONE = "put(C / 'a')\n"
RESERVED = f"fd = os.open(C / 'a', os.O_CREAT | os.O_RDWR); os.posix_fallocate(fd, 0, {3 * MIB})\n"
SPARSE = "fd = os.open(C / 'a', os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 1 << 30)\n"
MAPPED = "with open(C / f'old{n}', 'r+b') as file, mmap.mmap(file.fileno(), 0) as m:\n    time.sleep(0.02); m[:] = os.urandom(SIZE); m.flush()"
PART = "fd = os.open(C / f'old{n}', os.O_WRONLY); os.pwrite(fd, os.urandom(9000), 500); os.close(fd)"
DAEMON = (
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        put(C / f'{n}')\n    os._exit(0)\nos.wait()"
)
SWAPPED = (
    "shutil.copytree(C, OUT / 'new'); put(OUT / f'new/{n}'); os.rename(C, OUT / f'gone{n}'); os.rename(OUT / 'new', C)"
)


class Grows(NamedTuple):
    """A step that is growth: done three times, each after the one before was measured; and the bytes that count then."""

    step: str
    written: int = 60_000
    before: str = ""
    begin: str = ""
    """Growth too: done first, and measured."""
    options: tuple[str, ...] = ()
    in_parts: bool = False
    """Whether a measurement may see a part of the step."""


GROWS = {
    "an append": Grows("put(C / 'a', 'ab')"),
    "a new file": Grows("put(C / f'{n}')"),
    "a new file 90 levels deep": Grows(
        "put(C.joinpath(*'d' * 90, f'{n}'))", before="C.joinpath(*'d' * 90).mkdir(parents=True)"
    ),
    "a thousand small files": Grows("for m in range(1000): put(C / f'{n}.{m}', size=20)", in_parts=True),
    "a file that is moved in": Grows("put(OUT / 'x'); os.rename(OUT / 'x', C / f'{n}')"),
    "a file beside one that is removed again": Grows(
        "put(C / f'tmp{n}'); seen(); os.unlink(C / f'tmp{n}'); put(C / f'{n}')", 120_000, in_parts=True
    ),
    "a file beside loops of links": Grows(
        "put(C / f'{n}')", before="os.symlink('.', C / 'loop'); os.symlink('..', C / 'up')"
    ),
    "a directory that is moved in": Grows("(OUT / 'd').mkdir(); put(OUT / 'd/x'); os.rename(OUT / 'd', C / f'{n}')"),
    "a file that is linked in": Grows("put(OUT / f'{n}'); os.link(OUT / f'{n}', C / f'{n}')"),
    "a temporary file, once with its rename": Grows(
        "put(C / f'{n}.tmp'); seen(); os.rename(C / f'{n}.tmp', C / f'{n}')"
    ),
    "an old file that is opened with w": Grows("put(C / f'old{n}')", before=OLD),
    "an old file that is opened with r+": Grows("put(C / f'old{n}', 'r+b')", before=OLD),
    "an old file of which a part is written": Grows(PART, before=OLD),
    "an old file that is written through a mapping": Grows(MAPPED, before=OLD),
    "an old file that is removed and made anew": Grows("os.unlink(C / f'old{n}'); put(C / f'old{n}')", before=OLD),
    "an old file that is renamed over": Grows("put(OUT / 'x'); os.rename(OUT / 'x', C / f'old{n}')", before=OLD),
    "an old file that is copied over with its date": Grows(
        "put(C / f'old{n}'); os.utime(C / f'old{n}', ns=(10**18, 10**18 + 5))", before=OLD
    ),
    "a file that was cut off and gets longer": Grows(
        "os.truncate(C / 'a', 0); put(C / 'a', size=SIZE * (n + 2))", 80_000, begin=ONE
    ),
    "a file that was removed and gets longer": Grows(
        "os.unlink(C / 'a'); put(C / 'a', size=SIZE * (n + 2))", 80_000, begin=ONE
    ),
    "a sparse file that is filled": Grows("os.pwrite(fd, os.urandom(50_000), n << 20)", 1 << 30, begin=SPARSE),
    "a sparse file that gets longer": Grows(
        "os.truncate(C / 'a', SIZE + ((n + 1) << 20))", 20_000 + 3 * MIB, begin=ONE
    ),
    "room that is reserved": Grows(
        "fd = os.open(C / 'a', os.O_CREAT | os.O_RDWR); os.posix_fallocate(fd, n << 20, 1 << 20)", 3 * MIB
    ),
    "reserved room that is filled": Grows("os.pwrite(fd, os.urandom(1 << 20), n << 20)", 3 * MIB, begin=RESERVED),
    "the same place again, by any change": Grows(
        "os.pwrite(fd, os.urandom(9000), 0)", 3 * MIB, begin=RESERVED, options=ANY
    ),
    "a touch, by any change": Grows("os.utime(C / 'old0')", 0, before=OLD, options=ANY),
    "an append, dated after the year 2242": Grows("put(C / 'a', 'ab'); os.utime(C / 'a', (2**33, 2**33))"),
    "an append, dated at the end of 64 bits": Grows("put(C / 'a', 'ab'); os.utime(C / 'a', (2**62, 2**62))"),
    "an append, dated before 1970, as is its directory": Grows(
        "put(C / 'a', 'ab'); os.utime(C / 'a', (-1, -1)); os.utime(C, (-1, -1))"
    ),
    "a file of a child that has left for a session of its own": Grows(DAEMON),
    "a file in the second directory": Grows("put(OUT / f'{n}')", options=("--cache-dir", "{outside}")),
    "a file in a directory below the first one, once": Grows(
        "put(C / f'sub/{n}')", before="(C / 'sub').mkdir()", options=("--cache-dir", "{cache}/sub")
    ),
    "a file in a directory that takes the cache's place": Grows(
        "os.rename(C, PLACE / f'gone{n}'); C.mkdir(); put(C / f'{n}')"
    ),
    "a whole new cache with one file more": Grows(SWAPPED, 80_000, before="put(C / 'old')"),
}


@pytest.mark.parametrize("case", GROWS)
def test_growth_ends_the_pause_and_its_bytes_count(place: Place, case: str) -> None:
    row = GROWS[case]
    prepare(place, row.before)
    begin = f"{row.begin}seen()\n" if row.begin else "seen()\n"
    steps = f"{begin}for n in range(3):\n{textwrap.indent(row.step, '    ')}\n    seen()\n"
    options = [option.format(cache=place.cache, outside=place.root / "outside") for option in row.options]
    ran = watched(place, *WELL, *options, source=steps)
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.stderr
    assert ran.report["growth"]["bytes_written"] == row.written
    steps_seen = 3 + bool(row.begin)
    assert growths(ran) == steps_seen or (row.in_parts and growths(ran) > steps_seen), ran.stderr


class Hangs(NamedTuple):
    """A step that is none: done for ever; the stall's kind, the bytes that count, and the category of the cause if one is promised."""

    step: str
    before: str = ""
    begin: str = ""
    """Growth, by one call."""
    kind: str = ""
    written: int | None = None
    cause: str | None = None
    options: tuple[str, ...] = ()


EACH = "for path in sorted(C.glob('old*')):\n    "
# So much that no busy machine takes it for a heartbeat.
LARGE = "put(C / 'a', size=400_000)\n"
OVERWRITES = {"kind": "no_growth", "written": 400_000, "cause": "in_place_writes"}
HANGS = {
    "nothing": Hangs("pass"),
    "touches": Hangs(f"{EACH}os.utime(path)", OLD),
    "dates that run ahead": Hangs(f"{EACH}os.utime(path, (2**33 + n, 2**33 + n))", OLD),
    "dates that run behind": Hangs(f"{EACH}os.utime(path, (10**9 - n, 10**9 - n))", OLD),
    "touches of the directory": Hangs("os.utime(C)", OLD),
    "an append to an old file, and then nothing": Hangs("time.sleep(1)", OLD, "put(C / 'old0', 'ab')\n"),
    "a date at the end of 64 bits": Hangs("os.utime(C / 'a', (2**62, 2**62))", begin=ONE),
    "changes of mode": Hangs(f"{EACH}os.chmod(path, 0o600 + n % 2 * 0o40)", OLD),
    "renames to and fro": Hangs(f"{EACH}os.rename(path, f'{{path}}.x'); os.rename(f'{{path}}.x', path)", OLD),
    "renames of a new file": Hangs("os.rename(C / f'a{n}', C / f'a{n + 1}')", begin="put(C / 'a0')\n"),
    "renames of a directory": Hangs("os.rename(C / f'{n}', C / f'{n + 1}')", "(C / '0').mkdir(); put(C / '0/f')"),
    "files that change places": Hangs(
        "for a, b in ('0x', '10', 'x1'): os.rename(C / f'old{a}', C / f'old{b}')", OLD
    ),
    "hard links that come and go": Hangs(f"{EACH}os.link(path, f'{{path}}.x'); os.unlink(f'{{path}}.x')", OLD),
    "hard links for ever": Hangs("os.link(C / 'a', C / f'a{n}')", begin=ONE),
    "symbolic links": Hangs("os.symlink('a', C / f'link{n}')", begin=ONE),
    "loops of links": Hangs("time.sleep(1)", "os.symlink('.', C / 'loop'); os.symlink('..', C / 'up')", ONE),
    "directories": Hangs("(C / f'd{n}').mkdir()", begin=ONE),
    "empty files, and one that says it is done": Hangs("(C / f'COMPLETED{n}').touch()", begin=ONE),
    "a FIFO and a socket": Hangs(
        "time.sleep(1)", "os.mkfifo(C / 'p'); socket.socket(socket.AF_UNIX).bind(str(C / 's'))", ONE
    ),
    "a file that gets shorter": Hangs("os.truncate(C / 'a', 20_000 - n)", begin="put(C / 'a'); seen()\n"),
    "a file that is cut off and gets its size back": Hangs(
        "os.truncate(C / 'a', 0); os.truncate(C / 'a', SIZE)", begin=ONE
    ),
    "removals": Hangs("(C / f'{n}').unlink(missing_ok=True)", "for n in range(30): put(C / f'{n}')"),
    "reads": Hangs(f"{EACH}path.read_bytes()", OLD),
    "a log": Hangs("put(C / 'run.log', 'ab')", begin=ONE),
    "a file that is to be ignored": Hangs("put(C / 'a.part', 'ab')", begin=ONE, options=("--ignore", "*.part")),
    "a file outside": Hangs("put(OUT / 'a', 'ab')", begin=ONE),
    "a file that was removed while it is open": Hangs(
        "file.write(os.urandom(SIZE))", begin="file = open(C / 'b', 'wb', 0); os.unlink(C / 'b'); put(C / 'a')\n"
    ),
    "temporary files": Hangs(
        "put(C / f'{n}'); n == 0 or os.unlink(C / f'{n - 1}')", kind="churning", cause="churning"
    ),
    "an own file that is written again at its size": Hangs(LARGE, begin=LARGE, **OVERWRITES),
    "an old file that is written again at its size": Hangs(LARGE, LARGE, **OVERWRITES),
    "reserved room whose first bytes are written again": Hangs(
        "os.pwrite(fd, os.urandom(400_000), 0)", begin=RESERVED, **OVERWRITES | {"written": 3 * MIB}
    ),
    "a directory that is gone": Hangs(
        "time.sleep(1)", begin="put(C / 'a'); seen(); shutil.rmtree(C)\n", kind="cache_directory_missing",
        cause="cache_directory_missing",
    ),
    "a directory that is away now and then": Hangs(
        "os.rename(C, OUT / 'away'); time.sleep(0.1); os.rename(OUT / 'away', C); time.sleep(0.4)", begin=ONE
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HANGS)
def test_what_is_no_growth_is_a_stall_however_long_it_is_done(place: Place, case: str) -> None:
    row = HANGS[case]
    prepare(place, row.before)
    loop = f"{row.begin}for n in itertools.count():\n{textwrap.indent(row.step, '    ')}\n    time.sleep(0.1)\n"
    window = ("--stall-after", "1500ms", "--first-write-within", "60s" if row.begin else "1500ms")
    ran = watched(place, *QUICK, *window, *row.options, source=loop)
    kind = row.kind or ("no_growth" if row.begin else "never_started")
    assert (ran.status, ran.report["outcome"], ran.report["stall"]["kind"]) == (124, "stalled", kind), ran.stderr
    if kind != "churning":
        written = (20_000 if row.begin else 0) if row.written is None else row.written
        assert ran.report["growth"]["bytes_written"] == written
    if row.cause is not None:
        assert ran.report["diagnosis"]["category"] == row.cause
    assert ran.report["stop"]["survivors"] == []


def prepare(place: Place, before: str) -> None:
    for directory in (place.cache, place.root / "outside"):
        directory.mkdir()
    if before:
        subprocess.run(list(map(os.fspath, place.program(HEAD + before))), check=True)


def watched(place: Place, *options: str, source: str) -> Ran:
    """Run a generator whose samples it can read itself."""
    report = place.root / "report.json"
    argv = ["exec", "--cache-dir", place.cache, *options, "--no-bundle", "--allow-empty", "--report", report]
    with open(place.root / "stderr", "wb") as stderr:
        command = place.program(HEAD + source)
        with place.start(*argv, "--progress", "json", "--", *command, stderr=stderr) as process:
            try:
                process.wait(LONG_S)
            finally:
                process.kill()
    return Ran(process.returncode, "", (place.root / "stderr").read_text(), json.loads(report.read_text()))


def growths(ran: Ran) -> int:
    """How often a sample shows another instant of the last growth than the one before it."""
    told = [json.loads(line) for line in ran.stderr.splitlines() if '"event": "progress"' in line]
    instants = [
        -1.0,
        *(sample["at_s"] - sample["scan_s"] - sample["pause_s"] for sample in told if sample["phase"] == "writing"),
    ]
    return sum(later > earlier + 0.05 for earlier, later in pairwise(instants))
