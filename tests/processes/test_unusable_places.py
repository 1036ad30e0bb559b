"""Places of Prefect's and ours that cannot be written to: one sentence at once, and nothing was started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support import CACHEWATCH, PATIENCE_S, needs_root, unavailable

NAMES = {"PREFECT_HOME": "Prefect's home", "CACHEWATCH_STATE": "state directory"}


def generate(place: Path, variable: str, value: str, before: str = "true") -> subprocess.CompletedProcess[str]:
    env = {name: text for name, text in os.environ.items() if not name.startswith(("PREFECT_", "CACHEWATCH_"))}
    env |= {
        "HOME": str(place / "home"),
        "PREFECT_HOME": str(place / "ph"),
        "CACHEWATCH_STATE": str(place / "st"),
        variable: value,
    }
    words = [*CACHEWATCH, "generate", "--cache-dir", str(place / "c"), "--", "touch", str(place / "ran")]
    # A mount namespace of its own, where root runs the test.
    start = ["unshare", "-m"] if before != "true" else []
    return subprocess.run(
        [*start, "sh", "-c", f'{before} && exec "$@"', "sh", *words],
        env=env, cwd=place, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip


def said(place: Path, done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1), done.stderr
    assert sorted(path.name for path in place.iterdir()) in (["file"], ["disk"])
    return done.stderr


@pytest.mark.parametrize("variable", NAMES)
@pytest.mark.parametrize("value", ["/dev/null", "{}/file/below"])
def test_what_is_no_directory_is_refused(tmp_path, variable, value):
    (tmp_path / "file").touch()
    value = value.format(tmp_path)
    assert said(tmp_path, generate(tmp_path, variable, value)) == (
        f"cachewatch: {NAMES[variable]} {tmp_path / value} cannot be used: Not a directory; set {variable} to a directory that can be "
        "written to\n"
    )


@pytest.mark.parametrize(
    ("variable", "options", "why"),
    [("PREFECT_HOME", "ro", "Read-only file system"), ("CACHEWATCH_STATE", "size=32k", "No space left on device")],
)
def test_a_place_without_room_is_refused(tmp_path, variable, options, why):
    needs_root("mounting")
    (tmp_path / "disk").mkdir()
    done = generate(tmp_path, variable, f"{tmp_path}/disk/x", f"mount -t tmpfs -o {options} none {tmp_path}/disk")
    if "mount:" in done.stderr:
        unavailable(done.stderr)
    assert f"cannot be used: {why}; set {variable}" in said(tmp_path, done)
