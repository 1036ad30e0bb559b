"""The process that runs `cachewatch exec` is small: its command line is read in another, which is gone at once."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from support import CACHEWATCH, PATIENCE_S, eventually, exec_argv, run, running

WELL = ("--stall-after", "5m", "--first-write-within", "5m")


def forked(source: str) -> str:
    """Run a program that forks itself, which a test process with threads of its own must not; returns what it printed."""
    ran = run([sys.executable, "-c", textwrap.dedent(source)])
    assert ran.status == 0, ran.stderr
    return ran.stdout


def test_the_watching_process_has_loaded_no_pydantic_and_nobody_else_is_left(tmp_path):
    argv = exec_argv(tmp_path / "c", *WELL, command=["sh", "-c", f"touch {tmp_path}/c/started; sleep 100"])
    with running(argv) as process:
        assert eventually((tmp_path / "c/started").exists)
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        titles = {Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2] for pid in children}
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert "libpython" in maps or "python" in maps
    assert "pydantic" not in maps
    # The fork that accesses files for the watch carries the command line that it was forked from.
    assert titles - {os.fsencode(argv[-1])} == {b"cachewatch-guard", b"cachewatch-scanner"}
    assert len(children) == 3


@pytest.mark.footprint
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="dataclasses cannot do without inspect from 3.13 on")
def test_the_watching_process_goes_without_what_it_seldom_needs(tmp_path):
    code = (
        "import atexit, sys; from prefect_cachewatch.cli.main import main\n"
        "seldom = {'ast', 'dis', 'inspect', 'pickle', '_hashlib', 'prefect_cachewatch.postmortem.model'}\n"
        "atexit.register(lambda: print(*sorted(seldom & set(sys.modules))))\n"
        "main()"
    )
    argv = exec_argv(tmp_path / "c", *WELL, "--quiet", "--allow-empty", command=["true"])
    ran = run([sys.executable, "-c", code, *argv[3:]])
    assert (ran.status, ran.stdout.split()) == (0, []), ran.stderr


def test_a_stall_is_looked_into_and_explained_without_what_checks_input(tmp_path):
    code = (
        "import atexit, sys; from prefect_cachewatch.cli.main import main\n"
        "atexit.register(lambda: print(*sorted(m for m in sys.modules if m in ('click', 'prefect', 'pydantic',"
        " 'prefect_cachewatch.postmortem.rules_storage'))))\n"
        "main()"
    )
    stalls = ["sh", "-c", f"echo a > {tmp_path}/c/a; exec sleep 100"]
    argv = exec_argv(tmp_path / "c", "--quiet", "--stall-after", "1s", "--first-write-within", "5m", command=stalls)
    ran = run([sys.executable, "-c", code, *argv[3:]])
    assert (ran.status, ran.stdout.split()) == (124, ["prefect_cachewatch.postmortem.rules_storage"]), ran.stderr


def test_checked_models_come_over_with_all_their_values_and_stay_frozen():
    told = forked(r"""
        import os
        from pathlib import Path
        from pydantic import BaseModel
        from prefect_cachewatch.cli.option_reader import ExecSettings, PlainModel, settings_from
        from prefect_cachewatch.config import CacheJob, Outputs, StallPolicy, StopPolicy
        from prefect_cachewatch.metrics.settings import Metrics
        def values(of):
            if isinstance(of, (BaseModel, PlainModel)):
                return {name: values(value) for name, value in vars(of).items()}
            return [values(one) for one in of] if isinstance(of, (list, tuple)) else of
        def read(receive):
            job = CacheJob(name="llama", command=["gen", "\u00fc"], cache_dirs=[Path("/c/\udcff")], env={"A": "=\u00fc "})
            return receive(ExecSettings(
                job=job, stall=StallPolicy(stall_after_s=7.5), stop=StopPolicy(), outputs=Outputs(report=Path("/r")),
                create=False, quiet=True, progress=None, foreground=False, verbose=0,
                rewrite={}, metrics=Metrics(to=":9464"), note="a note"))
        loaded = []
        got = settings_from(read, lambda: loaded.append(1))
        same = CacheJob(name="llama", command=["gen", "\u00fc"], cache_dirs=[Path("/c/\udcff")], env={"A": "=\u00fc "})
        assert values(got.job) == values(same) and values(got.stall) == values(StallPolicy(stall_after_s=7.5))
        assert (got.outputs.report, got.outputs.log, got.create, got.note, loaded) == (Path("/r"), None, False, "a note", [1])
        assert (got.metrics.to, got.metrics.linger_s) == (":9464", 60.0)
        assert not isinstance(got.job, CacheJob)
        try:
            got.job.name = "other"
        except AttributeError as error:
            print(error)
    """)
    assert told == "name cannot be set: the values of a model are frozen\n"


def test_what_the_reading_process_says_and_its_status_are_the_commands(tmp_path):
    for options, status in ((["--poll", "soon"], 125), (["--help"], 0), (["--no-such-option"], 125)):
        ran = run([*CACHEWATCH, "exec", "--cache-dir", str(tmp_path / "c"), *options, "--", "true"])
        assert ran.status == status
        assert len(ran.stderr.splitlines()) == (1 if status else 0), ran.stderr
        assert ("Usage: cachewatch exec" in ran.stdout) == (status == 0)
    assert not (tmp_path / "c").exists()


def test_a_caller_that_ignores_the_death_of_children_is_told_the_same(tmp_path):
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    bad = [*CACHEWATCH, "exec", "--cache-dir", str(tmp_path / "c"), "--poll", "soon", "--", "true"]
    assert run([sys.executable, "-c", ignore, *bad]).status == 125
    good = exec_argv(tmp_path / "c", *WELL, "--allow-empty", command=["true"])
    ran = run([sys.executable, "-c", ignore, *good])
    assert (ran.status, "completed" in ran.last_line) == (0, True), ran.stderr


def test_a_reading_process_that_is_killed_is_one_sentence():
    told = forked("""
        import os, signal
        from prefect_cachewatch.cli.option_reader import settings_from
        try:
            settings_from(lambda receive: os.kill(os.getpid(), signal.SIGKILL), lambda: None)
        except OSError as error:
            print(error)
        assert settings_from(lambda receive: 3, lambda: None) == 3
    """)
    assert told == "the process that reads the command line was killed\n"
