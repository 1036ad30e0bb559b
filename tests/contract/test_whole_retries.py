"""What a clean-up before an attempt removes is written again, or the cache is not whole; and it is never a wrong directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.builds import active, offer
from tests.contract.harness import WELL, Place

TWICE = (*WELL, "--key", "revision=1", "--attempts", "2", "--backoff", "0.1s")
# A hub that keeps files in blobs and links to them; the first attempt dies within the second file.
HUB = """
cache, resumes = Path(sys.argv[1]), len(sys.argv) > 2
blobs, snapshot = cache / "blobs", cache / "snapshots" / "c"
first = not snapshot.is_dir()
if first or resumes:
    blobs.mkdir(exist_ok=True)
    snapshot.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "weights.bin"):
        if os.path.lexists(snapshot / name):
            continue
        with open(blobs / f"{name}.incomplete", "wb") as file:
            file.write(b"x" * 50_000)
            if first and name == "weights.bin":
                sys.exit("the read operation timed out")
            file.write(b"x" * 50_000)
        os.rename(blobs / f"{name}.incomplete", blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
"""
# Its list of what is done lies elsewhere.
JOURNAL = """
cache, done = Path(sys.argv[1]), PLACE / "done"
if not done.exists():
    done.touch()
    (cache / "a.bin").write_bytes(b"x" * 50_000)
    sys.exit("the device hangs")
"""


def test_what_a_clean_up_removed_and_nothing_wrote_again_is_refused_by_name(place: Place, root: Path) -> None:
    for program, lost in ((HUB, "weights.bin.incomplete"), (JOURNAL, "a.bin")):
        attempt = [*map(str, place.program(program))]

        def fill(directory: Path, attempt: list[str] = attempt) -> None:
            subprocess.run([*attempt, str(directory)], check=True, capture_output=True)

        with pytest.raises(subprocess.CalledProcessError):
            offer(root, fill, key=lost)
        offered = offer(root, fill, key=lost)
        assert offered.adopted and "not_written_again" in offered.refused
        assert "empty_cache" not in offered.refused  # the generator has used the right directory
        assert lost in offered.said and active(root) is None


def test_a_download_that_the_next_attempt_finishes_is_published_and_links_to_removed_files_are_gone(
    place: Place,
) -> None:
    ran = place.generate(*TWICE, command=[*place.program(HUB), "{cache_dir}", "resumes"])
    assert (ran.status, ran.report["attempt"]) == (0, 2), ran.stderr
    assert "removed the links to them as well: snapshots/c/config.json" in ran.stderr
    current = place.current()
    assert current is not None
    assert [(current / "snapshots/c" / name).stat().st_size for name in ("config.json", "weights.bin")] == [100_000] * 2
    assert "weights.bin.incomplete" in "\n".join(ran.report["notes"])  # what was removed is said
    assert "not written again" not in ran.report["message"]


def test_a_clean_retry_that_writes_nothing_has_failed_and_names_no_report_as_written(place: Place) -> None:
    file = place.root / "report.json"
    options = (
        "--cache-dir", place.cache, "--attempts", "2", "--backoff", "0.1s", "--on-retry", "clean", "--report", file,
    )  # fmt: skip
    ran = place.run("generate", *WELL, *options, "--", *place.program(JOURNAL), place.cache)
    assert ran.status == 1, ran.stderr
    assert "wrote nothing again" in ran.stderr
    assert "NothingWritten" not in ran.stderr
    assert str(file) not in ran.last_line
