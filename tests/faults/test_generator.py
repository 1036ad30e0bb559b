"""Generators that print, fork, hide and change themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import Sandbox, living, new_tag, until

SECTION = "5 The generator"


def python(sandbox: Sandbox, code: str) -> list[str]:
    """A generator in Python; `d` is the cache directory."""
    head = "import os,sys,time,signal,subprocess\nd=sys.argv[1]\n"
    return [sys.executable, "-I", "-S", "-c", head + code, str(sandbox.cache)]


def test_a_gigabyte_of_output_is_drained_capped_and_no_stall(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION, "1 GB of output", "1 GB on standard output and error", "not blocked; log capped; memory bounded"
    )
    log = sandbox.root / "out" / "log.txt"
    code = "b=b'line of output\\n'*70000\nopen(d+'/f','wb').write(b)\nfor i in range(1000):\n os.write(1+i%2,b)\n"
    process = sandbox.guarded(python(sandbox, code), "--log", str(log), stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.05)
    assert process.wait(120) == 0
    assert log.stat().st_size <= (64 << 20) + 200
    assert peak < 150 << 20
    row.measured.append((who, f"log {log.stat().st_size >> 20} MiB, peak memory {peak >> 20} MiB"))


def test_a_hundred_megabytes_without_a_newline_are_bounded(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(SECTION, "no newline in 100 MB", "one line of 100 MB", "drained; the report's tail is bounded")
    code = "b=b'x'*1000000\nopen(d+'/f','wb').write(b)\nfor i in range(100): os.write(1,b)\n"
    process = sandbox.guarded(python(sandbox, code))
    assert process.wait(120) == 0
    assert sum(map(len, sandbox.report()["log_tail"])) <= 2000
    row.measured.append((who, f"report of {sandbox.report_path.stat().st_size:,} bytes"))


@pytest.mark.parametrize("closed", ["stdout", "all", "reader"])
def test_closed_output_changes_nothing(closed: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "closed output",
        "the generator closes its streams, or our own reader leaves",
        "watched to its end, exit 0",
    )
    close = {"stdout": "os.close(1)\n", "all": "for f in (0,1,2): os.close(f)\n", "reader": ""}[closed]
    code = close + "for i in range(20):\n open(f'{d}/{i}','wb').write(b'x'*9000); time.sleep(.05)\n"
    if closed == "reader":
        code += "os.write(1,b'x'*3000000)\n"
    read, write = os.pipe()
    if closed == "reader":
        os.close(read)
    process = sandbox.guarded(python(sandbox, code), stdout=write)
    os.close(write)
    assert process.wait(60) == 0, sandbox.stderr()
    assert sandbox.report()["growth"]["files_present"] == 20
    if closed != "reader":
        os.close(read)
    row.measured.append((f"{closed} ({who})", "exit 0"))


LAUNCHER = "if os.fork(): os._exit(0)\nos.setsid()\nfor i in range(15):\n open(f'{d}/{i}','wb').write(b'x'*9000); time.sleep(.1)\n"


def test_a_launcher_that_leaves_a_writing_child_is_waited_for_as_a_tree(
    sandbox: Sandbox, who: str, fault: Fault
) -> None:
    row = fault(SECTION, "daemonizing launcher", "exit 0 while its child goes on writing", "the tree counts (default)")
    assert sandbox.guarded(python(sandbox, LAUNCHER)).wait(60) == 0
    assert sandbox.report()["growth"]["files_present"] == 15
    row.measured.append((who, "15 of 15 files"))


def test_a_launcher_alone_can_be_waited_for(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "daemonizing launcher, `--wait-for leader`",
        "as above",
        "ended with the launcher, the child is stopped",
    )
    assert sandbox.guarded(python(sandbox, LAUNCHER), "--wait-for", "leader", "--allow-empty").wait(60) == 0
    files = len(os.listdir(sandbox.cache))
    assert files < 15
    time.sleep(0.5)
    assert len(os.listdir(sandbox.cache)) == files
    row.measured.append((who, f"{files} of 15 files"))


def test_a_daemon_that_hangs_after_its_launcher_has_left_is_a_stall(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(SECTION, "daemon that hangs", "the launcher exits 0, its child hangs", "stalled; the message says both")
    process = sandbox.guarded(python(sandbox, LAUNCHER + "time.sleep(60)\n"), window="1500ms")
    assert process.wait(60) == 124
    assert "The command itself had ended with exit code 0" in sandbox.report()["message"]
    row.measured.append((who, "exit 124"))


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])
def test_an_exit_by_signal_is_named(number: signal.Signals, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION, "exit by signal, core dump", "the generator dies by a signal, cores allowed", "exit 128+N, named"
    )
    code = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_CORE,(-1,-1)) if os.geteuid()==0 else 0\nos.chdir('/tmp')\n"
        f"os.chdir(os.path.dirname(d)+'/out')\nopen(d+'/f','wb').write(b'x'*9000)\nos.kill(os.getpid(),{int(number)})\n"
    )
    command = python(sandbox, code)
    command.remove("-S")  # resource is an extension module
    assert sandbox.guarded(command).wait(60) == 128 + number, sandbox.stderr()
    report = sandbox.report()
    assert (report["outcome"], report["signal"], report["exit_code"]) == ("failed", number, None)
    assert f"was killed by {number.name}" in report["message"]
    row.measured.append((f"{number.name} ({who})", f"{128 + number}"))


def test_a_fork_storm_is_watched_and_ends(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(SECTION, "fork storm", "2,000 short-lived children while writing", "completed, nothing left")
    tag = new_tag()
    code = (
        f"open('/proc/self/comm','w').write({tag!r})\n"
        "for i in range(2000):\n if os.fork()==0: os._exit(0)\n if i%100==0: open(f'{d}/{i}','wb').write(b'x'*9000)\n"
    )
    assert sandbox.guarded(python(sandbox, code), window="5s").wait(90) == 0
    assert living(tag) == []
    assert sandbox.report()["growth"]["files_present"] == 20
    row.measured.append((who, "completed"))


@pytest.mark.parametrize("change", ["process group", "working directory", "user"])
def test_a_generator_that_changes_itself_is_still_ours(change: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "changes its process group, directory, user",
        "setpgid, chdir into the cache, setuid (as root); then a stall",
        "stopped like any other",
    )
    if change == "user" and (os.geteuid() != 0 or sandbox.uid is not None):
        pytest.skip("only root can change its user")
    tag = new_tag()
    sandbox.tags.append(tag)
    how = {
        "process group": "if os.fork() == 0: os.setpgid(0, 0)\n",
        "working directory": "os.chdir(d)\n",
        "user": "os.fork(); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n",
    }[change]
    code = (
        f"open('/proc/self/comm','w').write({tag!r})\nopen(d+'/f','wb').write(b'x'*9000)\n{how}"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    )
    assert sandbox.guarded(python(sandbox, code), window="1500ms").wait(60) == 124, sandbox.stderr()
    assert living(tag) == []
    assert sandbox.report()["stop"]["survivors"] == []
    row.measured.append((f"{change} ({who})", f"{sandbox.report()['stop']['gone_after_s']:.2f} s"))


def test_the_guards_hold_nothing_of_the_cache_directory(own_sandbox: Sandbox) -> None:
    tag, command = own_sandbox.tree("plain")
    process = own_sandbox.guarded(command)
    until(lambda: living(tag), 20, "it runs")
    time.sleep(0.5)
    for child in psutil.Process(process.pid).children(recursive=True):
        if "cachewatch-guard" in child.cmdline():
            assert Path(child.cwd()) == Path("/")
    process.terminate()
    process.wait(20)
