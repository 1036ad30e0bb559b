"""`cachewatch plan`: the answer in a terminal, as JSON and as a picture."""

from __future__ import annotations

import json
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
    assert re.match(r"Run \d+ at once on nfs-a( \(the most measured\))?: 40 nightly-caches in (about )?\d", lines[0])
    starts = ["Run ", "  1-", "Faster: ", "By hand: ", "  at once", "  if instead", "- "]
    places = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    assert max(map(len, lines)) <= 80
    text = " ".join(run.stdout.split())
    assert "<- latency ticks up" in text
    assert re.search(r"At 10 at once: planned \d+ s a burst, got 27 s: within 25%\.", text)
    assert re.search(r"At 4 at once: planned \d+ s a burst, got 5 min: slower than planned, by [\d.]+ times\.", text)


def test_json_is_json_and_nothing_else() -> None:
    run = cachewatch("plan", "--json", str(EXAMPLES / "cold-start.yaml"))
    data = json.loads(run.stdout)
    answer = data["answers"][0]
    assert answer["n"] >= 1
    assert {row["n"] for row in answer["rows"]} >= {1, answer["n"]}
    assert answer["rows"][0]["classes"][0]["burst_s"] > 0


def test_another_link_and_isolated_classes_are_one_flag_each() -> None:
    shared = json.loads(cachewatch("plan", "--json", str(EXAMPLES / "shared-cluster.yaml")).stdout)
    isolated = json.loads(cachewatch("plan", "--json", "--isolated", str(EXAMPLES / "shared-cluster.yaml")).stdout)
    assert [len(plan["answers"]) for plan in (shared, isolated)] == [1, 2]
    assert [answer["name"] for answer in isolated["answers"]] == ["isilon-a-caches", "isilon-a-model-loads"]
    slow = json.loads(cachewatch("plan", "--json", "--link", "1Gbit/s", str(EXAMPLES / "cold-start.yaml")).stdout)
    assert "link" in {row["held_by"] for row in slow["answers"][0]["rows"]}


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


def test_a_batch_that_does_not_fit_is_refused_with_the_space_that_is_missing(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "storage: {name: disk, free_bytes: 72GiB, write: {one_bytes_per_s: 1GB/s, all_bytes_per_s: 3GB/s}}\n"
        "workloads: [{name: caches, burst_bytes: 2GB, think_s: 10s, bursts_per_job: 10, jobs: 20}]\n"
    )
    run = cachewatch("plan", str(plan))
    assert (run.returncode, run.stdout) == (125, "")
    assert "20 caches do not fit on disk: they leave 400 GB and 77.3 GB are free, so 323 GB are missing" in run.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan"], "Missing argument 'PLAN.yaml'"),
        (["plan", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["plan", "--got", "27s", "x.yaml"], "is not jobs at once and the time of a burst: write it like 10:27s"),
        (["plan", "--got", "5:soon", "x.yaml"], "is not jobs at once and the time of a burst: write it like 10:27s"),
        (["plan", "--link", "20G", str(EXAMPLES / "nightly.yaml")], "may mean bits or bytes"),
        (["plan", "--picture", "/nonexistent/x.svg", str(EXAMPLES / "nightly.yaml")], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence_and_status_125(words: list[str], told: str) -> None:
    run = cachewatch(*words)
    assert run.returncode == 125
    assert told.lower() in run.stderr.lower()
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""
