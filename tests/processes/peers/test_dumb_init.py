"""The checks of dumb-init's tests, as cases of `cachewatch exec`; its debug mode is `--verbose`."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import termios
import time

import pytest
from tests.processes.peers.checks import QUIET, each, guarded, peer, refuse
from tests.processes.peers.listener import LISTENER, listening, state

from prefect_cachewatch.cli.signals import ENDING
from support import (
    CACHEWATCH,
    PATIENCE_S,
    assert_none_left,
    eventually,
    exec_argv,
    new_tag,
    program,
    run,
    running,
    tagged,
)

DUMB_INIT = "dumb-init"
NORMAL = sorted(set(range(1, 32)) - {9, 17, 19, 20, 21, 22})
PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGURG, signal.SIGCONT}
CRASHES = {signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}


# Child processes


@peer(DUMB_INIT, "child_processes: a signal to the entire group")
def test_a_pipeline_is_gone_after_sigterm(tmp_path):
    tag = new_tag()
    script = f"yes {tag} | tail & touch {tmp_path}/up; yes {tag} | tail >&2"
    with running(exec_argv(tmp_path / "cache", *QUIET, command=["sh", "-c", script, tag])) as process:
        assert eventually(lambda: len(tagged(tag)) >= 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
    assert_none_left(tag)


LEFT = """
    import os, signal, sys, time
    if os.fork() == 0:
        signal.signal(15, lambda *_: open(sys.argv[2], "w").close())
        open(sys.argv[2] + ".up", "w").close()
        while True:
            time.sleep(0.02)
    while not os.path.exists(sys.argv[2] + ".up"):
        time.sleep(0.02)
"""


@peer(DUMB_INIT, "child_processes: SIGTERM to those who are left at the exit")
def test_who_is_left_when_the_leader_exits_gets_sigterm(tmp_path):
    command = [*program(LEFT, new_tag()), str(tmp_path / "told")]
    assert guarded(tmp_path, *command, options=("--wait-for", "leader")).status == 0
    assert (tmp_path / "told").exists()


@each(
    DUMB_INIT,
    {
        "child_processes: no such program": [],
        "child_processes: no such program after --": ["--"],
    },
    "before",
)
def test_a_program_that_is_not_there_is_said(tmp_path, before):
    ran = run([*CACHEWATCH, "exec", "--cache-dir", str(tmp_path / "cache"), *before, "/doesnotexist"])
    assert (ran.status, ran.stderr) == (127, "cachewatch: command '/doesnotexist' does not exist: check the path\n")


@each(
    DUMB_INIT,
    {
        "cli: --verbose": ["--verbose"],
        "cli: -v": ["-v"],
    },
    "options",
)
def test_each_step_is_said(tmp_path, options):
    ran = guarded(tmp_path, "echo", "oh,", "hi", options=tuple(options))
    assert (ran.status, ran.stdout) == (0, "oh, hi\n")
    pattern = (
        r"cachewatch: the command was started as pid (\d+)\n"
        r"cachewatch: pid \1 ended with exit code 0; 0 of its tree are left\ncachewatch: the tree has gone\n"
    )
    assert re.fullmatch(pattern, ran.stderr), ran.stderr


# The command line


@peer(DUMB_INIT, "cli: no arguments")
def test_no_arguments_show_the_usage():
    ran = run(CACHEWATCH)
    assert ran.status != 0
    assert "Usage: cachewatch" in ran.stderr


@peer(DUMB_INIT, "cli: an unknown option")
def test_an_unknown_option_is_said(tmp_path):
    refuse(["--yolo"], tmp_path)


@each(DUMB_INIT, {"cli: --help": "--help", "cli: -h": "-h"}, "option")
def test_help_says_what_it_is_for(option):
    ran = run([*CACHEWATCH, "exec", option])
    assert (ran.status, ran.stderr) == (0, "")
    assert "Usage: cachewatch exec" in ran.stdout


@each(DUMB_INIT, {"cli: --version": "--version", "cli: -V": "-V"}, "option")
def test_the_version(option):
    ran = run([*CACHEWATCH, option])
    assert ran.status == 0
    assert re.fullmatch(r"cachewatch, version \S+\n", ran.stdout)


@peer(DUMB_INIT, "cwd: the command's is ours, its parent's is /")
def test_the_commands_parent_holds_on_to_no_directory(tmp_path):
    ran = guarded(tmp_path, "sh", "-c", "readlink /proc/$PPID/cwd && readlink /proc/$$/cwd", cwd="/tmp")
    assert (ran.status, ran.stdout) == (0, "/\n/tmp\n")


# How it ends


@each(DUMB_INIT, {f"exit_status: {status}": status for status in (0, 1, 2, 32, 64, 127, 254, 255)}, "status")
def test_the_exit_status_is_the_commands(tmp_path, status):
    assert guarded(tmp_path, "sh", "-c", f"exit {status}").status == status


@each(
    DUMB_INIT, {f"exit_status: ended by {name}": name for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGKILL")}, "name"
)
def test_the_exit_status_of_a_command_that_a_signal_ended(tmp_path, name):
    number = int(getattr(signal, name))
    source = f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), {number})"
    assert guarded(tmp_path, sys.executable, "-c", source).status == 128 + number


# Signals


def _named(number: int) -> str:
    return f"signals: {signal.Signals(number).name} is passed on"


@each(DUMB_INIT, {_named(number): number for number in NORMAL if number in PASSED_ON}, "number")
def test_a_signal_is_passed_on(tmp_path, number):
    with listening(tmp_path) as run_:
        run_.process.send_signal(number)
        assert eventually(lambda: run_.lines()[-1] == str(number))
        assert run_.end() == 0


@each(
    DUMB_INIT, {_named(number): number for number in NORMAL if number in ENDING and number != signal.SIGINT}, "number"
)
def test_a_signal_is_passed_on_and_ends_the_run(tmp_path, number):
    with listening(tmp_path) as run_:
        run_.process.send_signal(number)
        assert eventually(lambda: run_.lines()[1:2] == [str(number)])
        assert run_.process.wait(PATIENCE_S) == 128 + number


@peer(
    DUMB_INIT,
    _named(signal.SIGINT),
    "Python and shells catch it unasked: who handles SIGTERM gets that alone, to tidy up",
)
def test_who_handles_sigterm_gets_no_sigint(tmp_path):
    with listening(tmp_path) as run_:
        run_.process.send_signal(signal.SIGINT)
        assert run_.process.wait(PATIENCE_S) == 130
        assert run_.lines()[1:2] == ["15"]


STAYS = "an error of a write in Python, which ignores it; and the command gets one of its own"


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=peer(DUMB_INIT, _named(n), STAYS), id=signal.Signals(n).name) for n in (13, 25)],
)
def test_a_signal_that_stays_with_us_changes_nothing(tmp_path, number):
    with listening(tmp_path) as run_:
        run_.process.send_signal(number)
        time.sleep(0.3)
        assert run_.lines() == ["ready"]
        assert run_.end() == 0


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, marks=peer(DUMB_INIT, _named(n), "a crash of this very process: its guards stop the tree"), id=signal.Signals(n).name)
        for n in sorted(CRASHES)
    ],
)  # fmt: skip
def test_a_crash_of_ours_leaves_nobody(tmp_path, number):
    caller = ("sh", "-c", 'ulimit -c 0; exec "$@"', "sh")
    with listening(tmp_path, before=caller) as run_:
        run_.process.send_signal(number)
        assert run_.process.wait(PATIENCE_S) == -number
        assert_none_left(run_.tag)


ENDS_IT = "after TERM, INT or QUIT the next one of them ends the grace period, since somebody is impatient"


@peer(DUMB_INIT, "signals: rewrites, none", ENDS_IT)
def test_the_second_of_term_int_and_quit_ends_the_grace_period(tmp_path):
    with listening(tmp_path, "--grace", "60s") as run_:
        run_.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: run_.lines()[1:2] == ["15"])
        run_.process.send_signal(signal.SIGQUIT)
        assert run_.process.wait(PATIENCE_S) == 143


@each(DUMB_INIT, {f"shell_background: SIG{name}": name for name in ("TSTP", "TTIN", "TTOU")}, "name")
def test_it_is_suspended_with_its_command(tmp_path, name):
    with listening(tmp_path) as run_:
        (pid,) = tagged(run_.tag)
        run_.process.send_signal(getattr(signal, f"SIG{name}"))
        assert eventually(lambda: state(run_.process.pid) == state(pid) == "T")
        run_.process.send_signal(signal.SIGCONT)
        assert eventually(lambda: run_.lines()[-1] == "18")
        assert eventually(lambda: state(run_.process.pid) in "SR" and state(pid) in "SR")
        assert run_.end() == 0


# Terminals


def _typed(argv: list[str], text: str) -> tuple[int, bytes]:
    """Run a command as the leader of a terminal's session and type; returns its status and what was shown."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, os.environ | {"TERM": "dumb"})
    attributes = termios.tcgetattr(fd)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, attributes)
    os.write(fd, text.encode())
    shown = b""
    try:
        while chunk := os.read(fd, 1024):
            shown += chunk
    except OSError:  # the last one who had it open has ended
        pass
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    return os.waitstatus_to_exitcode(status), shown


@peer(DUMB_INIT, "tty: a command can read and write one")
def test_a_command_reads_and_writes_a_terminal(tmp_path):
    status, shown = _typed(exec_argv(tmp_path / "cache", *QUIET, command=["tac"]), "1\n2\n3\n\x04\x04")
    assert (status, shown) == (0, b"3\n2\n1\n")


@peer(DUMB_INIT, "tty: the hand-off of a session leader's terminal")
def test_a_session_leaders_command_gets_the_hangup_that_is_sent_and_no_other(tmp_path):
    heard = tmp_path / "heard"
    command = [*program(LISTENER, new_tag()), str(heard)]
    pid, fd = pty.fork()
    if pid == 0:
        argv = exec_argv(tmp_path / "cache", *QUIET, command=command)
        os.execv(argv[0], argv)
    assert eventually(lambda: heard.exists() and heard.read_text() == "ready\n")
    os.kill(pid, signal.SIGHUP)
    assert eventually(lambda: heard.read_text().split()[1:2] == ["1"])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    os.close(fd)


@peer(DUMB_INIT, "test-zombies: none is left")
def test_a_process_that_nobody_waits_for_is_no_zombie(tmp_path):
    source = """
        import os, time
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.wait()
        time.sleep(1)
        found = []
        for name in os.listdir("/proc"):
            try:
                text = open(f"/proc/{name}/stat").read() if name.isdigit() else ""
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            if fields and int(fields[1]) == os.getppid() and fields[0] == "Z":
                found.append(name)
        assert found == [], found
    """
    assert guarded(tmp_path, *program(source, new_tag())).status == 0
