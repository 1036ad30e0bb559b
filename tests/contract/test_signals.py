"""Signals to `cachewatch exec`: what is the command's, what suspends both, what ends the run, and what is inherited."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import COMMAND, WELL, Place, eventually, state
from tests.contract.terminal import Terminal, terminal

CALM = (*WELL, "--allow-empty", "--no-bundle")
# Writes the number of each signal as a line, and stays until it is killed or told to end by a file.
LISTENER = """
import signal
(PLACE / "pids").write_text(f"{os.getpid()} {os.getppid()}")
out = os.open(PLACE / "heard", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in signal.valid_signals() - {9, 19, 17}:
    signal.signal(number, lambda number, frame: os.write(out, b"%d\\n" % number))
os.write(out, b"ready\\n")
end = time.monotonic() + 200
while time.monotonic() < end and not (PLACE / "end").exists():
    time.sleep(0.02)
"""


@dataclass
class Listening:
    """A run of `cachewatch exec` on a listener."""

    place: Place
    process: subprocess.Popen[str]
    pid: int = 0
    guard: int = 0
    """The listener's parent, which watches over the tree."""

    def heard(self) -> list[str]:
        return _heard(self.place.root / "heard")

    def end(self) -> int:
        (self.place.root / "end").touch()
        return self.process.wait(60)

    def measured(self) -> dict[str, Any]:
        """The next measurement that a run with `--progress json` tells of."""
        while (event := json.loads(self.process.stderr.readline()))["event"] != "progress":
            continue
        return event

    def report(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.place.root / "r.json").read_text())
        return data


@contextlib.contextmanager
def listening(place: Place, *options: str, source: str = LISTENER, **how: Any) -> Iterator[Listening]:
    argv = ["exec", "--cache-dir", place.cache, *CALM, "--report", "r.json", *options, "--", *place.program(source)]
    with place.started(*argv, **how) as process:
        run = Listening(place, process)
        assert eventually(lambda: run.heard()[:1] == ["ready"] or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        run.pid, run.guard = map(int, (place.root / "pids").read_text().split())
        yield run


@pytest.mark.parametrize("name", ["USR1", "USR2", "WINCH", "URG", "CONT", "RTMIN", "RTMAX"])
def test_the_signals_of_the_command_reach_it_and_nothing_else_comes_of_them(place: Place, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    with listening(place) as run:
        run.process.send_signal(number)
        assert eventually(lambda: len(run.heard()) > 1)
        assert run.heard() == ["ready", str(int(number))]
        assert (run.end(), run.report()["outcome"]) == (0, "completed")


@pytest.mark.parametrize("name", [
    "HUP", "INT", "QUIT", "TRAP", "ABRT", "ALRM", "TERM", "STKFLT", "XCPU", "VTALRM", "PROF", "IO", "PWR", "SYS",
])  # fmt: skip
def test_every_other_signal_that_ends_a_process_cancels_the_run_with_a_report(place: Place, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    with listening(place) as run:
        run.process.send_signal(number)
        error = run.process.communicate(timeout=60)[1]
        assert run.process.returncode == 128 + number
        assert f"(SIG{name})" in error.splitlines()[-1]
        assert (run.report()["outcome"], len(run.report()["stop"]["killed"])) == ("cancelled", 1)
        # Who catches SIGINT and SIGTERM, as Python and shells do unasked, gets SIGTERM alone.
        heard = [word for word in run.heard()[1:] if word != "18"]  # SIGCONT, for those who are stopped
        assert heard == (["15"] if name in ("INT", "TERM") else [str(int(number)), "15"])


@pytest.mark.parametrize("name", ["PIPE", "XFSZ"])
def test_errors_of_a_write_are_no_signals(place: Place, name: str) -> None:
    with listening(place) as run:
        run.process.send_signal(getattr(signal, f"SIG{name}"))
        run.process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: len(run.heard()) > 1)
        assert (run.heard(), run.end()) == (["ready", "10"], 0)


@pytest.mark.parametrize("name", ["KILL", "SEGV"])
@pytest.mark.parametrize("when", ["running", "grace", "suspended"])
def test_a_command_that_is_killed_leaves_nobody_and_frees_the_directory(place: Place, name: str, when: str) -> None:
    with listening(place) as run:
        if when == "grace":
            run.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: "15" in run.heard())
        if when == "suspended":
            run.process.send_signal(signal.SIGTSTP)
            assert eventually(lambda: state(run.process.pid) == state(run.pid) == "T")
        run.process.send_signal(getattr(signal, f"SIG{name}"))
        if when == "suspended" and name == "SEGV":
            run.process.send_signal(signal.SIGCONT)  # a stopped process dies of SIGKILL alone
        assert run.process.wait(60) == -getattr(signal, f"SIG{name}")
        assert eventually(lambda: state(run.pid) == "")
        assert "15" in run.heard(), "it is told before it is killed"
    assert place.exec(*CALM, command=["true"]).status == 0


# Arguments of the run, the signals that it gets, and for how many seconds at least it goes on after the first.
GRACE = {
    "the grace period is waited for": ("3s", ["TERM"], 3.0, 143),
    "two hangups of a closed terminal leave it whole": ("4s", ["HUP", "HUP"], 4.0, 129),
    "a second Ctrl-C ends it": ("1h", ["INT", "INT"], 0.0, 130),
    "SIGTERM after Ctrl-C ends it": ("1h", ["INT", "TERM"], 0.0, 130),
    "Ctrl-\\ after SIGTERM ends it": ("1h", ["TERM", "QUIT"], 0.0, 143),
    "none at all": ("0", ["TERM"], 0.0, 143),
}


@pytest.mark.parametrize("case", GRACE)
def test_the_grace_period(place: Place, case: str) -> None:
    grace, names, least_s, status = GRACE[case]
    with listening(place, "--grace", grace) as run:
        began_s = time.monotonic()
        for number, name in enumerate(names):
            run.process.send_signal(getattr(signal, f"SIG{name}"))
            if grace != "0":
                assert eventually(lambda number=number: len(run.heard()) > 1 + number)
        assert run.process.wait(60) == status
        assert time.monotonic() - began_s >= least_s
        assert len(run.report()["stop"]["killed"]) == 1


def test_a_signal_within_the_grace_period_reaches_the_command(place: Place) -> None:
    with listening(place, "--grace", "200s") as run:
        run.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: "15" in run.heard())
        for number in (signal.SIGUSR1, signal.SIGHUP):
            run.process.send_signal(number)
            assert eventually(lambda number=number: str(int(number)) in run.heard())
        assert run.end() == 143


TIDY = """
try:
    (PLACE / "pids").write_text("0 0"); (PLACE / "heard").write_text("ready")
    time.sleep(200)
except KeyboardInterrupt:
    time.sleep(1)
    (PLACE / "tidy").touch()
"""


def test_who_catches_what_ends_the_run_has_half_the_grace_period_before_sigterm(place: Place) -> None:
    with listening(place, "--grace", "200s", source=TIDY) as run:
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(60) == 130
    assert (place.root / "tidy").exists()


def test_who_does_not_catch_it_gets_sigterm_at_once(place: Place) -> None:
    source = "import signal; signal.signal(2, signal.SIG_IGN)\n" + TIDY
    with listening(place, "--grace", "1000s", source=source) as run:
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(60) == 130


GROUP = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: None)
own = os.fork() and not os.fork()
if own:
    os.setsid()  # a group of its own: not meant
(PLACE / f"up.{os.getpid()}").touch()
while not (got := signal.sigtimedwait([signal.SIGUSR1], 0.1)) and not (PLACE / "end").exists():
    pass
(PLACE / f"{'own' if own else 'group'}.{bool(got)}.{os.getpid()}").touch()
while not (PLACE / "end").exists():
    time.sleep(0.02)
"""


def test_a_signal_goes_to_the_whole_process_group_of_the_command(place: Place) -> None:
    source = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n" + GROUP
    with place.started("exec", "--cache-dir", place.cache, *CALM, "--", *place.program(source)) as process:
        assert eventually(lambda: len(list(place.root.glob("up.*"))) == 3)
        process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: len(list(place.root.glob("group.True.*"))) == 2)
        (place.root / "end").touch()
        assert process.wait(60) == 0
    assert len(list(place.root.glob("own.False.*"))) == 1


def test_a_storm_of_signals_changes_nothing(place: Place) -> None:
    with listening(place) as run:
        for _ in range(10_000):
            run.process.send_signal(signal.SIGUSR1)
        for _ in range(200):
            run.process.send_signal(signal.SIGRTMIN + 1)
        assert eventually(lambda: {"10", str(signal.SIGRTMIN + 1)} <= set(run.heard()))
        run.process.send_signal(signal.SIGTERM)
        assert (run.process.wait(60), run.report()["outcome"]) == (143, "cancelled")


def test_no_signal_changes_the_exit_status_at_the_very_end(place: Place) -> None:
    # Whoever is not deaf after its last word dies of the storm, since Python gives signals back their defaults.
    for _ in range(3):
        with place.started("exec", "--cache-dir", place.cache, *CALM, "--", "sh", "-c", "exit 5") as process:
            assert b"exit code 5" in os.read(process.stderr.fileno(), 65536)
            while process.poll() is None:
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
                    process.send_signal(number)
            assert process.returncode == 5


def below(pid: int) -> list[int]:
    """The living descendants of a process."""
    rows = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.splitlines()
    parents = {int(one): int(parent) for one, parent in map(str.split, rows)}
    found, new = set(), {pid}
    while new:
        new = {one for one, parent in parents.items() if parent in new}
        found |= new
    return sorted(found)


@pytest.mark.parametrize("name", ["USR1", "USR2", "ALRM", "QUIT", "TSTP", "PIPE", "PROF", "RTMIN"])
def test_a_signal_to_every_process_of_a_job_ends_no_helper(place: Place, name: str) -> None:
    with listening(place, "--progress", "json") as run:
        for pid in {*below(run.process.pid)} - {run.pid}:
            os.kill(pid, getattr(signal, f"SIG{name}"))
        for _ in range(3):  # it is measured on
            run.measured()
        assert (run.end(), run.report()["notes"]) == (0, [])


@pytest.mark.parametrize("name", ["KILL", "TERM", "INT", "HUP"])
def test_a_guard_that_is_ended_is_cachewatchs_own_failure_and_nobody_is_left(place: Place, name: str) -> None:
    with listening(place, "-v") as run:
        assert str(run.pid) in run.process.stderr.readline()  # its guard has said so
        os.kill(run.guard, getattr(signal, f"SIG{name}"))
        assert run.process.wait(60) == 125
        assert (run.report()["outcome"], "guard" in run.report()["message"]) == ("failed", True)
        assert state(run.pid) == ""


# What suspends it


@pytest.mark.parametrize("name", ["TSTP", "TTIN", "TTOU"])
def test_ctrl_z_stops_the_tree_with_us_and_fg_continues_it(place: Place, name: str) -> None:
    # In a session of its own there is no shell that it could be stopped for: it is stopped all the same.
    with listening(place, start_new_session=True) as run:
        for times in (1, 2):
            run.process.send_signal(getattr(signal, f"SIG{name}"))
            assert eventually(lambda: state(run.process.pid) == state(run.pid) == "T")
            run.process.send_signal(signal.SIGCONT)
            # Not before: the next SIGSTOP would take back a SIGCONT that the listener has not had yet.
            assert eventually(lambda times=times: run.heard().count("18") == times)
            assert eventually(lambda: state(run.process.pid) == "S")
        assert run.end() == 0
        assert run.heard() == ["ready", "18", "18"]  # once each


def test_who_was_stopped_before_stays_so(place: Place) -> None:
    source = """
        import signal
        if (pid := os.fork()) == 0:
            time.sleep(200)
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        (PLACE / "pids").write_text(f"{os.getpid()} {pid}"); (PLACE / "heard").write_text("ready")
        time.sleep(200)
    """
    with listening(place, source=source) as run:
        child = run.guard
        run.process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: state(run.process.pid) == state(run.pid) == "T")
        run.process.send_signal(signal.SIGCONT)
        assert eventually(lambda: state(run.pid) == "S")
        assert state(child) == "T"
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 143


def test_a_signal_that_ends_a_suspended_run_does_so_when_it_is_continued(place: Place) -> None:
    with listening(place) as run:
        run.process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: state(run.process.pid) == state(run.pid) == "T")
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGCONT)
        assert (run.process.wait(60), run.report()["outcome"]) == (143, "cancelled")


def test_the_time_for_which_it_was_suspended_is_no_silence(place: Place) -> None:
    gap_s, started_s = 8.0, time.monotonic()
    with listening(place, "--progress", "json") as run:
        began_s = time.monotonic()
        run.process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: state(run.process.pid) == "T")
        stopped_s = time.monotonic()
        assert eventually(lambda: time.monotonic() > stopped_s + gap_s)
        run.process.send_signal(signal.SIGCONT)
        before = run.measured()["pause_s"]
        continued = time.time()
        while (sample := run.measured())["at"] < continued:
            before = sample["pause_s"]
        sample = run.measured()  # of a look that began after it
        # The pause has grown by the time that passed, but for the gap; it is measured three times a second.
        assert sample["pause_s"] - before <= time.monotonic() - began_s - gap_s + 2
        assert (run.end(), run.report()["outcome"]) == (0, "completed")
    assert run.report()["duration_s"] <= time.monotonic() - started_s - gap_s


def _heard(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize("name", ["TSTP", "TERM", "INT", "USR1"])
def test_no_moment_of_the_start_leaves_somebody_behind(place: Place, name: str) -> None:
    number, started = getattr(signal, f"SIG{name}"), place.root / "heard"
    for part in range(14):  # from before its first line is run until after the generator's
        (place.root / "end").unlink(missing_ok=True)
        started.unlink(missing_ok=True)
        argv = ["exec", "--cache-dir", place.cache, *CALM, "--", *place.program(LISTENER)]
        with place.started(*argv, process_group=0) as process:  # with a parent, for which it can be stopped
            moment_s = time.monotonic() + part * 0.06
            assert eventually(lambda moment_s=moment_s: time.monotonic() >= moment_s)
            process.send_signal(number)
            if name == "TSTP":
                assert eventually(lambda process=process: state(process.pid) == "T")
                if eventually(started.exists, 0.5):  # a guard that was not asked to would start it now
                    pid = int((place.root / "pids").read_text().split()[0])
                    assert [eventually(lambda pid=pid: state(pid) == "T") for _ in range(2)] == [True, True]
                process.send_signal(signal.SIGCONT)
                assert eventually(lambda: started.exists() and "ready" in started.read_text())
                (place.root / "end").touch()
                assert process.wait(60) == 0
            elif name == "USR1":  # for the command, which dies of it until it listens
                assert eventually(lambda process=process: "10" in _heard(started) or process.poll() is not None)
                (place.root / "end").touch()
                assert process.wait(60) in ((0,) if "10" in _heard(started) else (128 + number, -number))
            else:
                assert process.wait(60) != 0


# What is inherited


@pytest.mark.parametrize(
    ("caller", "ignored"),
    [
        ('exec nohup "$@" 2>&1', {signal.SIGHUP}),
        ('trap "" USR1 INT TTOU CHLD; "$@"; exit', {signal.SIGUSR1, signal.SIGINT, signal.SIGTTOU}),
        ('trap "" XFSZ RTMIN; "$@"; exit', {signal.SIGXFSZ, signal.SIGRTMIN}),
        ('"$@" & wait $!', {signal.SIGINT, signal.SIGQUIT}),
        ('exec env --ignore-signal=TERM --ignore-signal=ALRM "$@"', {signal.SIGTERM, signal.SIGALRM}),
        ('exec env --block-signal=USR1 --block-signal=TERM --block-signal=ILL "$@"', set()),
    ],
)
def test_what_the_caller_ignores_and_blocks_is_the_commands(place: Place, caller: str, ignored: set[int]) -> None:
    found, status = [], ["cat", "/proc/self/status"]
    for argv in (status, [COMMAND, "exec", "--cache-dir", str(place.cache), *CALM, "--", *status]):
        done = subprocess.run(
            ["bash", "-c", caller, "bash", *argv], env=place.env, stdout=subprocess.PIPE, timeout=60, check=True
        )
        lines = dict(line.split(b":\t") for line in done.stdout.splitlines() if b":\t" in line)
        masks = [int(lines[name], 16) for name in (b"SigIgn", b"SigBlk")]
        found.append([{n for n in range(1, 65) if mask >> (n - 1) & 1} for mask in masks])
    plain, below_exec = found
    assert ignored <= plain[0]
    assert below_exec == [plain[0] - {signal.SIGCHLD}, plain[1]]  # most commands wait for children


@pytest.mark.parametrize("before", [["nohup"], ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]], ids=["nohup", "trap"])
def test_a_hangup_that_the_caller_ignores_is_neither_ours_nor_the_commands(place: Place, before: list[object]) -> None:
    place.before = before
    with listening(place) as run:
        run.process.send_signal(signal.SIGHUP)
        run.process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: len(run.heard()) > 1)
        assert (run.heard(), run.end()) == (["ready", "10"], 0)


@pytest.mark.parametrize("ends", [True, False])
def test_a_caller_that_ignores_sigchld_gets_the_commands_status_and_a_stop(place: Place, ends: bool) -> None:
    place.before = ["env", "--ignore-signal=CHLD"]
    with listening(place) as run:
        if not ends:
            run.process.send_signal(signal.SIGTERM)
        assert (run.end() if ends else run.process.wait(60)) == (0 if ends else 143)


def test_a_child_that_the_caller_had_before_is_not_taken_for_the_command(place: Place) -> None:
    place.before = ["sh", "-c", 'setsid sleep .1 & exec "$@"', "sh"]
    assert place.exec(*CALM, command=["sh", "-c", "sleep 1; exit 5"]).status == 5


def test_the_signal_of_a_parents_death_reaches_the_command(place: Place) -> None:
    # As `tini -p USR1`: setpriv's setting outlives the exec.
    place.before = ["sh", "-c", '"$@" & wait; :', "sh", "setpriv", "--pdeathsig", "USR1"]
    with listening(place) as run:
        run.process.kill()  # the shell, which is the parent of cachewatch
        assert eventually(lambda: run.heard()[1:] == ["10"])
        (place.root / "end").touch()


def test_one_in_another_stops_the_command_of_both(place: Place) -> None:
    inner = [COMMAND, "exec", "--cache-dir", place.root / "inner", *CALM, "--", *place.program(LISTENER)]
    with place.started("exec", "--cache-dir", place.cache, *CALM, "--grace", "60s", "--", *inner) as outer:
        assert eventually(lambda: _heard(place.root / "heard") == ["ready"])
        outer.send_signal(signal.SIGTERM)
        assert outer.wait(120) == 143
    assert "15" in _heard(place.root / "heard")


# On a terminal, with a shell

TICKS = """
(PLACE / "pids").write_text(f"{os.getpid()} 0")
end = time.monotonic() + 200
while time.monotonic() < end:
    with (PLACE / "ticks").open("a") as out:
        out.write("tick\\n")
    time.sleep(0.05)
"""
SHELL = ("bash", "--norc", "--noprofile", "-i")
QUIET = {"TERM": "dumb", "PS1": "$ ", "HISTFILE": ""}


def ticking(place: Place, shell: Terminal) -> tuple[int, int]:
    """Pids of the command, which is the shell's child, and of its generator, once that is at work."""
    assert eventually((place.root / "ticks").exists), shell.shown
    rows = subprocess.run(["ps", "-o", "pid=", "--ppid", str(shell.pid)], capture_output=True, text=True, check=True)
    return int(rows.stdout), int((place.root / "pids").read_text().split()[0])


def typed(place: Place, *options: str) -> str:
    argv = [COMMAND, "exec", "--cache-dir", place.cache, *CALM, *options, "--", *place.program(TICKS)]
    return " ".join(shlex.quote(str(word)) for word in argv) + "\n"


def assert_ended_with(status: int, shell: Terminal) -> None:
    """Ask the shell for a status until it says one: what is typed while a command dies of a signal it drops."""

    def told() -> bool:
        shell.type("s=${s-$?}; echo status-is-$s.\n")
        return eventually(lambda: f"status-is-{status}.".encode() in shell.shown, 5)

    assert eventually(told), shell.shown


def test_ctrl_z_fg_bg_and_ctrl_c_work_as_for_any_command(place: Place) -> None:
    with terminal(place, *SHELL, **QUIET) as shell:
        shell.type(typed(place, "--quiet"))
        ours, pid = ticking(place, shell)
        for then in ("fg", "bg"):
            shell.type("\x1a")
            assert eventually(lambda: state(ours) == state(pid) == "T"), shell.shown
            shell.type("jobs\n")
            assert eventually(lambda: b"Stopped" in shell.shown)
            before = (place.root / "ticks").stat().st_size
            shell.type(f"{then}\n")
            assert eventually(lambda before=before: (place.root / "ticks").stat().st_size > before), shell.shown
        shell.type("echo prompt-is-$((6*7))\n")  # the job is in the background: the shell has the terminal
        assert eventually(lambda: b"prompt-is-42" in shell.shown)
        shell.type("fg\n")
        assert eventually(lambda: os.tcgetpgrp(shell.fd) == os.getpgid(ours)), shell.shown
        shell.type("\x03")
        assert eventually(lambda: not state(pid)), shell.shown
        assert_ended_with(130, shell)


def test_ctrl_backslash_ends_it_with_its_own_status(place: Place) -> None:
    with terminal(place, *SHELL, **QUIET) as shell:
        shell.type("ulimit -c 0\n")
        shell.type(typed(place, "--quiet"))
        _, pid = ticking(place, shell)
        shell.type("\x1c")
        assert eventually(lambda: not state(pid)), shell.shown
        assert_ended_with(128 + signal.SIGQUIT, shell)


def test_a_terminal_that_is_closed_leaves_nobody(place: Place) -> None:
    report = place.root / "r.json"
    with terminal(place, *shlex.split(typed(place, "--report", str(report)))):  # as of `xterm -e`: it leads the session
        assert eventually((place.root / "ticks").exists)
    assert eventually(lambda: report.exists() and json.loads(report.read_text())["outcome"] == "cancelled")


def test_the_command_has_no_controlling_terminal(place: Place) -> None:
    source = """
        try:
            os.open("/dev/tty", os.O_RDWR)
        except OSError as error:
            (PLACE / "got").write_text(error.strerror)
    """
    argv = [COMMAND, "exec", "--cache-dir", place.cache, *CALM, "--", *place.program(source)]
    with terminal(place, *argv) as shell:
        assert eventually(shell.ended)
        assert shell.status == 0
    assert (place.root / "got").read_text() == "No such device or address"
