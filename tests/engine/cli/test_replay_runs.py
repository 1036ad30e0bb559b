"""`cachewatch replay DIR`: what is learned from the traces of a directory, as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_cachewatch.cli.replay_runs import show_runs
from prefect_cachewatch.config import StallPolicy

ROWS = "t_s,total_bytes,file_count\n" + "".join(f"{at},{at * 100_000},1\n" for at in range(6))


@pytest.mark.parametrize(("poll_s", "floor"), [(15, "1 minute"), (1, "30 s")])
def test_a_window_that_the_poll_bounds_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], poll_s, floor):
    for run in range(5):
        (tmp_path / f"{run}.csv").write_text(ROWS)
    show_runs(tmp_path, StallPolicy(poll_s=poll_s), None, as_json=False)
    told = capsys.readouterr().out
    assert f"window {floor}, learned from 5 runs" in told
    shown = "15 s" if poll_s == 15 else "1 s"
    assert f"no learned window is shorter at a poll of {shown} (--poll)" in told
