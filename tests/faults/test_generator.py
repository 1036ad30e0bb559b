"""Generators that print without end, and that fork without end."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from tests.faults.harness import Sandbox, living, new_tag


def python(sandbox: Sandbox, code: str) -> list[str]:
    """A generator in Python; `d` is the cache directory."""
    head = "import os,sys,time,signal,subprocess\nd=sys.argv[1]\n"
    return [sys.executable, "-I", "-S", "-c", head + code, str(sandbox.cache)]


def test_a_flood_of_output_is_drained_into_a_capped_log_and_bounded_memory(own_sandbox: Sandbox) -> None:
    log = own_sandbox.root / "out" / "log.txt"
    code = "b=b'line of output\\n'*70000\nopen(d+'/f','wb').write(b)\nfor i in range(250):\n os.write(1+i%2,b)\n"
    process = own_sandbox.guarded(python(own_sandbox, code), "--log", str(log), window="10m", stderr=subprocess.DEVNULL)
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


def test_a_fork_storm_is_watched_and_ends(own_sandbox: Sandbox) -> None:
    tag = new_tag()
    code = (
        f"open('/proc/self/comm','w').write({tag!r})\n"
        "for i in range(2000):\n if os.fork()==0: os._exit(0)\n if i%100==0: open(f'{d}/{i}','wb').write(b'x'*9000)\n"
    )
    assert own_sandbox.guarded(python(own_sandbox, code), window="5m").wait(180) == 0
    assert living(tag) == []
    assert own_sandbox.report()["growth"]["files_present"] == 20
