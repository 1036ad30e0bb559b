"""Generators that print without end, and that fork without end."""

from __future__ import annotations

import sys

from tests.faults.harness import Sandbox, living, new_tag


def python(sandbox: Sandbox, code: str) -> list[str]:
    """A generator in Python; `d` is the cache directory."""
    head = "import os,sys,time,signal,subprocess\nd=sys.argv[1]\n"
    return [sys.executable, "-I", "-S", "-c", head + code, str(sandbox.cache)]


def test_a_fork_storm_is_watched_and_ends(own_sandbox: Sandbox) -> None:
    tag = new_tag()
    code = (
        f"open('/proc/self/comm','w').write({tag!r})\n"
        "for i in range(2000):\n if os.fork()==0: os._exit(0)\n if i%100==0: open(f'{d}/{i}','wb').write(b'x'*9000)\n"
    )
    assert own_sandbox.guarded(python(own_sandbox, code), window="5m").wait(180) == 0
    assert living(tag) == []
    assert own_sandbox.report()["growth"]["files_present"] == 20
