"""Ends of the process that watches, against trees of every shape: nobody survives."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import SHAPES, SLACK_S, Sandbox, guards_of, living, slack_s, until, wait_ready
from tests.support import signal_each, unavailable

GRACE_S = 0.5
SECTION = "1 Ends of the process"
PROMISED = f"no survivor within grace ({GRACE_S} s) + {SLACK_S:g} s"


@pytest.mark.parametrize("shape", ["daemon", "bomb"])
def test_a_stalled_tree_is_gone_when_the_command_ends(shape: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(SECTION, "stall", "writing ends, the tree lives on", f"exit 124, outcome stalled, {PROMISED}")
    tag, command = sandbox.tree(shape, writes=5)
    process = sandbox.guarded(command, window="1500ms")
    assert process.wait(60) == 124
    assert living(tag) == []
    report = sandbox.report()
    assert (report["outcome"], report["stall"]["kind"]) == ("stalled", "no_growth")
    assert report["stop"]["survivors"] == []
    assert report["stop"]["gone_after_s"] <= GRACE_S + slack_s()
    assert len(report["stop"]["terminated"]) + len(report["stop"]["killed"]) >= SHAPES[shape]
    assert "no disk write activity detected for 1.5 s" in sandbox.stderr().splitlines()[-1]
    row.measured.append((f"{shape} ({who})", f"{report['stop']['gone_after_s']:.2f} s"))


@pytest.mark.parametrize("shape", ["daemon", "bomb"])
def test_a_killed_command_leaves_nobody_and_frees_its_output_at_once(
    shape: str, sandbox: Sandbox, who: str, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "SIGKILL",
        "SIGKILL of `cachewatch exec`",
        f"{PROMISED}; nobody holds its standard output open, no state file stays",
    )
    tag, command = sandbox.tree(shape)
    read, write = os.pipe()
    process = sandbox.guarded(command, stdout=write, stderr=write)
    os.close(write)
    wait_ready(tag, shape)
    process.kill()
    began = time.monotonic()
    readable, _, _ = select.select([read], [], [], 1.0)
    output_freed = time.monotonic() - began
    assert readable
    assert os.read(read, 1 << 16) == b"", "an orphan holds the output, and would hide the crash from a worker"
    os.close(read)
    took = until(lambda: not living(tag), GRACE_S + slack_s(), f"the {shape} tree is gone")
    took += output_freed
    until(lambda: not state_files(sandbox), 5, "the state file is removed")
    row.measured.append((f"{shape} ({who})", f"{took:.2f} s"))


@pytest.mark.parametrize("shape", ["daemon", "bomb"])
@pytest.mark.parametrize("which", ["outer", "inner", "both"])
def test_a_killed_guard_leaves_nobody(which: str, shape: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(SECTION, f"{which} guard killed" if which != "both" else "both guards killed",
                "SIGKILL of the guard process" + ("es, at one instant" if which == "both" else ""),
                f"exit 125, outcome failed and the message says why, {PROMISED}")  # fmt: skip
    tag, command = sandbox.tree(shape)
    process = sandbox.guarded(command)
    wait_ready(tag, shape)
    if which == "both":
        time.sleep(1.5)  # a process that has wiped its environment is known once it stands in the state file
    outer, inner = guards_of(process.pid)
    pids = {"outer": [outer], "inner": [inner], "both": [outer, inner]}[which]
    signal_each(pids, signal.SIGSTOP)  # so that neither acts on the death of the other
    signal_each(pids)
    took = until(lambda: not living(tag), GRACE_S + slack_s(), f"the {shape} tree is gone")
    assert process.wait(20) == 125
    report = sandbox.report()
    assert report["outcome"] == "failed"
    assert "its guard process died" in report["message"]
    until(lambda: not state_files(sandbox), 5, "the state file is removed")
    row.measured.append((f"{shape} ({who})", f"{took:.2f} s"))


@pytest.mark.parametrize("shape", ["hog"])
def test_a_memory_limit_kill_is_named_and_leaves_nobody(shape: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "memory limit",
        "the generator outgrows the memory limit of its control group",
        f"exit 137, outcome failed by SIGKILL; guards and report survive it, {PROMISED}",
    )
    tag, command = sandbox.tree(shape, writes=3)
    with memory_group(160 << 20) as procs:
        entry = "import os,sys;open(sys.argv[1],'w').write('0');os.execv(sys.argv[2],sys.argv[2:])"
        if sandbox.uid is not None:
            os.chown(procs, sandbox.uid, sandbox.uid)
        import sys

        process = sandbox.guarded(command, before=[sys.executable, "-I", "-S", "-c", entry, str(procs)])
        code = process.wait(60)
        assert code == 137, sandbox.stderr()
        assert living(tag) == []
        report = sandbox.report()
    assert (report["outcome"], report["signal"]) == ("failed", 9)
    assert "was killed by SIGKILL" in report["message"]
    row.measured.append((who, "SIGKILL named, nobody left"))


def state_files(sandbox: Sandbox) -> list[str]:
    runs = sandbox.root / "home" / "state" / "cachewatch" / "runs"
    return [path.name for path in runs.iterdir()] if runs.is_dir() else []


@contextlib.contextmanager
def memory_group(limit_bytes: int):
    """A control group of our own with a memory limit (v1 or v2); yields its cgroup.procs."""
    name = f"cachewatch-fault-{os.getpid()}"
    for base, limit, swap in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
    ):
        group = base / name
        try:
            group.mkdir()
            (group / limit).write_text(str(limit_bytes))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        with contextlib.suppress(OSError):
            (group / swap).write_text("0" if swap == "memory.swap.max" else str(limit_bytes))
        try:
            yield group / "cgroup.procs"
        finally:
            for _ in range(200):
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.02)
        return
    unavailable("needs a control group with a memory limit (root, and a writable cgroup file system)")
