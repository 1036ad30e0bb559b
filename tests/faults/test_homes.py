"""A user without a home: missing, somebody else's, not even named; the run ends as ever and says what was not written."""

from __future__ import annotations

import os

import pytest

from tests.faults.harness import NOBODY, Sandbox, living
from tests.support import unavailable

HOMES = {"not set": None, "missing": "/nonexistent/home", "another user's": "/root", "empty": "", "no disk": "/proc"}


@pytest.mark.parametrize("home", HOMES)
def test_a_user_without_a_home_gets_the_verdict_and_the_report(home: str, nobody_runs: bool) -> None:
    if os.geteuid() != 0 or not nobody_runs:
        unavailable("needs root, and a virtual environment that an unprivileged user can read")
    sandbox = Sandbox.make(NOBODY)
    try:
        environ = {name: value for name, value in sandbox.env().items() if name not in ("HOME", "XDG_STATE_HOME")}
        if (value := HOMES[home]) is not None:
            environ["HOME"] = value
        tag, command = sandbox.tree("plain", writes=3)
        process = sandbox.guarded(command, window="2s", env=environ)
        assert process.wait(100) == 124, sandbox.stderr()
        report = sandbox.report()
        assert report["outcome"] == "stalled"
        assert living(tag) == []
        notes = " ".join(report["notes"])
        assert "no state file for the janitor" in notes
        assert "no bundle was written" in notes
        assert "Traceback" not in sandbox.stderr()
    finally:
        sandbox.close()
