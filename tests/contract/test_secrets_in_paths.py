"""A secret of the generator's environment that is part of a path is said and written by nobody but the generator."""

from __future__ import annotations

import pytest

from tests.contract.harness import WELL, Place, eventually
from tests.prefect_database import fresh_home

SECRET = "hunter2zebra77q"
GROWS = "head -c 99999 /dev/zero > $DIR/a"
HANGS = ("--stall-after", "1s", "--first-write-within", "1s", "--poll", "0.3s", "--grace", "0.5s")


def told(place: Place, stdout: str, stderr: str) -> str:
    """Everything that was said and written, the cache itself left out; names of files too."""
    parts = [stdout, stderr]
    for path in place.root.rglob("*"):
        if place.cache not in (path, *path.parents) and "prefect" not in path.relative_to(place.root).parts[0]:
            parts += [str(path.relative_to(place.root)), path.read_text(errors="replace") if path.is_file() else ""]
    return "\n".join(parts)


@pytest.mark.parametrize(
    ("script", "options", "status"),
    [
        (GROWS, (*WELL, "--json", "--record", "run.jsonl", "--metrics", "file:."), 0),
        (f"{GROWS}; exec sleep 600", (*HANGS, "--progress", "json", "--log", "log"), 124),
        (f"{GROWS}; exit 3", (*WELL, "-v"), 3),
        ("true", (*WELL,), 1),
        (GROWS, (*WELL, "--log", "DIR/no/log"), 125),
        (GROWS, ("--cache-dir", "DIR/file"), 125),
    ],
    ids=["completed", "stalled", "failed", "empty", "no log", "no directory"],
)
def test_exec_says_and_writes_no_secret_of_a_path(
    place: Place, script: str, options: tuple[str, ...], status: int
) -> None:
    place.cache = place.root / f"cache-{SECRET}"
    if "DIR/file" in options:
        place.cache.mkdir()
        (place.cache / "file").touch()
    given = [word.replace("DIR", str(place.cache)) for word in options]
    ran = place.exec(
        "--env", f"API_TOKEN={SECRET}", "--env", f"DIR={place.cache}", *given, command=["sh", "-c", script]
    )
    assert ran.status == status, ran.stderr
    assert SECRET not in told(place, ran.stdout, ran.stderr)


def test_a_busy_directory_is_refused_without_its_secret(place: Place) -> None:
    place.cache = place.root / f"cache-{SECRET}"
    env = ("--env", f"API_TOKEN={SECRET}")
    up = place.root / "up"
    with place.started(
        "exec", "--cache-dir", place.cache, *WELL, *env, "--", "sh", "-c", f"touch {up}; exec sleep 600"
    ):
        assert eventually(up.exists)
        ran = place.exec(*env, command=["true"])
        assert (ran.status, "cache-***" in ran.stderr) == (125, True), ran.stderr
        assert SECRET not in ran.stdout + ran.stderr


def test_generate_says_no_secret_of_a_path(place: Place) -> None:
    place.cache = place.root / f"cache-{SECRET}"
    fresh_home(place.root / "prefect")
    ran = place.run(
        "generate", "--cache-dir", place.cache, *WELL, "--attempts", "1", "--report", "report.json",
        "--env", f"API_TOKEN={SECRET}", "--", "sh", "-c", f"head -c 99999 /dev/zero > {place.cache}/a; exit 3",
    )  # fmt: skip
    assert ran.status == 3, ran.stderr
    assert SECRET not in told(place, ran.stdout, ran.stderr)
