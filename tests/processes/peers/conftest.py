"""Counts the peers' checks, says the counts, and writes a table where PEERS_TABLE names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.processes.peers.checks import TOTALS, Check

HERE = Path(__file__).parent
_found: dict[Check, str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.peers)
            for mark in item.iter_markers("peer"):
                item.user_properties.append(("peer", mark.args))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and not report.skipped:
        return
    for key, arguments in report.user_properties:
        if key == "peer":
            check = Check(*arguments)  # it holds if it does in each of its cases
            _found[check] = _found[check] if _found.get(check, "passed") != "passed" else report.outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _found or "PYTEST_XDIST_WORKER" in os.environ:
        return
    for which, total in TOTALS.items():
        if any(check.peer == which for check in _found):
            terminalreporter.write_line(f"{which}: {len(_held(which))} of {total} checks hold")
    target = os.environ.get("PEERS_TABLE")
    if target:
        Path(target).write_text(_page())


def _held(which: str) -> list[Check]:
    return [c for c, outcome in _found.items() if c.peer == which and outcome == "passed" and not c.reason]


def _page() -> str:
    lines = ["# The test suites of timeout, tini and dumb-init", ""]
    lines += ["| test suite | checks | hold |", "|---|---|---|"]
    lines += [f"| {which} | {total} | {len(_held(which))} |" for which, total in TOTALS.items()]
    for which in TOTALS:
        lines += ["", f"## {which}", "", "| what does not hold | |", "|---|---|"]
        for check, outcome in sorted(_found.items(), key=lambda one: one[0].name):
            if check.peer == which and (outcome != "passed" or check.reason):
                broken = f"**{outcome}**" if outcome != "passed" else ""
                lines.append(f"| {check.name} | {broken or check.reason} |")
    return "\n".join(lines) + "\n"
