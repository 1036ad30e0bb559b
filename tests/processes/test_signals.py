"""Signals of `cachewatch exec`: what is the command's, what suspends it, what ends the run, and what is inherited."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import (
    PATIENCE_S,
    WELL,
    assert_none_left,
    eventually,
    exec_argv,
    mostly_apart,
    new_tag,
    program,
    run_exec,
    running,
    signal_each,
    tagged,
)

LIFE_S = 100
CATCHABLE = sorted(set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})
FORWARDED = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGRTMIN, signal.SIGRTMIN + 3, signal.SIGRTMAX]
ENDING = ["HUP", "INT", "QUIT", "TRAP", "ABRT", "ALRM", "TERM", "STKFLT", "XCPU", "VTALRM", "PROF", "IO", "PWR", "SYS"]

# Writes the number of each signal it gets as a line, and stays until it is killed or told to end by a file.
LISTENER = f"""
    import os, signal, sys, time
    out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in signal.valid_signals() - {{9, 19, 17}}:
        signal.signal(number, lambda number, frame: os.write(out, b"%d\\n" % number))
    os.write(out, b"ready\\n")
    end = time.monotonic() + {LIFE_S}
    while time.monotonic() < end and not os.path.exists(sys.argv[2] + ".end"):
        time.sleep(0.02)
"""


@dataclass
class Listening:
    """A run of `cachewatch exec` on a listener."""

    process: subprocess.Popen[str]
    heard: Path
    report: Path
    tag: str

    def lines(self) -> list[str]:
        return self.heard.read_text().split() if self.heard.exists() else []

    def end(self) -> int:
        Path(f"{self.heard}.end").touch()
        return self.process.wait(PATIENCE_S)

    def told(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.report.read_text())
        return data


@contextlib.contextmanager
def listening(tmp_path: Path, *options: str, before: tuple[str, ...] = (), **popen: Any) -> Iterator[Listening]:
    tag, heard, report = new_tag(), tmp_path / "heard", tmp_path / "report.json"
    command = [*program(LISTENER, tag), str(heard)]
    argv = exec_argv(tmp_path / "cache", *WELL, "--report", str(report), *options, command=command)
    with running([*before, *argv], **popen) as process:
        run = Listening(process, heard, report, tag)
        assert eventually(lambda: run.lines()[:1] == ["ready"]), process.stderr.read() if process.poll() else ""
        yield run
    assert_none_left(tag)


def state(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text[text.rindex(")") + 2]


def guards(pid: int) -> list[int]:
    """The outer and the inner guard of a run."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):  # it ends just now: there is no file, or nothing in it
            if name.isdigit() and b"cachewatch-guard" in Path(f"/proc/{name}/cmdline").read_bytes():
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                found.append((parent, int(name)))
    (outer,) = (child for parent, child in found if parent == pid)
    (inner,) = (child for parent, child in found if parent == outer)
    return [outer, inner]


# What is the command's


def test_the_signals_of_the_command_reach_it_and_nothing_else_comes_of_them(tmp_path):
    with listening(tmp_path) as run:
        for number in FORWARDED:
            run.process.send_signal(number)
            assert eventually(lambda number=number: run.lines()[-1] == str(int(number))), run.lines()
        assert run.lines() == ["ready", *(str(int(number)) for number in FORWARDED)]
        assert run.end() == 0
        assert run.told()["outcome"] == "completed"


def test_a_signal_goes_to_the_whole_process_group_of_the_command(tmp_path):
    source = f"""
        import os, signal, time
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
        pids = [os.fork() for _ in range(1)]
        if pids[0] and os.fork() == 0:
            os.setsid()  # a group of its own: not meant
        open({str(tmp_path)!r} + f"/up.{{os.getpid()}}", "w").close()
        end = time.monotonic() + 3
        while time.monotonic() < end and not got:
            time.sleep(0.02)
        open({str(tmp_path)!r} + f"/end.{{len(got)}}.{{os.getpid()}}", "w").close()
        if pids[0] == 0 or not got:
            os._exit(0)
        os.wait()
    """
    with running(exec_argv(tmp_path / "cache", *WELL, command=program(source, new_tag()))) as process:
        assert eventually(lambda: len(list(tmp_path.glob("up.*"))) == 3)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE_S) == 0
    assert (len(list(tmp_path.glob("end.1.*"))), len(list(tmp_path.glob("end.0.*")))) == (2, 1)


def test_a_command_that_dies_of_what_it_was_passed_on_has_died_by_itself(tmp_path):
    ran = run_exec(
        tmp_path / "cache", *WELL, command=["sh", "-c", "kill -USR1 $1; sleep 100", "sh", "0"], timeout=PATIENCE_S
    )
    assert ran.status == 128 + signal.SIGUSR1  # of its own group: that of the command alone
    assert (ran.report["outcome"], ran.report["signal"]) == ("failed", signal.SIGUSR1)


def test_a_storm_of_signals_changes_nothing(tmp_path):
    with listening(tmp_path) as run:
        for _ in range(10_000):
            run.process.send_signal(signal.SIGUSR1)
        for _ in range(200):
            run.process.send_signal(signal.SIGRTMIN + 1)
        assert eventually(lambda: run.lines().count(str(signal.SIGRTMIN + 1)) > 0)
        assert eventually(lambda: str(int(signal.SIGUSR1)) in run.lines())
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PATIENCE_S) == 143
        assert run.told()["outcome"] == "cancelled"


def test_a_signal_that_comes_before_the_command_is_started_waits_for_it(tmp_path):
    source = f"""
        import os, signal, sys
        sys.argv = ["cachewatch", *{exec_argv(tmp_path / "cache", *WELL, command=["sleep", str(LIFE_S)])[3:]!r}]
        import prefect_cachewatch.watching.site as site
        real = site.CacheDirectories.begin
        def begin(self):
            os.kill(os.getpid(), signal.SIGUSR2)
            return real(self)
        site.CacheDirectories.begin = begin
        from prefect_cachewatch.cli import main
        run = main._run_click
        def early(argv):
            os.kill(os.getpid(), signal.SIGUSR1)
            return run(argv)
        main._run_click = early
        main.main()
    """
    with running([sys.executable, "-c", textwrap.dedent(source)]) as process:
        status = process.wait(PATIENCE_S)
    assert status in (128 + signal.SIGUSR1, 128 + signal.SIGUSR2)


# What ends the run


@pytest.mark.parametrize("name", mostly_apart(ENDING, ["INT", "QUIT", "TERM"]))
def test_every_other_signal_that_ends_a_process_cancels_with_a_report(tmp_path, name):
    number = getattr(signal, f"SIG{name}")
    with listening(tmp_path) as run:
        run.process.send_signal(number)
        error = run.process.stderr.read()
        assert run.process.wait(PATIENCE_S) == 128 + number
        assert run.told()["outcome"] == "cancelled"
        assert error.splitlines()[-1].startswith(f"Tensor cache generation was cancelled (SIG{name}); ")
        heard = [line for line in run.lines() if line.isdigit()]
        assert "15" in heard
        # Who dumps its stacks on SIGQUIT still can. Python and shells catch SIGINT unasked: SIGTERM's handler is the one.
        assert heard[0] == ("15" if name == "INT" else str(int(number)))


TIDY = f"""
    import pathlib, sys, time
    try:
        pathlib.Path(sys.argv[2] + "/up").touch()
        time.sleep({LIFE_S})
    except KeyboardInterrupt:
        time.sleep(1)
        pathlib.Path(sys.argv[2] + "/tidy").touch()
"""


def test_who_catches_what_ends_the_run_has_half_the_grace_period_before_sigterm(tmp_path):
    command = [*program(TIDY, new_tag()), str(tmp_path)]
    with running(exec_argv(tmp_path / "cache", *WELL, "--grace", "200s", command=command)) as process:
        assert eventually((tmp_path / "up").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert (tmp_path / "tidy").exists()


def test_who_does_not_catch_it_gets_sigterm_at_once(tmp_path):
    script = f"trap '' INT; touch {tmp_path}/up; exec sleep {LIFE_S}"
    with running(exec_argv(tmp_path / "cache", *WELL, "--grace", "1000s", command=["sh", "-c", script])) as process:
        assert eventually((tmp_path / "up").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_a_signal_within_the_grace_period_reaches_the_command(tmp_path):
    with listening(tmp_path, "--grace", "200s") as run:
        run.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: "15" in run.lines())
        for number in (signal.SIGUSR1, signal.SIGHUP):
            run.process.send_signal(number)
            assert eventually(lambda number=number: str(int(number)) in run.lines())
        assert run.end() == 143


def test_exec_killed_within_the_grace_period_leaves_nobody(tmp_path):
    with listening(tmp_path, "--grace", "1s") as run:
        run.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: "15" in run.lines())
        run.process.kill()
        run.process.wait(PATIENCE_S)


@pytest.mark.parametrize("name", mostly_apart(["INT", "TERM", "HUP"], ["TERM"]))
def test_what_ends_the_run_before_the_generator_exists_starts_nothing(tmp_path, name):
    source = f"""
        import os, signal, sys, time
        sys.argv = ["cachewatch", *{exec_argv(tmp_path / "cache", *WELL, command=["touch", str(tmp_path / "ran")])[3:]!r}]
        import prefect_cachewatch.watching.site as site
        real = site.CacheDirectories.begin
        def begin(self):
            os.kill(os.getpid(), signal.SIG{name})
            return real(self)
        site.CacheDirectories.begin = begin
        from prefect_cachewatch.cli.main import main
        main()
    """
    with running([sys.executable, "-c", textwrap.dedent(source)]) as process:
        error = process.stderr.read()
        assert process.wait(PATIENCE_S) == 128 + getattr(signal, f"SIG{name}")
    assert error == f"cachewatch: SIG{name} before the generator was started\n"
    assert not (tmp_path / "ran").exists()


def test_no_signal_changes_the_exit_status_at_the_very_end(tmp_path):
    # Whoever is not deaf after its last word dies of the storm, since Python gives signals back their defaults.
    for _ in range(3):
        with running(exec_argv(tmp_path / "cache", *WELL, command=["sh", "-c", "exit 5"])) as process:
            assert eventually(
                lambda process=process: b"ended with exit code 5" in os.read(process.stderr.fileno(), 65536)
            )
            while process.poll() is None:
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
                    process.send_signal(number)
            assert process.returncode == 5


def test_a_closed_terminals_two_hangups_leave_the_grace_period_whole(tmp_path):
    source = f"""
        import signal, sys, time
        def end(*_):
            time.sleep(1)
            open({str(tmp_path / "tidy")!r}, "w").close()
            sys.exit(0)
        signal.signal(15, end)
        open({str(tmp_path / "started")!r}, "w").close()
        time.sleep({LIFE_S})
    """
    argv = exec_argv(tmp_path / "cache", *WELL, "--grace", "50s", command=program(source, new_tag()))
    with running(argv) as process:
        assert eventually((tmp_path / "started").exists)
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
        assert process.wait(PATIENCE_S) == 129
    assert (tmp_path / "tidy").exists()


# What suspends it


@pytest.mark.parametrize("name", mostly_apart(["TSTP", "TTIN", "TTOU"], ["TSTP"]))
def test_ctrl_z_stops_the_tree_with_us_and_fg_continues_it(tmp_path, name):
    # In a session of its own there is no shell that it could be stopped for: it is stopped all the same.
    with listening(tmp_path, "--stall-after", "1s", "--poll", "0.3s", start_new_session=True) as run:
        (pid,) = tagged(run.tag)
        for times in (1, 2):
            run.process.send_signal(getattr(signal, f"SIG{name}"))
            assert eventually(lambda: state(run.process.pid) == "T" and state(pid) == "T")
            time.sleep(0.3)
            run.process.send_signal(signal.SIGCONT)
            assert eventually(lambda: state(run.process.pid) in "SR" and state(pid) in "SR")
            # Not before: the next SIGSTOP would take back a SIGCONT that the listener has not had yet; and of two signals
            # that are due at once the handler of the later one runs first.
            assert eventually(lambda times=times: run.lines().count("18") == times)
            assert eventually(lambda: state(run.process.pid) == "S")
        time.sleep(0.3)
        assert run.lines().count("18") == 2  # once each
        assert run.end() == 0


@pytest.mark.campaign
def test_the_time_for_which_it_was_suspended_is_no_silence(tmp_path):
    with listening(tmp_path, "--first-write-within", "5s", "--max-duration", "60s", "--poll", "0.5s") as run:
        for _ in range(3):
            time.sleep(0.2)
            assert eventually(lambda: state(run.process.pid) == "S")
            run.process.send_signal(signal.SIGTSTP)
            assert eventually(lambda: state(run.process.pid) == "T")
            time.sleep(2.5)
            run.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        assert run.end() == 0, run.process.stderr.read()


@pytest.mark.campaign
@pytest.mark.parametrize("poll", mostly_apart(["0.2s", "1s"], ["0.2s"]))
def test_a_watcher_that_was_stopped_by_force_makes_no_stall_of_the_gap(tmp_path, poll):
    with listening(tmp_path, "--first-write-within", "5s", "--poll", poll) as run:
        for _ in range(2):
            time.sleep(0.1)
            run.process.send_signal(signal.SIGSTOP)
            time.sleep(3)
            run.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        assert run.end() == 0, run.process.stderr.read()


def test_who_was_stopped_before_stays_so(tmp_path):
    source = f"""
        import os, signal, time
        pid = os.fork()
        if pid == 0:
            time.sleep({LIFE_S})
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until it is stopped
        open({str(tmp_path / "child")!r}, "w").write(str(pid))
        time.sleep({LIFE_S})
    """
    tag = new_tag()
    with running(exec_argv(tmp_path / "cache", *WELL, command=program(source, tag))) as process:
        assert eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
        child = int((tmp_path / "child").read_text())
        process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: state(process.pid) == "T")
        process.send_signal(signal.SIGCONT)
        (parent,) = set(tagged(tag)) - {child}
        assert eventually(lambda: state(parent) in "SR")
        assert state(child) == "T"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
    assert_none_left(tag)


def test_a_suspended_run_that_is_killed_leaves_nobody(tmp_path):
    with listening(tmp_path) as run:
        run.process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: state(run.process.pid) == "T")
        run.process.kill()
        run.process.wait(PATIENCE_S)
        assert_none_left(run.tag)


# What the guards get


@pytest.mark.parametrize(
    "name", mostly_apart(["USR1", "USR2", "ALRM", "QUIT", "TSTP", "PIPE", "PROF", "RTMIN"], ["USR1", "TSTP"])
)
def test_a_signal_to_every_process_of_a_job_ends_no_helper(tmp_path, name):
    number = getattr(signal, f"SIG{name}")
    with listening(tmp_path) as run:
        helpers = [int(pid) for pid in subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(run.process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()]  # fmt: skip
        signal_each({*helpers, *guards(run.process.pid)}, number)
        time.sleep(0.5)
        assert run.end() == 0
        assert run.told()["notes"] == []


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", mostly_apart(["TERM", "INT", "HUP"], ["TERM"]))
def test_an_ending_signal_to_a_guard_is_told(tmp_path, name, which):
    with listening(tmp_path, "-v") as run:
        assert "the command was started as pid" in run.process.stderr.readline()  # its guard has said so
        os.kill(guards(run.process.pid)[which], getattr(signal, f"SIG{name}"))
        if which:
            assert run.process.wait(PATIENCE_S) == 125
            assert "its guard got a signal" in run.told()["message"]
        else:  # the outer one outlives it, since the inner one needs its grace period
            time.sleep(0.3)
            assert run.end() == 0


# What is inherited


def masks(caller: str, argv: list[str]) -> tuple[set[int], set[int]]:
    """Ignored and blocked signals of `cat`, by what its caller did (a shell script that ends in "$@")."""
    done = subprocess.run(
        ["bash", "-c", caller, "bash", *argv], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    lines = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    sets = [{n for n in range(1, 65) if int(lines[name], 16) >> (n - 1) & 1} for name in ("SigIgn", "SigBlk")]
    return sets[0], sets[1]


def with_and_without(tmp_path: Path, caller: str) -> list[tuple[set[int], set[int]]]:
    """The masks of a command below `exec`, and of the same without it: this test's own caller may ignore some too."""
    status = ["cat", "/proc/self/status"]
    return [masks(caller, argv) for argv in (exec_argv(tmp_path / "cache", *WELL, command=status), status)]


@pytest.mark.footprint
@pytest.mark.parametrize(
    ("caller", "ignored"),
    [
        ('nohup "$@" 2>&1', set()),  # without a terminal it ignores SIGHUP alone, see below
        ('trap "" USR1 INT TTOU CHLD; "$@"; exit', {signal.SIGUSR1, signal.SIGINT, signal.SIGTTOU}),
        ('trap "" XFSZ RTMIN; "$@"; exit', {signal.SIGXFSZ, signal.SIGRTMIN}),
        ('"$@" & wait $!', {signal.SIGINT, signal.SIGQUIT}),
        ('exec env --ignore-signal=TERM --ignore-signal=ALRM "$@"', {signal.SIGTERM, signal.SIGALRM}),
    ],
)
def test_what_the_caller_ignores_the_command_ignores(tmp_path, caller, ignored):
    if caller.startswith("nohup"):
        ignored = {signal.SIGHUP}
    below, plain = with_and_without(tmp_path, caller)
    assert below == (plain[0] - {signal.SIGCHLD}, plain[1]), "SIGCHLD always has its default"
    assert ignored <= plain[0]


def test_what_the_caller_blocks_the_command_finds_blocked(tmp_path):
    blocked = {signal.SIGUSR1, signal.SIGTTIN, signal.SIGILL, signal.SIGTERM}
    names = " ".join(f"--block-signal={signal.Signals(n).name[3:]}" for n in [*blocked, signal.SIGCHLD])
    below, plain = with_and_without(tmp_path, f'exec env {names} "$@"')
    assert plain[1] == blocked | {signal.SIGCHLD}
    assert below == (plain[0], blocked), "a blocked SIGCHLD is not handed on: most commands wait for children"


def test_a_caller_that_ignores_sigchld_gets_the_commands_status_and_a_stop(tmp_path):
    caller = ("env", "--ignore-signal=CHLD")
    with listening(tmp_path, before=caller) as run:
        assert run.end() == 0, run.process.stderr.read()
    (tmp_path / "heard.end").unlink()
    (tmp_path / "heard").unlink()
    with listening(tmp_path, before=caller) as run:
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PATIENCE_S) == 143


def test_under_nohup_a_hangup_is_neither_ours_nor_the_commands(tmp_path):
    with listening(tmp_path, before=("nohup",)) as run:
        run.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert run.end() == 0
        assert run.lines() == ["ready"]


# What cannot be executed, as env and timeout say it


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("..", 126), ("/etc/passwd/", 126), ("sub", 126), ("x" * 300, 126), ("", 127), ("no-such/", 127),
    ],
)  # fmt: skip
def test_what_cannot_be_executed_ends_as_a_shell_ends(tmp_path, name, status):
    (tmp_path / "bin" / "sub").mkdir(parents=True)
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}:/etc/passwd:{os.environ['PATH']}"}
    assert subprocess.run(["env", name], env=env, capture_output=True, check=False, cwd="/").returncode == status
    ran = run_exec(tmp_path / "cache", *WELL, command=[name], env=env, cwd="/")
    assert (ran.status, ran.stderr.count("\n"), ran.report) == (status, 1, None)
