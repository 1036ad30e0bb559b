"""`cachewatch plan`: the answer in a terminal, as JSON and as a picture."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "planner"


def cachewatch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prefect_cachewatch.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )


def test_the_answer_comes_first_then_the_rows_the_alternatives_and_the_notes() -> None:
    run = cachewatch("plan", str(EXAMPLES / "nightly.yaml"), "--got", "10:27s", "--got", "4:5m")
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert re.match(r"Run \d+ at once on nfs-a \(the most measured\): 40 nightly-caches in \d", lines[0])
    starts = ["Run ", "  1-", "Faster: ", "By hand: ", "  at once", "  if instead", "- "]
    places = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    assert max(map(len, lines)) <= 80
    text = " ".join(run.stdout.split())
    assert "<- latency ticks up" in text
    assert re.search(r"At 10 at once: planned \d+ s a burst, got 27 s: within 25%\.", text)
    assert re.search(r"At 4 at once: planned \d+ s a burst, got 5 min: slower than planned, by [\d.]+ times\.", text)


def test_the_picture_is_one_svg_that_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    picture, plan = tmp_path / "plan.svg", tmp_path / "plan.yaml"
    plan.write_text((EXAMPLES / "nightly.yaml").read_text().replace("name: nfs-a", "name: '<script>x</script>'"))
    run = cachewatch("plan", str(plan), "--picture", str(picture), "--got", "10:27s")
    assert run.returncode == 0, run.stderr
    text = picture.read_text()
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert tags == {"svg", "rect", "line", "polyline", "circle", "text"}
    for words in ("shared", "full", "storage", "jobs at once", "run ", "past runs", "measured, with its spread"):
        assert words in text
    assert "<script>" not in text


@pytest.mark.parametrize("argv", [["plan", "{plan}", "--picture", "{plan}"], ["probe", "{here}", "-o", "{plan}"]])
def test_a_file_that_is_none_of_ours_is_not_overwritten(tmp_path: Path, argv: list[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(text := (EXAMPLES / "cold-start.yaml").read_text())
    run = cachewatch(*(word.format(plan=plan, here=tmp_path) for word in argv))
    assert (run.returncode, run.stdout) == (125, "")
    assert str(plan) in run.stderr
    assert plan.read_text() == text
    assert [*tmp_path.iterdir()] == [plan]
