"""Stopping what does not want to be stopped: guards that are stopped or traced, main threads that have ended, handlers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.test_guard import LIFE_S, PLAIN, gone, guarded

from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.supervise.janitor import clear_leftovers
from prefect_cachewatch.supervise.proc import read_stat
from prefect_cachewatch.supervise.reading import read_each
from prefect_cachewatch.supervise.turns import is_stuck
from support import PATIENCE_S, assert_none_left, eventually, new_tag, program, run_exec, running, signal_each, tagged


def state_of(pid: int) -> str:
    found = read_stat(pid)
    return found.state if found else "gone"


@pytest.mark.campaign
def test_guards_that_are_stopped_again_and_again_are_given_up() -> None:
    """The generator has the same user: what it does to the guards must not save it."""
    tag = new_tag()
    hold = """
        import os, signal, time
        guards = [os.getppid(), int(open(f"/proc/{os.getppid()}/stat").read().rsplit(") ", 1)[1].split()[1])]
        for number in (1, 2, 15):
            signal.signal(number, signal.SIG_IGN)
        while True:
            for pid in guards:
                try:
                    os.kill(pid, signal.SIGSTOP)
                except OSError:
                    pass
            time.sleep(0.0005)
    """
    with guarded(program(hold, tag)) as guard:
        assert eventually(lambda: tagged(tag) and state_of(guard.root_pids[1]) == "T")
        time.sleep(0.5)
        guard.stop()
        assert gone(guard).survivors == []
        assert tagged(tag) == []


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


@pytest.mark.campaign
def test_a_guard_that_a_tracer_holds_is_killed_where_a_stop_is_wanted() -> None:
    tag = new_tag()
    tracer = f"""
        import ctypes, os, sys, time
        libc = ctypes.CDLL(None, use_errno=True)
        for request in ({PTRACE_SEIZE}, {PTRACE_INTERRUPT}):
            if libc.ptrace(request, int(sys.argv[1]), None, None):
                sys.exit(os.strerror(ctypes.get_errno()))
        os.waitpid(int(sys.argv[1]), 0x40000000)
        print("held", flush=True)
        time.sleep({LIFE_S})
    """
    with guarded(program(PLAIN, tag)) as guard:
        assert eventually(lambda: tagged(tag))
        with running([sys.executable, "-c", textwrap.dedent(tracer), str(guard.root_pids[1])]) as process:
            if process.stdout.readline() != "held\n":
                pytest.skip(f"tracing is not allowed here: {process.stderr.read()}")
            assert eventually(lambda: state_of(guard.root_pids[1]) == "t")
            guard.stop()
            assert gone(guard).survivors == []
            assert tagged(tag) == []


FLOW = f"""
    import os, sys, time, uuid
    from prefect_cachewatch.supervise.client import GuardClient
    from prefect_cachewatch.supervise.supervisor import Launch
    null = os.open(os.devnull, os.O_RDWR)
    source = "import time; time.sleep({LIFE_S})"
    guard = GuardClient(Launch([sys.executable, "-I", "-S", "-c", source, sys.argv[1]],
        env=dict(os.environ), cwd=None, stdio=(null, null, null), grace_s=0.3, run_token=uuid.uuid4().hex))
    guard.start()
    print(*guard.root_pids, flush=True)
    time.sleep({LIFE_S})  # prefect_cachewatch: tells this process from its tree
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    yield tmp_path / "state" / "runs"


@pytest.mark.campaign
def test_the_janitor_has_guards_go_on_that_were_stopped_after_the_death_of_their_flow(state: Path) -> None:
    tag = new_tag()
    source = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(100)"
    flow = (
        textwrap.dedent(FLOW).replace(f"import time; time.sleep({LIFE_S})", source).replace("grace_s=0.3", "grace_s=3")
    )
    with running([sys.executable, "-c", flow, tag]) as process:
        guards = [int(pid) for pid in process.stdout.readline().split()]
        assert eventually(lambda: tagged(tag))
        time.sleep(0.3)
        process.kill()
        assert eventually(lambda: state_of(process.pid) in "Zgone")
        time.sleep(0.3)
        signal_each(guards, signal.SIGSTOP)
        assert eventually(lambda: all(state_of(pid) == "T" for pid in guards))
        time.sleep(3.5)
        assert tagged(tag), "nobody acts while both guards are stopped and their flow is dead"
        report = clear_leftovers(str(state))
        assert (report.running, report.survivors, report.refusals) == (0, (), ())
        assert_none_left(tag)
        assert eventually(lambda: os.listdir(state) == [])


# A main thread that has ended while others live


# SIGTERM once

HANDLER = """
    import signal, subprocess, sys, time
    def tidy(*_):
        done = subprocess.run(["/bin/sh", "-c", "sleep 0.4; echo done > " + sys.argv[1]])
        sys.exit(0 if done.returncode == 0 else 9)
    signal.signal(15, tidy)
    open(sys.argv[2] + "/a", "wb").write(bytes(9000))  # it is silent only once it has its handler
    time.sleep(100)
"""


def test_a_clean_up_command_is_left_to_end_within_the_grace_period(tmp_path: Path) -> None:
    path, cache = tmp_path / "tidied", tmp_path / "cache"
    options = ["--stall-after", "2s", "--first-write-within", "5m", "--poll", "200ms", "--grace", "60s"]
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(HANDLER), str(path), str(cache)]
    ran = run_exec(cache, *options, command=command)
    assert (ran.status, path.read_text()) == (124, "done\n")


# Readings that never return


def test_a_reading_that_hangs_costs_its_deadline_and_is_asked_for_once() -> None:
    read_end, write_end = os.pipe()
    with running(["sleep", "100"]) as first, running(["sleep", "100"]) as second:

        def read(pid: int) -> int:
            if pid == first.pid:
                os.read(read_end, 1)
            return pid

        began = time.monotonic()
        assert read_each([first.pid], read, total_s=0.5) == {}
        assert is_stuck(first.pid)
        assert read_each([first.pid, second.pid], read, total_s=30) == {second.pid: second.pid}
        assert time.monotonic() - began < 20
        os.write(write_end, b"x")
        assert eventually(lambda: not is_stuck(first.pid))
        assert read_each([second.pid], read) == {second.pid: second.pid}
    os.close(read_end)
    os.close(write_end)


def test_a_scan_process_that_is_stopped_goes_on_and_no_file_system_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 9000)
    scanner = DirectoryScanner()
    try:
        scanner.request("check", path=str(tmp_path), create=False)
        os.kill(scanner.pid, signal.SIGSTOP)
        assert eventually(lambda: state_of(scanner.pid) == "T")
        assert scanner.request("check", path=str(tmp_path), create=False)["error"] is None
    finally:
        scanner.close()


def test_a_guard_that_dies_again_and_again_saves_nobody(tmp_path: Path) -> None:
    """The generator kills its guards, first one and then, as the other takes over, that one too."""
    tag, started = new_tag(), tmp_path / "started"
    source = f"""
        import os, signal, time
        for number in (1, 2, 15):
            signal.signal(number, signal.SIG_IGN)
        inner = os.getppid()
        outer = int(open(f"/proc/{{inner}}/stat").read().rsplit(") ", 1)[1].split()[1])
        if os.fork() == 0:
            os.setsid()
            while not os.path.exists({str(started)!r}):  # a guard that dies before it has told of the start is another matter
                time.sleep(0.01)
            while True:
                for pid in (inner, outer):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        pass
        time.sleep({LIFE_S})
    """
    with guarded(program(source, tag)) as guard:
        started.touch()
        report = gone(guard)
        assert_none_left(tag)
    assert report.why in ("guards_died", "inner_guard_died")
    assert report.survivors == []


CHAIN = """
import os, sys
for _ in range(600):
    if os.fork():
        os._exit(0)
"""
LOOKS_AT_A_CHAIN = f"""
import contextlib, ctypes, os, select, subprocess, sys
from prefect_cachewatch.supervise.proc import descendants

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: orphans of the chain move here
alive, end = os.pipe()
subprocess.Popen([sys.executable, "-I", "-S", "-c", {CHAIN!r}], pass_fds=[end])
os.close(end)
looks = empty = 0
while True:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = descendants(os.getpid())
    if select.select([alive], [], [], 0)[0]:
        break
    looks, empty = looks + 1, empty + (not found)
with contextlib.suppress(ChildProcessError):
    while True:
        os.waitpid(-1, 0)
print(looks, empty)
"""


def test_a_process_that_ends_during_a_look_does_not_hide_its_child() -> None:
    """Each process of a chain starts the next one and ends at once: a look is never empty while the chain lives."""
    done = subprocess.run(
        [sys.executable, "-c", LOOKS_AT_A_CHAIN], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    looks, empty = map(int, done.stdout.split())
    assert (looks > 5, empty) == (True, 0), done.stderr
