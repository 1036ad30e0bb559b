"""The twin guards: what they freeze, what the generator gets of them, and readings from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid

import pytest

from prefect_cachewatch.errors import CommandError
from prefect_cachewatch.supervise.client import GuardClient
from prefect_cachewatch.supervise.helper_client import running_clients
from prefect_cachewatch.supervise.proc import children, command_line, descendants, is_alive, read_stat, send_signal
from prefect_cachewatch.supervise.supervisor import Launch
from support import PATIENCE_S, eventually, new_tag, program, running, tagged

# Nothing outlives a test by more than this, should the guard fail.
LIFE_S = 100
PLAIN = f"import time; time.sleep({LIFE_S})"
DAEMON = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    for fd in range(3):
        os.close(fd)
    source = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({LIFE_S})"
    os.execve("/proc/self/exe", [sys.orig_argv[0], "-I", "-S", "-c", source, sys.argv[1]], {{}})
time.sleep({LIFE_S})
"""


@contextlib.contextmanager
def guarded(argv, *, grace_s=0.3, wait_for="tree", env=None, cwd=None):
    """Run a command under guard, its output thrown away; the guard is let go of at the end."""
    null = os.open(os.devnull, os.O_RDWR)
    guard = GuardClient(Launch(
        argv, env=dict(os.environ) if env is None else env, cwd=cwd, stdio=(null, null, null),
        grace_s=grace_s, run_token=uuid.uuid4().hex, wait_for=wait_for,
    ))  # fmt: skip
    try:
        guard.start()
        yield guard
    finally:
        guard.close()
        os.close(null)


def gone(guard):
    report = guard.wait(PATIENCE_S)
    assert report is not None, "the tree was not gone in time"
    return report


def test_a_stopped_process_gets_its_grace_period_too():
    tag = new_tag()
    source = (
        "import os, signal, sys; signal.signal(15, lambda *_: sys.exit(7)); os.kill(os.getpid(), 19); signal.pause()"
    )
    with guarded(program(source, tag), grace_s=30) as guard:
        assert eventually(lambda: [p for p in tagged(tag) if (s := read_stat(p)) and s.state == "T"])
        guard.stop()
        report = gone(guard)
    assert report.exit_code == 7


def test_freeze_stops_everybody_and_a_stop_still_works_after_it():
    tag = new_tag()
    with guarded(program(DAEMON, tag)) as guard:
        assert eventually(lambda: len(tagged(tag)) == 2)
        time.sleep(0.2)
        frozen = guard.freeze(PATIENCE_S)
        assert set(frozen) == set(tagged(tag))
        assert eventually(lambda: {read_stat(pid).state for pid in frozen} == {"T"})
        guard.stop()
        assert gone(guard).survivors == []
        assert tagged(tag) == []


def test_a_working_directory_that_cannot_be_entered_is_cachewatchs_own_failure():
    with (
        pytest.raises(CommandError, match="working directory /nowhere cannot be entered") as error,
        guarded(["true"], cwd="/nowhere"),
    ):
        pass
    assert error.value.exit_code == 125


def test_the_generator_gets_its_environment_its_directory_and_no_stray_descriptor(tmp_path):
    out = tmp_path / "seen"
    source = f"""
        import json, os, signal
        fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{fd}}"))
        json.dump([dict(os.environ), os.getcwd(), fds, os.getsid(0) == os.getpid(),
            [n for n in (1, 2, 15, 17) if signal.getsignal(n) != signal.SIG_DFL],
            sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))], open({str(out)!r}, "w"))
    """
    with guarded(program(source, new_tag()), env={"A": "b", "LC_ALL": "C.UTF-8"}, cwd=str(tmp_path)) as guard:
        gone(guard)
        run_token = guard.run_token
    import json

    environ, cwd, fds, leads, handlers, mask = json.loads(out.read_text())
    assert environ == {"A": "b", "LC_ALL": "C.UTF-8", "CACHEWATCH_ID": run_token}
    assert (cwd, leads, mask) == (str(tmp_path), True, [])
    assert handlers == [2]  # Python's own for SIGINT
    assert fds == [0, 1, 2]


# Readings from /proc


def test_a_process_is_its_pid_and_its_start_time():
    with running(["sleep", str(LIFE_S)]) as process:
        found = read_stat(process.pid)
        assert found.parent == os.getpid()
        assert is_alive(process.pid, found.start_ticks)
        assert not is_alive(process.pid, found.start_ticks + 1)
        assert not send_signal(process.pid, found.start_ticks + 1, signal.SIGKILL)
        assert process.poll() is None
        assert send_signal(process.pid, found.start_ticks, signal.SIGKILL)
        assert eventually(lambda: not is_alive(process.pid, found.start_ticks))
        assert not send_signal(process.pid, found.start_ticks, signal.SIGKILL)  # a zombie


def test_a_name_with_parentheses_and_spaces_does_not_confuse_the_reading(tmp_path):
    path = tmp_path / "a) S 1 (b"
    path.write_text(f"#!{sys.executable} -IS\nimport time; time.sleep({LIFE_S})\n")
    path.chmod(0o755)
    with running([str(path)]) as process:
        assert eventually(lambda: ") S" in (command_line(process.pid) or [""])[-1])
        assert read_stat(process.pid).parent == os.getpid()


def test_children_of_every_thread_are_found():
    source = """
        import subprocess, threading, time
        threading.Thread(target=lambda: (subprocess.Popen(["sleep", "100"]), time.sleep(100)), daemon=True).start()
        time.sleep(100)
    """
    tag = new_tag()
    with running(program(source, tag)) as process:
        assert eventually(lambda: children(process.pid))
        below = descendants(process.pid)
        (sleeper,) = below
        assert eventually(lambda: command_line(sleeper) == ["sleep", "100"])
        os.kill(sleeper, signal.SIGKILL)


def test_a_signal_that_comes_while_a_client_is_being_made_is_kept_and_breaks_nothing(monkeypatch):
    # The thread that acts on signals died of it, and every later signal was lost.
    told = []

    def look():
        told.extend(client.signal([signal.SIGUSR1]) for client in running_clients())
        return {"ignored": [], "blocked": []}

    monkeypatch.setattr("prefect_cachewatch.supervise.client.inherited_signals", look)
    client = GuardClient(Launch(["true"], {}, None, (0, 1, 2), 1.0, uuid.uuid4().hex))
    assert told[-1:] == [False]  # nobody takes it yet: it is sent again
    assert client in running_clients()
