"""CI's table tells apart what ran, what failed and what was left out; and one failure hides no other target."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.ci_table import LET_THROUGH, Report, Step, table, targets, verdict

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "report", "said"),
    [
        ("lint\t0\t9\t", None, "ok"),
        ("lint\t2\t9\t", None, "FAILED (exit status 2)"),
        ("test\t0\t9\t", Report(3), "ok"),
        ("test\t0\t9\t", Report(3, 0, ("a::b",)), "FAILED"),
        ("test\t0\t9\t", Report(0, 3), "FAILED: it ran no tests"),
        ("test\t0\t9\t", None, "FAILED: it ran no tests"),
        ("test-ui\t-\t0\tno time", None, "left out: no time"),
        ("test-ui\t-\t0\t", None, "LEFT OUT WITHOUT A REASON"),
    ],
)
def test_each_end_of_a_target_has_its_word(line: str, report: Report | None, said: str) -> None:
    assert verdict(Step.parse(line), report) == said


def test_a_target_of_the_makefile_that_nobody_mentions_fails_the_table() -> None:
    steps = [Step("lint", 0, 60)]
    assert table(steps, {}, ["lint"])[1]
    lines, good = table(steps, {}, ["lint", "soak"])
    assert not good
    assert lines[-1].split() == ["soak", "LEFT", "OUT", "WITHOUT", "A", "REASON"]


def test_a_test_that_fails_fails_its_target_and_is_named() -> None:
    lines, good = table([Step("test", 2, 60)], {"test": Report(9, 0, ("tests.engine.test_a::test_b[x]",))}, [])
    assert lines[1].endswith("FAILED (exit status 2)")
    assert not good
    assert lines[-1] == "test: .venv/bin/pytest 'tests/engine/test_a.py::test_b[x]'"


def test_nothing_run_is_no_success() -> None:
    assert not table([], {}, [])[1]


def test_what_fails_and_passes_alone_is_let_through_some_times_and_is_named() -> None:
    step, first = Step("test", 2, 60), Report(9, 0, ("t::a",))
    assert verdict(step, first, Report(1)) == "ok, 1 at the second try"
    assert verdict(step, first, Report(0, 0, ("t::a",))) == verdict(step, first) == "FAILED (exit status 2)"
    assert verdict(step, Report(9, 0, ("t::a", "t::b")), Report(1)).startswith("FAILED")
    lines, good = table([step], {"test": first}, [], {"test": Report(1)})
    assert good
    assert lines[-1] == "test: .venv/bin/pytest 't.py::a'"
    steps = [Step("test", 2, 60), Step("test-ui", 2, 60)]
    reports = {"test": first, "test-ui": Report(9, 0, tuple(f"t::{n}" for n in range(LET_THROUGH)))}
    assert not table(steps, reports, [], {"test": Report(1), "test-ui": Report(LET_THROUGH)})[1]


def test_the_tests_of_a_file_whose_fixture_fails_are_one_cause() -> None:
    cases = [f'<testcase classname="t.ends" name="{n}"><error/></testcase>' for n in range(60)]
    report = Report.parse(f'<s>{"".join(cases)}<testcase classname="t.ends" name="x"><failure/></testcase></s>')
    assert (len(report.failed), report.causes) == (61, 2)
    assert table([Step("test", 2, 60)], {"test": report}, [], {"test": Report(61)})[1]


# A make that only tells what it was asked for: of BROKEN targets a test fails, of UNLUCKY ones once.
MAKE = f"""#!{sys.executable}
import os, re, sys
target = sys.argv[1]
xml = re.search(r"--junitxml=(\\S+)", " ".join(sys.argv))
broken = target in os.environ["BROKEN"].split()
broken = broken or target in os.environ["UNLUCKY"].split() and "--last-failed" not in sys.argv[-1]
if xml:
    failure = "<failure/>" * broken
    open(xml[1], "w").write('<testcase classname="t" name="%s">%s</testcase>' % (target, failure))
sys.exit(2 if broken else 0)
"""


def run_ci(folder: Path, broken: str = "", unlucky: str = "") -> subprocess.CompletedProcess[str]:
    """Run .ci/run with the make of above."""
    for name in (".ci/run", "tests/ci_table.py", "Makefile"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "bin").mkdir()
    for path, text in ((folder / "bin/make", MAKE), (folder / ".ci/packages", "#!/bin/sh\n")):
        path.write_text(text)
        path.chmod(0o755)
    more = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "BROKEN": broken, "UNLUCKY": unlucky}
    return subprocess.run([folder / ".ci/run"], env={**os.environ, **more}, capture_output=True, text=True)


def rows(text: str) -> dict[str, str]:
    return {line.split()[0]: line for line in text.rpartition("target ")[2].splitlines()[1:] if line}


def test_ci_runs_what_comes_after_a_failed_target_and_fails_at_the_end(tmp_path: Path) -> None:
    ran = run_ci(tmp_path, broken="lint test test-faults", unlucky="test-server")
    found = rows(ran.stdout)
    assert ran.returncode == 1
    assert sorted(name for name, line in found.items() if "FAILED" in line) == ["lint", "test", "test-faults"]
    assert found["test-server"].endswith("ok, 1 at the second try")
    assert set(targets((ROOT / "Makefile").read_text())) <= set(found)
    assert (tmp_path / "build/ci/test-server.again.xml").exists()


def test_ci_passes_with_one_test_that_passed_at_the_second_try_and_names_it(tmp_path: Path) -> None:
    ran = run_ci(tmp_path, unlucky="test")
    assert ran.returncode == 0, ran.stdout
    assert "test: .venv/bin/pytest 't.py::test'" in ran.stdout


def test_the_workflows_call_targets_that_exist_and_the_lowest_and_newest_prefect_have_one_of_their_own() -> None:
    workflows = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()}
    called = {
        name: {
            target
            for job in workflow["jobs"].values()
            for step in job["steps"]
            for target in re.findall(r"^make ([a-z-]+)", step.get("run", ""))
        }
        for name, workflow in workflows.items()
    }
    assert set().union(*called.values()) <= set(targets((ROOT / "Makefile").read_text()))
    assert called["versions.yml"] == {"test-versions"}
    assert {"schedule", "push", "pull_request"} <= set(workflows["versions.yml"][True])  # YAML reads `on` as true
