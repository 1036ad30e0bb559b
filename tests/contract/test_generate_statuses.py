"""Exit statuses of `cachewatch generate`, which runs the Prefect flow: the generator's own, or those of a stop."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.contract.harness import QUICK, WELL, Place, eventually
from tests.prefect_database import fresh_home

ONCE = ("--key", "revision=1", "--attempts", "1", "--no-bundle")
HANGS = (*QUICK, "--poll", "0.2s", "--stall-after", "1s", "--first-write-within", "1s", *ONCE)
# A generator of sh, the options, the exit status, outcome and kind of stall; of a command that cannot be run there is none.
ENDS = {
    "its own": ("exit 9", (*WELL, *ONCE), 9, "failed", None),
    "killed": ("kill -KILL $$", (*WELL, *ONCE), 128 + signal.SIGKILL, "failed", None),
    "a stall": ("sleep 100", HANGS, 124, "stalled", "never_started"),
    "a time limit": ("sleep 100", (*WELL, *ONCE, "--max-duration", "1s"), 124, "deadline_exceeded", None),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_status_says_how_it_ended_and_the_report_says_the_same(place: Place, case: str) -> None:
    script, options, status, outcome, kind = ENDS[case]
    ran = place.generate(*options, command=["sh", "-c", script, "{cache_dir}"])
    assert ran.status == status, ran.stderr
    assert (ran.report["outcome"], ran.report["stall"]["kind"]) == (outcome, kind)
    assert "Traceback" not in ran.stderr
    assert place.current() is None
    place.assert_nobody()


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_signal_to_its_whole_process_group_cancels_it_with_a_report(place: Place, name: str) -> None:
    # As a terminal does it: Prefect's temporary server gets it too.
    number, file = getattr(signal, f"SIG{name}"), place.root / "r.json"
    fresh_home(place.root / "prefect")
    argv = ("generate", "--cache-dir", place.cache, *WELL, "--attempts", "1", "--report", file)
    command = ("sh", "-c", "touch $C/up; sleep 100")
    with (
        (place.root / "said").open("w") as said,
        place.started(*argv, "--", *command, start_new_session=True, stdout=said, stderr=said) as process,
    ):
        assert eventually((place.cache / "up").exists, 180)  # after a server's start
        os.killpg(process.pid, number)
        assert process.wait(180) == 128 + number
    assert json.loads(file.read_text())["outcome"] == "cancelled"
    assert "Traceback" not in (place.root / "said").read_text()
