"""Signals of `cachewatch generate`: the generator's are passed on, Ctrl-Z suspends it, the rest cancel the flow run."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.orchestration.conftest import Server
from tests.support import CACHEWATCH, PATIENCE_S, assert_none_left, eventually, new_tag, program, running, tagged

LISTENER = """
    import os, signal, sys, time
    out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, lambda number, frame: os.write(out, b"%d\\n" % number))
    os.write(out, b"ready\\n")
    end = time.monotonic() + 100
    while time.monotonic() < end and not os.path.exists(sys.argv[2] + ".end"):
        time.sleep(0.02)
"""


def state(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text[text.rindex(")") + 2]


def argv(tmp_path: Path, tag: str) -> list[str]:
    options = [
        "--allow-empty",
        "--attempts",
        "1",
        "--grace",
        "0.5s",
        "--no-bundle",
        "--poll",
        "0.3s",
        "--report",
        str(tmp_path / "r.json"),
    ]
    command = [*program(LISTENER, tag), str(tmp_path / "heard")]
    return [*CACHEWATCH, "generate", "--cache-dir", str(tmp_path / "cache"), *options, "--", *command]


def test_usr1_reaches_the_generator_and_ctrl_z_suspends_it(tmp_path: Path, server: Server):
    tag, heard = new_tag(), tmp_path / "heard"
    with running(argv(tmp_path, tag), env=server.env, stderr=None, stdout=None) as process:
        assert eventually(lambda: heard.exists() and heard.read_text() == "ready\n")
        process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: heard.read_text() == "ready\n10\n")
        (pid,) = tagged(tag)
        process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: state(process.pid) == state(pid) == "T")
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        assert eventually(lambda: heard.read_text() == "ready\n10\n18\n")
        (tmp_path / "heard.end").touch()
        assert process.wait(PATIENCE_S) == 0
    assert json.loads((tmp_path / "r.json").read_text())["outcome"] == "completed"


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_what_ends_a_process_cancels_the_run_with_a_report(tmp_path: Path, server: Server, name: str):
    tag, heard, number = new_tag(), tmp_path / "heard", getattr(signal, f"SIG{name}")
    with running(argv(tmp_path, tag), env=server.env, stderr=None, stdout=None) as process:
        assert eventually(lambda: heard.exists() and heard.read_text() == "ready\n")
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
    assert_none_left(tag)
    assert json.loads((tmp_path / "r.json").read_text())["outcome"] == "cancelled"
    assert "15" in heard.read_text().split()


@pytest.mark.timeout(360)
@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_ctrl_c_that_takes_the_temporary_server_along_is_a_cancellation(tmp_path: Path, name: str):
    tag, heard, number = new_tag(), tmp_path / "heard", getattr(signal, f"SIG{name}")
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env |= {"PREFECT_HOME": str(tmp_path / "prefect"), "CACHEWATCH_STATE": str(tmp_path / "state")}
    said = tmp_path / "said"
    with (
        said.open("w") as stderr,
        running(argv(tmp_path, tag), env=env, stderr=stderr, stdout=None, start_new_session=True) as process,
    ):
        assert eventually(lambda: heard.exists() and heard.read_text() == "ready\n", 4 * PATIENCE_S)  # a server's start
        os.killpg(process.pid, number)  # as a terminal does: to Prefect's temporary server too
        assert process.wait(PATIENCE_S) == 128 + number
    assert_none_left(tag)
    assert json.loads((tmp_path / "r.json").read_text())["outcome"] == "cancelled"
    assert "Tensor cache generation was cancelled" in said.read_text()
    assert "Traceback" not in said.read_text()
