"""What a guarded command costs that does nothing: `cachewatch exec -- true` against timeout(1)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.benchmarks.measuring import CACHEWATCH, compile_package, interleaved, median, row, scratch, spread, timed


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure from the start of the process to its end.

    Args:
        quick: fewer runs.

    Returns:
        One row against timeout, one against a bare Python interpreter.
    """
    compile_package()
    with scratch() as root:
        guarded = (CACHEWATCH, "exec", "--allow-empty", "--cache-dir", str(root / "cache"), "--", "true")
        ours, timeout, python = interleaved(
            5 if quick else 11,
            lambda: timed(lambda: _quiet(*guarded)),
            lambda: timed(lambda: _quiet("timeout", "60", "true")),
            lambda: timed(lambda: _quiet(sys.executable, "-c", "import json, subprocess, threading")),
        )
    value = median(ours)
    return [
        row("cachewatch exec -- true", value, "s", "timeout 60 true", median(timeout),
            target="at most 0.35 s", ok=value <= 0.35, note=spread(ours)),
        row("cachewatch exec -- true", value, "s", "python -c 'import json, ...'", median(python), note=spread(python)),
    ]  # fmt: skip


def _quiet(*argv: str) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
