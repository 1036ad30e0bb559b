"""The checks of tini's test/run_inner_tests.py, as cases of `cachewatch exec`."""

from __future__ import annotations

import re
import signal

from tests.processes.peers.checks import QUIET, each, guarded, lacking, peer, refuse

from support import PATIENCE_S, eventually, exec_argv, new_tag, program, run, running, tagged

TINI = "tini"
LIFE_S = 100


@peer(TINI, "the exit codes")
def test_every_exit_code_is_the_commands(tmp_path):
    for code in (*range(0, 256, 17), 1, 2, 124, 125, 126, 127, 128, 129, 254):  # tini's test tries all 256
        assert guarded(tmp_path, "sh", "-c", f"exit {code}").status == code


@lacking(
    TINI,
    {
        "exit codes that become 0 (-e)": (
            "an exit code that is none of the command's own would hide how it ended",
            "-e",
            "3",
        )
    },
)
def test_there_is_no_such_option(tmp_path, option):
    refuse(option, tmp_path)


ORPHANED = """
    import os, pathlib, signal, sys, time
    signal.signal(signal.SIGUSR1, lambda *_: (pathlib.Path(sys.argv[2] + "/told").touch(), sys.exit(0)))
    pathlib.Path(sys.argv[2] + "/up").touch()
    time.sleep(100)
"""


@peer(TINI, "a signal when the parent dies (-p)")
def test_the_signal_that_a_parents_death_sends_reaches_the_command(tmp_path):
    # `tini -p SIGUSR1 -- COMMAND` is `setpriv --pdeathsig USR1 cachewatch exec -- COMMAND`: execve keeps the setting.
    tag = new_tag()
    argv = exec_argv(tmp_path / "cache", *QUIET, command=[*program(ORPHANED, tag), str(tmp_path)])
    parent = f"""
        import ctypes, os, signal, sys, time
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, {int(signal.SIGUSR1)})
            os.execv(sys.argv[2], sys.argv[2:])
        time.sleep(100)
    """
    with running([*program(parent, new_tag()), *argv]) as process:
        assert eventually((tmp_path / "up").exists)
        process.kill()
        assert eventually((tmp_path / "told").exists)
    assert eventually(lambda: tagged(tag) == [])


REAPING = """
    import os, subprocess, sys, time
    subprocess.run([sys.executable, "-I", "-S", "-c",
        "import subprocess, sys\\nfor i in range(100): subprocess.Popen(['sleep', str(3 + i % 2 / 2)])", sys.argv[1]])
    def below(pid):
        found = []
        for name in os.listdir("/proc"):
            try:
                text = open(f"/proc/{name}/stat").read() if name.isdigit() else ""
            except OSError:
                continue
            if text and int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
        return found
    assert len(below(os.getppid())) > 50  # they have become the guard's
    end = time.monotonic() + 30
    while below(os.getppid()) != [os.getpid()]:  # zombies would still be listed
        assert time.monotonic() < end
        time.sleep(0.1)
"""


@peer(TINI, "orphans are reaped")
def test_a_hundred_orphans_are_reaped_while_the_command_runs(tmp_path):
    tag = new_tag()
    assert guarded(tmp_path, *program(REAPING, tag)).status == 0


@peer(TINI, "reaped processes are said (-w)")
def test_an_orphan_that_is_reaped_is_said(tmp_path):
    ran = guarded(tmp_path, "sh", "-c", "(sleep 0.1 &) ; sleep 0.5", options=("--verbose",))
    assert ran.status == 0
    assert re.search(r"^cachewatch: an orphan with pid \d+ ended with exit code 0 and was reaped$", ran.stderr, re.M)


NO_REAPER = """
    import ctypes, os, struct, sys
    libc = ctypes.CDLL(None)
    prctl = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
    # A sandbox in which prctl(PR_SET_CHILD_SUBREAPER) fails with EPERM.
    code = [(0x20, 0, 0, 0), (0x15, 0, 3, prctl), (0x20, 0, 0, 16), (0x15, 0, 1, 36), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
    filter_ = b"".join(struct.pack("HBBI", *one) for one in code)
    buffer = ctypes.create_string_buffer(filter_)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))) == 0
    os.execv(sys.argv[2], sys.argv[2:])
"""


@peer(TINI, "a warning where orphans cannot be reaped")
def test_where_orphans_cannot_be_reaped_it_is_said_and_nothing_is_started(tmp_path):
    argv = exec_argv(tmp_path / "cache", *QUIET, command=["touch", str(tmp_path / "ran")])
    ran = run([*program(NO_REAPER, new_tag()), *argv])
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert "what the command leaves behind could be neither reaped nor stopped, and nothing was started" in ran.stderr
    assert not (tmp_path / "ran").exists()


SLEEPS = f"""
    import os, signal, sys
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    os.system("touch " + sys.argv[2] + "; exec sleep {LIFE_S}")
"""


@each(TINI, {f"SIG{name} reaches the command": f"SIG{name}" for name in ("TERM", "USR1", "USR2")}, "name")
def test_a_signal_that_ends_the_command_is_the_status(tmp_path, name):
    number, tag = getattr(signal, name), new_tag()
    argv = exec_argv(tmp_path / "cache", *QUIET, command=[*program(SLEEPS, tag), str(tmp_path / "up")])
    with running(argv) as process:
        assert eventually((tmp_path / "up").exists)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
    assert tagged(tag) == []


GROUP = f"""
    import os, signal, subprocess, sys
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    child = subprocess.Popen(["sh", "-c", "touch $0; exec sleep {LIFE_S}", sys.argv[2]],
                             preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_DFL))
    child.wait()
"""


@each(
    TINI,
    {"the process group (-g)": {}, "the process group (TINI_KILL_PROCESS_GROUP)": {"TINI_KILL_PROCESS_GROUP": "1"}},
    "env",
)
def test_a_signal_reaches_the_whole_process_group(tmp_path, env):
    import os

    argv = exec_argv(tmp_path / "cache", *QUIET, command=[*program(GROUP, new_tag()), str(tmp_path / "up")])
    with running(argv, env=os.environ | env) as process:
        assert eventually((tmp_path / "up").exists)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE_S) == 0


@peer(TINI, "ignored and blocked signals are the command's")
def test_what_the_caller_ignores_and_blocks_is_the_commands(tmp_path):
    ignored, blocked = {signal.SIGTTOU, signal.SIGSEGV, signal.SIGINT}, {signal.SIGTTIN, signal.SIGILL, signal.SIGTERM}
    argv = exec_argv(tmp_path / "cache", *QUIET, command=["cat", "/proc/self/status"])
    caller = f"""
        import os, signal, sys
        for number in {[int(n) for n in ignored]}:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {[int(n) for n in blocked]})
        os.execv(sys.argv[2], sys.argv[2:])
    """
    with running([*program(caller, new_tag()), *argv]) as process:
        lines = dict(line.split(":\t") for line in process.stdout.read().splitlines() if ":\t" in line)
        assert process.wait(PATIENCE_S) == 0
    for name, wanted in (("SigIgn", ignored), ("SigBlk", blocked)):
        assert all(int(lines[name], 16) >> (number - 1) & 1 for number in wanted)
