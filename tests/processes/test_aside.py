"""The process that accesses files for a watch may be killed or stopped by anybody; what is asked of it is done."""

from __future__ import annotations

import sys
import textwrap

import pytest

from support import run

PROGRAM = """
    import os, signal, sys, time
    from pathlib import Path
    from prefect_cachewatch.common.aside import Aside
    aside = getattr(Aside, sys.argv[1])()
    def signalled(number):
        server = aside.run(os.getppid, timeout_s=30)
        os.kill(server, number)
        os.waitid(os.P_PID, server, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return Path(f"/proc/{server}")
"""


def printed(make: str, source: str) -> list[str]:
    """Run a program without threads of its own, which may fork the server from itself; what it printed."""
    ran = run([sys.executable, "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(source), make])
    assert ran.status == 0, ran.stderr
    return ran.stdout.split()


@pytest.mark.parametrize(("make", "number"), [("fork", "SIGKILL"), ("spawn", "SIGSTOP")])
def test_what_is_asked_of_a_killed_or_stopped_file_server_is_done(make, number):
    source = f"""
        first = signalled(signal.{number})
        print(aside.run(len, "abc", timeout_s=30))
        last = Path(f"/proc/{{aside.run(os.getppid, timeout_s=30)}}")
        aside.close()
        print(first.exists(), last.exists())
    """
    assert printed(make, source) == ["3", "False", "False"]


def test_a_stopped_file_server_does_not_outlive_its_client():
    source = """
        server = signalled(signal.SIGSTOP)
        aside.close()
        print(server.exists())
    """
    assert printed("spawn", source) == ["False"]


def test_a_file_server_that_vanishes_while_it_is_ended_is_no_error():
    source = """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.kill(aside.run(os.getppid, timeout_s=30), signal.SIGKILL)
        time.sleep(0.3)
        judged = iter([False, True, False, True])  # alive when it is asked, gone when it is signalled
        aside._is_gone = lambda: next(judged)
        aside.close()
        print("closed")
    """
    assert printed("fork", source) == ["closed"]


def test_a_relative_state_directory_is_the_same_place_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEWATCH_STATE", "st")
    source = """
        from prefect_cachewatch.common.directories import state_directory
        print(aside.run(state_directory, timeout_s=30))
    """
    assert printed("spawn", source) == [f"{tmp_path}/st"]
