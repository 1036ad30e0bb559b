"""What CI ran, as one table: each target of the Makefile, its tests, and how long it took.

`python3 tests/ci_table.py DIRECTORY` reads `steps` there (name, exit status or `-`, seconds and reason, with tabs
between them) and the reports of pytest's --junitxml: NAME.xml, and NAME.again.xml where what had failed ran once more, alone.
`--few-failed FILE` exits 0 if that is worth it. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAKEFILE = Path(__file__).parents[1] / "Makefile"
# So many causes of a whole run may be gone at the second try alone: the tests of a file that share a fixture count as one.
LET_THROUGH = 5


@dataclass(frozen=True)
class Step:
    """How one target ended; status None is left out, for a reason."""

    name: str
    status: int | None
    seconds: int = 0
    reason: str = ""

    @classmethod
    def parse(cls, line: str) -> Step:
        name, status, seconds, reason = line.split("\t")
        return cls(name, None if status == "-" else int(status), int(seconds), reason)


@dataclass(frozen=True)
class Report:
    """The tests of one target."""

    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    #: Those of the failed whose fixture failed: the tests of a file that share it have one cause.
    at_setup: tuple[str, ...] = ()

    @property
    def causes(self) -> int:
        """How many things went wrong, at most."""
        return len(self.failed) - len(self.at_setup) + len({test.partition("::")[0] for test in self.at_setup})

    @classmethod
    def parse(cls, xml: str) -> Report:
        passed, skipped, failed, at_setup = 0, 0, list[str](), list[str]()
        for case in ET.fromstring(xml).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(f"{case.get('classname')}::{case.get('name')}")
                if case.find("failure") is None:
                    at_setup.append(failed[-1])
            elif case.find("skipped") is not None:
                skipped += 1
            else:
                passed += 1
        return cls(passed, skipped, tuple(dict.fromkeys(failed)), tuple(dict.fromkeys(at_setup)))

    def passed_again(self, again: Report | None) -> bool:
        """Tell whether everything that failed here passed when it ran alone."""
        return bool(self.failed) and again is not None and not again.failed and again.passed >= len(self.failed)


def targets(makefile: str) -> list[str]:
    """List the targets that a Makefile offers."""
    return [name for line in re.findall(r"(?m)^\.PHONY:(.*)$", makefile) for name in line.split()]


def verdict(step: Step, report: Report | None, again: Report | None = None) -> str:
    """Say in a word or two how a target ended; what begins with `ok` or `left out: ` is as it should be."""
    if step.status is None:
        return f"left out: {step.reason}" if step.reason else "LEFT OUT WITHOUT A REASON"
    if report is not None and report.passed_again(again):
        return f"ok, {len(report.failed)} at the second try"
    if step.status:
        return f"FAILED (exit status {step.status})"
    if step.name.startswith("test") and (report is None or not report.passed):
        return "FAILED: it ran no tests"
    return "ok" if report is None or not report.failed else "FAILED"


def table(
    steps: Sequence[Step], reports: dict[str, Report], expected: Iterable[str], again: dict[str, Report] | None = None
) -> tuple[list[str], bool]:
    """Lay out the steps, and those that are missing.

    Args:
        steps: in the order in which they ran.
        reports: the tests of those that have any.
        expected: targets that must have run, or have a reason.
        again: the tests of those whose failed ones ran once more, alone.

    Returns:
        Lines to print; whether all is as it should be.
    """
    again = again or {}
    known = {step.name for step in steps}
    rows = [*steps, *(Step(name, None) for name in expected if name not in known)]
    lines, good = [f"{'target':<18}{'passed':>7}{'skipped':>9}{'failed':>8}{'minutes':>9}  result"], bool(steps)
    for step in rows:
        report = reports.get(step.name)
        result = verdict(step, report, again.get(step.name))
        counts = ("", "", "") if report is None else (report.passed, report.skipped, len(report.failed))
        minutes = "" if step.status is None else f"{step.seconds / 60:.1f}"
        lines.append(f"{step.name:<18}{counts[0]:>7}{counts[1]:>9}{counts[2]:>8}{minutes:>9}  {result}")
        good = good and result.startswith(("ok", "left out: "))
    failed = [(name, test) for name, report in reports.items() for test in report.failed]
    second = sum(report.causes for name, report in reports.items() if report.passed_again(again.get(name)))
    if second > LET_THROUGH:
        lines += [
            "",
            f"FAILED: {second} causes were gone only at the second try; at most {LET_THROUGH} are let through",
        ]
        good = False
    if failed:
        lines += ["", "Failed tests, and how to run each alone:"]
        lines += [f"{name}: .venv/bin/pytest '{_path(test)}'" for name, test in failed]
    return lines, good


def _path(test: str) -> str:
    """Make the name by which pytest runs a test: a report has the module's dots, and after it perhaps a class."""
    module, _, name = test.partition("::")
    words = module.split(".")
    classes = [word for word in words if word[:1].isupper()]
    return "::".join(["/".join(words[: len(words) - len(classes)]) + ".py", *classes, name])


def main(argv: Sequence[str]) -> int:
    """Print the table of a directory.

    Returns:
        The exit status: 1 if a target failed, or is missing.
    """
    if argv[0] == "--few-failed":
        report = _report(Path(argv[1]))
        return 0 if report is not None and 0 < report.causes <= LET_THROUGH else 1
    results = Path(argv[0])
    found = results / "steps"
    steps = [Step.parse(line) for line in found.read_text().splitlines()] if found.exists() else []
    reports = {step.name: report for step in steps if (report := _report(results / f"{step.name}.xml"))}
    again = {step.name: report for step in steps if (report := _report(results / f"{step.name}.again.xml"))}
    lines, good = table(steps, reports, targets(MAKEFILE.read_text()), again)
    print("", *lines, sep="\n")
    return 0 if good else 1


def _report(path: Path) -> Report | None:
    try:
        return Report.parse(path.read_text())
    except (OSError, ET.ParseError):  # none, or cut short
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
