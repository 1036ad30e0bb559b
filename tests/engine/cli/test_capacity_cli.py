"""`cachewatch plan`: the answer in a terminal, as JSON and as a page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "planner"


def cachewatch(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prefect_cachewatch.cli.main", *words],
        capture_output=True, text=True, check=False, env=os.environ | env,
    )  # fmt: skip


def test_the_answer_comes_first_then_bounds_table_bottleneck_and_assumptions() -> None:
    run = cachewatch("plan", str(EXAMPLES / "nightly.yaml"))
    assert run.returncode == 0
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert re.match(
        r"nfs-a: latency is 10 % up at \d+ generations, doubled at \d+; \d+ \(\d+-\d+\) is the most",
        run.stdout.replace("\n", " "),
    )
    order = ["Bounds", "Over n jobs of nightly-caches at once", "Bottleneck: ", "What the next purchase", "Assumptions"]
    places = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in order]
    assert places == sorted(places)
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in run.stdout


def test_several_classes_are_told_their_slots() -> None:
    run = cachewatch("plan", str(EXAMPLES / "shared-cluster.yaml"))
    assert "slots for all classes" in run.stdout
    assert "With the slots shared out evenly" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_json_is_json_and_nothing_else() -> None:
    run = cachewatch("plan", "--json", "--simulate", "--events", "50000", str(EXAMPLES / "cold-start.yaml"))
    data = json.loads(run.stdout)
    assert data["limit"] >= 1
    assert data["simulation"]["events"] == 50000
    assert data["classes"][0]["rules"][0]["rule"] == "slowdown"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        assert not any(name.startswith("on") for name, _ in attrs)


def test_the_page_has_three_charts_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    run = cachewatch("plan", "--html", str(page), str(EXAMPLES / "shared-cluster.yaml"))
    assert run.returncode == 0
    text = page.read_text()
    parser = _Page()
    parser.feed(text)
    assert parser.tags.count("svg") == 3
    assert "script" not in parser.tags
    assert "link" not in parser.tags
    assert parser.fetched == []
    assert "url(" not in text
    assert "knee N*" in text
    for kind in ("generation", "inference", "training"):
        assert kind in text


def test_names_from_outside_do_nothing_in_terminal_and_page(tmp_path: Path) -> None:
    plan, page = tmp_path / "plan.yaml", tmp_path / "plan.html"
    plan.write_text(
        "storage: {preset: ebs-gp3, name: '<script>alert(1)</script>'}\n"
        "workloads: [{name: '<b>x</b>', burst_bytes: 1GB, think_s: 10}]\n"
    )
    run = cachewatch("plan", "--html", str(page), str(plan))
    assert run.returncode == 0
    assert "<script>" not in page.read_text()
    assert "<b>" not in page.read_text()
    bad = tmp_path / "bad.yaml"
    bad.write_text('"\\e[2J": 1\n')
    assert "\x1b" not in cachewatch("plan", str(bad)).stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan"], "give a PLAN.yaml"),
        (["plan", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["plan", "--events", "5", "x.yaml"], "range"),
        (["plan", "--html", "/nonexistent/x.html", str(EXAMPLES / "nightly.yaml")], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence_and_status_125(words: list[str], told: str) -> None:
    run = cachewatch(*words)
    assert run.returncode == 125
    assert told in run.stderr
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""


def test_presets_are_listed_within_80_columns() -> None:
    run = cachewatch("plan", "--presets")
    assert "efs-regional" in run.stdout
    assert "vendor ceilings" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80
