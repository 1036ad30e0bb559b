"""A completed run that wrote a cache anew which was there says so in its last sentence."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support import run_exec

WRITE = "import sys; open(sys.argv[1], 'wb').write(b'x' * (2 << 20))"


def test_what_was_there_and_was_written_anew_is_said(tmp_path: Path) -> None:
    def message(name: str) -> str:
        ran = run_exec(tmp_path / "c", command=[sys.executable, "-c", WRITE, str(tmp_path / "c" / name)])
        assert ran.status == 0 and ran.report is not None, ran.stderr
        return str(ran.report["message"])

    assert "was there at the start" not in message("a.bin")
    assert message("a.bin").endswith(" 2.00 MiB was there at the start, and 2.00 MiB of it was written anew.")
    assert "was there at the start" not in message("b.bin"), "a new file beside it"
