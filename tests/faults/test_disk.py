"""A disk that takes no more: of the report."""

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


def test_a_report_that_does_not_fit_is_whole_in_the_temporary_directory(sandbox: Sandbox) -> None:
    small_disk(sandbox, "reports", "size=32k")
    temporary = sandbox.mkdir("tmp")
    source = "import sys\nfor n in range(400): open(f'{sys.argv[1]}/f.{n}', 'wb').write(bytes(4096))"
    command = [sys.executable, "-I", "-S", "-c", source, str(sandbox.cache)]
    path = sandbox.root / "reports" / "report.json"
    process = sandbox.guarded(command, "--report", str(path), env=sandbox.env(TMPDIR=str(temporary)))
    assert process.wait(120) == 0, sandbox.stderr()
    (elsewhere,) = temporary.iterdir()
    assert elsewhere.stat().st_mode & 0o777 == 0o600
    assert f"cannot be written: No space left on device; it is in {elsewhere} instead" in sandbox.stderr()
    report = json.loads(elsewhere.read_text())
    assert (report["outcome"], len(report["listing"]["entries"])) == ("completed", 400)
