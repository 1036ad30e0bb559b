"""Disks that take no more: of the report, and of the log."""

from __future__ import annotations

import json
import os
import sys

from tests.faults.harness import Sandbox
from tests.support import unavailable


def small_disk(sandbox: Sandbox, name: str, options: str) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to mount a small file system")
    sandbox.mkdir(name)
    sandbox.mounts += ["--tmpfs", str(sandbox.root / name), f"{options},mode=777"]


def test_a_report_that_does_not_fit_is_shortened_and_says_so(sandbox: Sandbox) -> None:
    small_disk(sandbox, "reports", "size=32k")
    source = "import sys\nfor n in range(400): open(f'{sys.argv[1]}/f.{n}', 'wb').write(bytes(4096))"
    command = [sys.executable, "-I", "-S", "-c", source, str(sandbox.cache)]
    path = sandbox.root / "reports" / "report.json"
    show = f'"$@"; code=$?; cat {path}; exit $code'
    with open(sandbox.root / "shown", "wb") as shown:
        process = sandbox.guarded(command, "--report", str(path), before=["sh", "-c", show, "sh"], stdout=shown)
    assert process.wait(120) == 0, sandbox.stderr()
    report = json.loads((sandbox.root / "shown").read_bytes())
    assert report["outcome"] == "completed"
    assert report["listing"]["total_files"] == 400
    assert 0 < len(report["listing"]["entries"]) < 400
    assert report["listing"]["truncated"]
    assert any("shortened" in note and "No space left on device" in note for note in report["notes"])
