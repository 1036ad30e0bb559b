"""What is somebody else's stays as it is: in the cache, around it, behind links and mounts, whatever becomes of the run."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.contract.harness import QUICK, WELL, Place, Ran, eventually
from tests.prefect_database import fresh_home
from tests.support import unavailable

SHORT = (*QUICK, "--stall-after", "1500ms", "--first-write-within", "60s")
WRITE = "for n in range(3): (PLACE / f'cache/new{n}').write_bytes(os.urandom(20_000))\n"
HANG = f"{WRITE}time.sleep(600)\n"


def needs_root(why: str) -> None:
    if os.geteuid() != 0:
        unavailable(f"needs root {why}")


def world(place: Place) -> Path:
    """A cache with everything that others may have in it, and a directory of theirs beside it."""
    theirs = place.root / "theirs"
    for directory in (place.cache / "d/e", theirs / "deep"):
        directory.mkdir(parents=True)
    for path in (place.cache / "old", place.cache / "d/e/old", theirs / "a", theirs / "deep/b", theirs / "linked"):
        path.write_text(f"precious {path}")
        os.utime(path, (10**9, 10**9))
    (place.cache / "closed").write_text("precious")
    (place.cache / "closed").chmod(0)
    (place.cache / "mine").mkdir(mode=0o700)
    os.mkfifo(place.cache / "fifo")
    os.link(theirs / "linked", place.cache / "linked")
    for name, target in {
        "file": "../theirs/a",
        "directory": "../theirs/deep",
        "loop": "loop",
        "none": "nowhere",
    }.items():
        os.symlink(target, place.cache / name)
    if os.geteuid() == 0:
        os.chown(place.cache / "d/e/old", 65534, 65534)
    return theirs


def everything(*roots: Path) -> dict[str, object]:
    """All below some directories: kind, owner, size, content, date and place on the disk."""
    found: dict[str, object] = {}
    for root in roots:
        for path in [root, *root.rglob("*")]:
            status = path.lstat()
            what = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(status.st_mode) else ""
            dates = () if stat.S_ISDIR(status.st_mode) else (status.st_mtime_ns, status.st_size)
            found[str(path)] = (status.st_mode, status.st_uid, status.st_ino, what, *dates)
    return found


# How a run ends -> what the generator does, options, what is done when it has written, the exit status.
ENDS: dict[str, tuple[str, tuple[str, ...], int | None, int]] = {
    "completed": (WRITE, WELL, None, 0),
    "failed": (f"{WRITE}sys.exit(3)\n", WELL, None, 3),
    "stalled": (HANG, SHORT, None, 124),
    "cancelled": (HANG, WELL, signal.SIGTERM, 143),
    "killed": (HANG, WELL, signal.SIGKILL, -9),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_changes_nothing_in_its_cache_and_leaves_nothing_there(place: Place, end: str) -> None:
    source, options, number, status = ENDS[end]
    theirs = world(place)
    before = everything(place.cache, theirs)
    argv = [
        "exec",
        "--cache-dir",
        place.cache,
        *options,
        "--report",
        place.root / "report.json",
        "--log",
        place.root / "log",
    ]
    with place.started(
        *argv, "--", *place.program(source), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        if number is not None:
            assert eventually((place.cache / "new2").exists)
            run.send_signal(number)
        assert run.wait(120) == status
    assert place.run("doctor", "--no-prefect", "--json").status == 0
    after = everything(place.cache, theirs)
    assert {name: after.get(name) for name in before} == before
    assert sorted(set(after) - set(before)) == [f"{place.cache}/new{n}" for n in range(3)]


def test_a_cache_that_is_a_link_stays_one_and_its_directory_is_watched(place: Place) -> None:
    (place.root / "disk").mkdir()
    place.cache.symlink_to("disk")
    ran = place.exec(*WELL, command=place.program(WRITE))
    assert (ran.status, ran.report["growth"]["bytes_present"]) == (0, 60_000)
    assert os.readlink(place.cache) == "disk"


def test_a_directory_is_made_for_no_run_that_is_refused(place: Place) -> None:
    (place.root / "file").touch()
    ran = place.exec(*WELL, "--cache-dir", place.root / "file", command=["touch", place.root / "ran"])
    assert ran.status == 125
    assert sorted(path.name for path in place.root.iterdir() if path.name in ("cache", "ran")) == []


@pytest.mark.parametrize(("first", "second"), [("cache", "cache/below"), ("cache/below", "cache")])
def test_a_run_above_or_below_the_directory_of_another_is_refused(place: Place, first: str, second: str) -> None:
    place.cache = place.root / first
    argv = ["exec", "--cache-dir", place.cache, *WELL, "--", "sh", "-c", f"touch {place.root}/runs; sleep 600"]
    with place.started(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        assert eventually((place.root / "runs").exists)
        place.cache = place.root / second
        ran = place.exec(*WELL, command=["touch", place.root / "ran"])
        assert (ran.status, ran.stderr.count("\n")) == (125, 1), ran.stderr
        assert not (place.root / "ran").exists()
        assert run.poll() is None


# What is mounted, as root sees it from the place's directory -> what is measured: bytes and files.
MOUNTS = {
    "another file system below": ("mount -t tmpfs none cache/other && echo 12345 > cache/other/theirs", 3, 2),
    "a directory of the same one below": ("mount --bind theirs cache/other", 3, 2),
    "a file": ("mount --bind theirs/file cache/file", 3, 1),
    "two below, one with a space in its name": (
        "mount --bind theirs 'cache/a b' && mount --bind theirs cache/other", 3, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MOUNTS)
def test_what_is_mounted_below_the_cache_is_not_measured(place: Place, what: str) -> None:
    needs_root("to mount")
    mounting, size, files = MOUNTS[what]
    for name in ("cache/other", "cache/a b", "theirs"):
        (place.root / name).mkdir(parents=True)
    (place.cache / "ours").write_bytes(b"x" * 3)
    (place.cache / "file").touch()
    (place.root / "theirs/file").write_bytes(b"x" * 70)
    place.mounts(f"cd {place.root}; {mounting}")
    ran = place.exec(*WELL, command=["true"])
    assert ran.status == 0, ran.stderr
    assert (ran.report["growth"]["bytes_present"], ran.report["growth"]["files_present"]) == (size, files)


def test_growth_of_what_was_mounted_in_mid_run_is_no_growth(place: Place) -> None:
    needs_root("to mount")
    (place.root / "theirs").mkdir()
    (place.cache / "d").mkdir(parents=True)
    place.mounts(":")
    source = """
        import subprocess
        (PLACE / 'cache/a').write_bytes(os.urandom(20_000))
        subprocess.run(['mount', '--bind', PLACE / 'theirs', PLACE / 'cache/d'], check=True)
        while True:
            with open(PLACE / 'cache/d/f', 'ab') as file:
                file.write(os.urandom(20_000))
            time.sleep(0.1)
    """
    ran = place.exec(*SHORT, command=place.program(source))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")
    assert ran.report["growth"]["bytes_written"] == 20_000


def cleaned(place: Place, first: str, below: str = "cache") -> Ran:
    """Two attempts: the first does this and fails; the second would leave a file with what it found."""
    fresh_home(place.root / "prefect")
    source = f"""
        import ctypes, shutil, subprocess
        C = PLACE / {below!r}
        def mount(source, target):
            subprocess.run(['mount', '--bind', PLACE / source, C / target], check=True)
        if (PLACE / 'first').exists():
            (PLACE / 'second').write_text(' '.join(sorted(os.listdir(C))))
            sys.exit(5)
        (PLACE / 'first').touch()
        for n in range(3):
            (C / f'new{{n}}').write_bytes(b'x' * 50_000)
        time.sleep(0.5)
    """
    command = place.program(source)
    Path(str(command[1])).write_text(Path(str(command[1])).read_text() + first + "\nsys.exit(3)\n")
    options = (
        "--attempts",
        "2",
        "--backoff",
        "0s",
        "--on-retry",
        "clean",
        "--name",
        "m",
        "--report",
        place.root / "r.json",
    )
    return place.run("generate", "--cache-dir", place.root / below, *WELL, *options, "--", *command)


def second(place: Place) -> list[str] | None:
    """What the second attempt found; None if there was none."""
    path = place.root / "second"
    return path.read_text().split() if path.exists() else None


def test_a_clean_up_removes_what_the_attempt_made_and_leaves_all_else(place: Place) -> None:
    theirs = world(place)
    (theirs / "moved").write_text("precious")
    before = everything(place.cache, theirs)
    ran = cleaned(
        place,
        "os.rename(PLACE / 'theirs/moved', C / 'moved'); os.link(PLACE / 'theirs/a', C / 'also')\n"
        "(C / 'made/deep').mkdir(parents=True); (C / 'made/deep/f').write_text('x')\n"
        "os.symlink('/etc', C / 'etc'); os.rename(C / 'old', C / 'renamed')\n"
        "if os.geteuid() == 0:\n    (C / 'other').write_text('x'); os.chown(C / 'other', 65534, 65534)\n",
    )
    assert ran.status == 5, ran.stderr
    stays = {"moved", "also", "renamed", *(["other"] if os.geteuid() == 0 else [])}
    kept = {"closed", "d", "directory", "fifo", "file", "linked", "loop", "mine", "none"}
    assert set(second(place) or ()) == stays | kept
    after = everything(place.cache, theirs)
    moved = {str(place.cache / "old"), str(theirs / "moved")}
    assert {name: after.get(name) for name in before if name not in moved} == {
        name: found for name, found in before.items() if name not in moved
    }
    assert (place.cache / "renamed").read_text() == f"precious {place.cache / 'old'}"
    assert (place.cache / "moved").read_text() == "precious"


def test_a_clean_up_goes_round_mounts(place: Place) -> None:
    needs_root("to mount")
    (place.root / "theirs/d").mkdir(parents=True)
    for name in ("a", "b", "d/c"):
        (place.root / "theirs" / name).write_text("precious")
    place.cache.mkdir()
    place.mounts(":")
    ran = cleaned(
        place,
        "(C / 'sub').mkdir(); (C / 'file').touch(); mount('theirs', 'sub'); mount('theirs/a', 'file')\n"
        "for n in range(3): (C / f'sub/made{n}').write_text('x')",
    )
    assert ran.status == 5, ran.stderr
    assert second(place) == ["file", "sub"]
    left = sorted(str(path.relative_to(place.root / "theirs")) for path in (place.root / "theirs").rglob("*"))
    assert left == ["a", "b", "d", "d/c", "made0", "made1", "made2"]


# What takes the place of the cache during the first attempt.
REPLACED = {
    "a mount over the directory around it": "subprocess.run(['mount', '--bind', PLACE / 'other', PLACE / 'parent'], check=True)",
    "a good cache": "os.rename(C, f'{C}.away'); os.rename(PLACE / 'good', C)",
    "a link in place of the directory around it": "os.rename(PLACE / 'parent', PLACE / 'away'); os.symlink('other', PLACE / 'parent')",
    "nothing": "shutil.rmtree(C)",
}


@pytest.mark.parametrize("what", REPLACED)
def test_nothing_is_cleaned_where_another_directory_stands(place: Place, what: str) -> None:
    if "mount" in what:
        needs_root("to mount")
        place.mounts(":")
    for path in ("parent/cache/old", "other/cache/precious", "other/cache/d/precious", "good/precious"):
        (place.root / path).parent.mkdir(parents=True, exist_ok=True)
        (place.root / path).write_text("precious")
    ran = cleaned(place, REPLACED[what], "parent/cache")
    assert ran.status == 3, ran.stderr
    assert second(place) is None
    assert str(place.root / "parent/cache") in ran.stderr and "Traceback" not in ran.stderr
    assert [path.name for path in place.root.rglob("precious")] == ["precious"] * 3


def test_what_cannot_be_removed_is_named_and_ends_the_attempts(place: Place) -> None:
    needs_root("for chattr")
    place.cache.mkdir()
    cut = place.cache / "new1"
    (place.root / "probe").touch()
    if subprocess.run(["chattr", "+i", place.root / "probe"], check=False, capture_output=True).returncode:
        unavailable("needs a file system with attributes")
    subprocess.run(["chattr", "-i", place.root / "probe"], check=True)
    try:
        ran = cleaned(place, "subprocess.run(['chattr', '+i', C / 'new1'], check=True)")
    finally:
        subprocess.run(["chattr", "-i", cut], check=False)
    assert ran.status == 3, ran.stderr
    assert second(place) is None
    assert str(cut) in ran.stderr
