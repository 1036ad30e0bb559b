"""Generators that print, fork, hide and change themselves."""

from __future__ import annotations

import os
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
    process = sandbox.guarded(python(sandbox, code), "--log", str(log), window="10m", stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.05)
    assert process.wait(600) == 0
    assert log.stat().st_size <= (64 << 20) + 200
    assert peak < 150 << 20
    row.measured.append((who, f"log {log.stat().st_size >> 20} MiB, peak memory {peak >> 20} MiB"))


def test_a_hundred_megabytes_without_a_newline_are_bounded(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(SECTION, "no newline in 100 MB", "one line of 100 MB", "drained; the report's tail is bounded")
    code = "b=b'x'*1000000\nopen(d+'/f','wb').write(b)\nfor i in range(100): os.write(1,b)\n"
    process = sandbox.guarded(python(sandbox, code))
    assert process.wait(600) == 0
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
