"""`cachewatch exec` under job control: a real interactive shell on a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from support import PATIENCE_S, WELL, assert_none_left, eventually, exec_argv, new_tag, program, tagged

QUIET = (*WELL, "--quiet")
LIFE_S = 100


class Terminal:
    """A pseudo-terminal whose session leader is a program; what is shown is read all the time."""

    def __init__(self, argv: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(argv[0], argv, os.environ | {"TERM": "dumb", "PS1": "$ ", "HISTFILE": ""})
        self.shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self.fd, 65536):
                self.shown += chunk

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def close(self) -> int:
        os.kill(self.pid, signal.SIGHUP)
        end_s = time.monotonic() + PATIENCE_S
        while (done := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end_s:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        os.close(self.fd)
        return done[1]


@contextlib.contextmanager
def terminal(*argv: str) -> Iterator[Terminal]:
    shell = Terminal(list(argv) or ["bash", "--norc", "--noprofile", "-i"])
    try:
        yield shell
    finally:
        shell.close()


def line(*argv: str) -> str:
    return " ".join(map(shlex.quote, argv)) + "\n"


def assert_ended_with(status: int, shell: Terminal) -> None:
    """Ask the shell for a status until it says one: what is typed while a command dies of a signal it drops."""

    def told() -> bool:
        shell.type("s=${s-$?}; echo status-is-$s.\n")
        return eventually(lambda: f"status-is-{status}.".encode() in shell.shown, 5)

    assert eventually(told), shell.shown


def state(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text[text.rindex(")") + 2]


def commands(shell: Terminal, cache: Path) -> list[int]:
    """Pids of the `cachewatch exec` that watches a directory, as the shell's child; not what it has forked."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):  # it ends just now: there is no file, or nothing in it
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdigit() else []
            if b"prefect_cachewatch.cli.main" in words and str(cache).encode() in words:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                found += [int(name)] * (parent == shell.pid)
    return found


TICKS = f"""
    import sys, time
    end = time.monotonic() + {LIFE_S}
    with open(sys.argv[2], "a", buffering=1) as out:
        while time.monotonic() < end:
            out.write("tick\\n")
            time.sleep(0.05)
"""


def test_ctrl_z_fg_bg_and_ctrl_c_work_as_for_any_command(tmp_path):
    tag, ticks, cache = new_tag(), tmp_path / "ticks", tmp_path / "cache"

    def ticking() -> bool:
        before = ticks.stat().st_size
        time.sleep(0.3)
        return ticks.stat().st_size > before

    with terminal() as shell:
        shell.type(line(*exec_argv(cache, *QUIET, command=[*program(TICKS, tag), str(ticks)])))
        assert eventually(lambda: ticks.exists() and ticks.stat().st_size > 20), shell.shown
        (ours,), (pid,) = commands(shell, cache), tagged(tag)
        for then in ("fg", "bg"):
            shell.type("\x1a")
            assert eventually(lambda: state(ours) == state(pid) == "T"), shell.shown
            assert not ticking()
            shell.type("jobs\n")
            assert eventually(lambda: b"Stopped" in shell.shown)
            shell.type(f"{then}\n")
            assert eventually(lambda: state(ours) in "SR" and state(pid) in "SR"), shell.shown
            assert ticking()
        shell.type("echo prompt-is-$((6*7))\n")  # the job is in the background: the shell has the terminal
        assert eventually(lambda: b"prompt-is-42" in shell.shown)
        shell.type("fg\n")
        assert eventually(lambda: os.tcgetpgrp(shell.fd) == os.getpgid(ours)), shell.shown
        shell.type("\x03")
        assert eventually(lambda: not tagged(tag)), shell.shown
        assert_ended_with(130, shell)
    assert_none_left(tag)


def test_a_command_of_a_session_of_its_own_has_no_terminal(tmp_path):
    source = f"""
        import os
        try:
            os.open("/dev/tty", os.O_RDWR)
        except OSError as error:
            open({str(tmp_path / "got")!r}, "w").write(error.strerror)
    """
    with terminal() as shell:
        shell.type(line(*exec_argv(tmp_path / "cache", *QUIET, command=program(source, new_tag()))))
        assert eventually((tmp_path / "got").exists), shell.shown
        assert eventually(lambda: (tmp_path / "got").read_text() == "No such device or address")


def test_a_terminal_that_is_closed_leaves_nobody(tmp_path):
    tag, ticks = new_tag(), tmp_path / "ticks"
    report = tmp_path / "report.json"
    argv = exec_argv(tmp_path / "cache", *QUIET, "--report", report, command=[*program(TICKS, tag), str(ticks)])
    with terminal(*argv) as shell:  # as of `xterm -e`: it leads the session
        assert eventually(lambda: ticks.exists() and ticks.stat().st_size > 20), shell.shown
    assert_none_left(tag)
    assert eventually(lambda: report.exists() and '"cancelled"' in report.read_text())
