"""The units of systemd in docs/deploy.md: systemd takes them, and a worker's end is its own alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
UNITS = dict(re.findall(r"```ini\n# /etc/systemd/system/(\S+)\n(.*?)```", (DOCS / "deploy.md").read_text(), re.DOTALL))


def test_only_the_worker_is_signalled_and_it_is_started_again() -> None:
    unit = RawConfigParser()
    unit.read_string(UNITS["cachewatch-worker.service"])
    assert (unit["Service"]["Restart"], unit["Service"]["KillMode"]) == ("always", "process")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name, text in UNITS.items():
        # The programs and users of the page are not on this machine.
        here = re.sub(r"(?m)^(ExecStart=)\S+", r"\1/bin/true", re.sub(r"(?m)^User=.*\n", "", text))
        (tmp_path / name).write_text(here)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.glob("*.service"))], capture_output=True, text=True, timeout=60
    )
    # What it says of the machine's own units is not ours.
    assert [line for line in done.stderr.splitlines() if any(name in line for name in UNITS)] == []
