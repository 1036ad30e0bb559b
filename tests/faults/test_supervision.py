"""Who stops the tree when something holds up those who should: guards, processes that hang, namespaces, survivors."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.supervise.janitor import clear_leftovers
from prefect_cachewatch.supervise.proc import read_stat
from tests.faults.harness import Sandbox, living, new_tag, until, wait_ready
from tests.faults.test_janitor import header, identity, put
from tests.faults.test_watch import WAYS, HangingMount
from tests.support import mostly_apart, signal_each, unavailable


@pytest.fixture
def hanging(sandbox: Sandbox) -> Iterator[HangingMount]:
    mount = HangingMount(sandbox)
    yield mount
    mount.end()


def gone(pid: int) -> bool:
    found = read_stat(pid)
    return found is None or found.state in "ZX"


# A thread that unmaps a changed mapping on a file system that hangs, and one that wants the same lock: whoever reads the
# process's command line or environment from now on waits with them.
LOCKED = """
    import ctypes, mmap, os, signal, sys, threading, time
    name, path = sys.argv[1:3]
    open("/proc/self/comm", "w").write(name)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for number in (1, 2, 15):
        signal.signal(number, signal.SIG_IGN)
    os.makedirs(path, exist_ok=True)
    fd = os.open(path + "/mapped", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, 1 << 20)
    where = libc.mmap(None, 1 << 20, 3, 1, fd, 0)
    ctypes.memset(where, 120, 1 << 20)
    def allocate():
        while True:
            libc.munmap(libc.mmap(None, 4096, 3, 0x22, -1, 0), 4096)
            time.sleep(0.001)
    print("mapped", flush=True)
    while not os.path.exists(sys.argv[3]):
        ctypes.memset(where, 120, 1 << 20)  # again and again: the kernel writes back when it likes
        time.sleep(0.005)
    if sys.argv[4] == "exec":
        os.execv("/bin/sleep", ["sleep", "100"])  # the old memory map goes, and the new program waits for it
    threading.Thread(target=allocate, daemon=True).start()
    libc.munmap(where, 1 << 20)
"""


def locked(sandbox: Sandbox, how: str = "unmap") -> tuple[str, list[str], Path]:
    tag, flag = new_tag(), sandbox.root / "out" / "unmap"
    sandbox.tags.append(tag)
    program = [sys.executable, "-S", "-c", textwrap.dedent(LOCKED), tag, str(sandbox.cache), str(flag), how]
    return tag, program, flag


def wait_locked(tag: str) -> int:
    """Wait until a reader of the process's command line or environment would wait; returns its pid."""
    until(lambda: living(tag), 60, "the generator runs")
    (pid,) = living(tag)

    def blocks() -> bool:
        reader = subprocess.Popen(
            ["cat", f"/proc/{pid}/cmdline", f"/proc/{pid}/environ"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            reader.wait(0.5)
        except subprocess.TimeoutExpired:
            reader.kill()
            reader.wait(10)
            return True
        return False

    end_s = time.monotonic() + 20
    while not blocks():
        # No failure of ours: the mapping must be dirty at the moment of the hang, and the kernel writes back when it likes.
        if time.monotonic() > end_s:
            pytest.skip("the kernel had just written the mapping back, so nobody holds the lock")
    return pid


@pytest.mark.parametrize("end", ["stall", "SIGTERM", "SIGKILL"])
def test_a_process_that_holds_the_lock_of_its_memory_holds_up_nobody(
    end: str, hanging: HangingMount, sandbox: Sandbox
) -> None:
    tag, program, flag = locked(sandbox)
    other_tag, other = sandbox.tree("plain", writes=3)
    command = [
        sys.executable,
        "-S",
        "-c",
        f"import subprocess; a = subprocess.Popen({other!r}); subprocess.run({program!r})",
    ]
    process = sandbox.guarded(command, window="4s" if end == "stall" else "5m")
    until(lambda: living(tag) and living(other_tag), 60, "the tree stands")
    time.sleep(1)
    hanging.hang()
    flag.touch()
    pid = wait_locked(tag)
    if end != "stall":
        process.send_signal(getattr(signal, end))
    until(lambda: not living(other_tag), 60, "the rest of the tree has ended")
    assert process.wait(120) == {"stall": 124, "SIGTERM": 143, "SIGKILL": -9}[end], sandbox.stderr()
    if end != "SIGKILL":
        survivors = sandbox.report()["stop"]["survivors"]
        assert [one["pid"] for one in survivors] == [pid]
        assert survivors[0]["state"] in "DT"
    hanging.end()
    until(lambda: not living(tag), 60, "the kernel lets go of it")


# Every reading of the deciding process, of one that hangs: a sample at each poll, the evidence, who may be watched.
LOOKS = """
    import contextlib, functools, sys
    from pathlib import Path
    from prefect_cachewatch.common.aside import Aside
    from prefect_cachewatch.errors import InputError
    from prefect_cachewatch.evidence.collector import collect_evidence
    from prefect_cachewatch.evidence.proctree import sample_processes
    from prefect_cachewatch.supervise.pinned_process import PinnedProcess
    pid = int(sys.argv[1])
    sample_processes(pid)
    with contextlib.closing(Aside.spawn()) as files:  # it is left behind where its file system hangs
        found = files.run(functools.partial(collect_evidence, [pid], [Path("/tmp")], budget_s=5), timeout_s=30)
    assert found.processes[0].pid == pid and found.processes[0].threads, found.missing
    with contextlib.suppress(InputError):
        PinnedProcess(pid, to_stop=True).close()
"""


@pytest.mark.parametrize("how", ["unmap", "exec"])
def test_the_janitor_and_a_new_run_pass_by_a_process_that_cannot_be_read(
    how: str, hanging: HangingMount, sandbox: Sandbox
) -> None:
    tag, program, flag = locked(sandbox, how)
    sandbox.popen(program)
    until(lambda: living(tag), 60, "it runs")
    time.sleep(1)
    hanging.hang()
    flag.touch()
    pid = wait_locked(tag)
    sandbox.cache_name = "cache"
    sandbox.mounts.clear()
    assert sandbox.popen([sys.executable, "-c", textwrap.dedent(LOOKS), str(pid)]).wait(60) == 0
    stale = [sys.executable, "-c", textwrap.dedent(f"""
        import os
        from prefect_cachewatch.supervise.run_files import create_run_file, runs_directory
        os.makedirs(os.path.dirname(runs_directory()), exist_ok=True)
        os.close(create_run_file({"ab" * 16!r})[0])
    """)]  # fmt: skip
    assert sandbox.popen(stale).wait(30) == 0
    for argv in (sandbox.cachewatch("doctor", "--no-prefect"), sandbox.cachewatch("stop", "--list")):
        assert sandbox.popen(argv).wait(30) == 0, argv
    assert sandbox.popen(stale).wait(30) == 0
    assert (
        sandbox.guarded([sys.executable, "-c", f"open({str(sandbox.cache)!r} + '/f', 'w').write('x' * 9000)"]).wait(60)
        == 0
    )
    assert sandbox.report()["notes"] == []


# Locks and a state file on a file system that hangs before the guard, another child and the command are started.
HOLDS = """
    import fcntl, os, subprocess, sys, time
    from prefect_cachewatch.common.aside import Aside
    from prefect_cachewatch.store.locks import hold_exclusive
    from prefect_cachewatch.watching.site import CacheDirectories
    from prefect_cachewatch.supervise import client
    from prefect_cachewatch.supervise.supervisor import Launch
    tag, cache = sys.argv[1:]
    aside = Aside.spawn()
    aside.run(len, "", timeout_s=20)
    site = CacheDirectories([cache])
    site.close()
    reader = os.open(cache, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)  # a backup: our own lock is on a file now
    site = CacheDirectories([cache])
    lock = hold_exclusive(reader, "writer.lock", "test")
    make = client.create_run_file
    def made(run_token):
        found = make(run_token)
        print("made", flush=True)
        sys.stdin.readline()
        return found
    client.create_run_file = made
    null = os.open("/dev/null", os.O_RDWR)
    code = f"import time; open('/proc/self/comm', 'w').write({tag!r}); time.sleep(60)"
    guard = client.GuardClient(Launch([sys.executable, "-I", "-S", "-c", code], dict(os.environ), "/", (null, null, null),
                                      0.5, "ab" * 16, hold=site.lock_fds, files=aside))
    guard.start()
    subprocess.run(["true"])
    print("started", flush=True)
    sys.stdin.readline()
    guard.stop()
    print(guard.wait(20).survivors, guard.notes, flush=True)
    guard.close()
"""


def test_a_command_starts_and_stops_though_the_locks_and_the_state_file_hang(sandbox: Sandbox) -> None:
    hanging = HangingMount(sandbox, WAYS[1])
    tag = new_tag()
    sandbox.tags.append(tag)
    argv = [*sandbox.prelude, sys.executable, "-c", textwrap.dedent(HOLDS), tag, str(sandbox.cache)]
    process = sandbox.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"made\n"
        hanging.hang()
        process.stdin.write(b"\n")
        process.stdin.flush()
        until(lambda: living(tag), 60, "the command has been started")
        (pid,) = living(tag)
        assert subprocess.run(["cat", f"/proc/{pid}/stat"], stdout=subprocess.DEVNULL, timeout=5).returncode == 0
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 20)[0], "another child is started"
        assert process.communicate(timeout=20)[0] == b"started\n[] []\n"
        assert not living(tag)
    finally:
        hanging.end()
        until(lambda: process.poll() is not None, 60, "the kernel lets go of it")


JOINS = """
    import ctypes, os, signal, sys, time
    name, init, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    libc = ctypes.CDLL(None, use_errno=True)
    kinds = ["pid"] if os.geteuid() == 0 else ["user", "pid"]
    for fd in [os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY) for kind in kinds]:
        if libc.setns(fd, 0):
            sys.exit("setns: " + os.strerror(ctypes.get_errno()))
    read, write = os.pipe()
    if os.fork() == 0:  # in the namespace: who loses its parent there becomes its init's
        if os.fork() == 0:
            os.setsid()
            signal.signal(15, signal.SIG_IGN)
            open("/proc/thread-self/comm", "w").write(name)
            os.write(write, b"x")
            while True:
                open(path + "/stray", "ab").write(b"x" * 4096)
                time.sleep(0.1)
        os.read(read, 1)
        os._exit(0)
    os.wait()
    open(path + "/joined", "w").write("x" * 9000)
    time.sleep(float(sys.argv[4]))
"""


@pytest.fixture
def namespace_init(sandbox: Sandbox) -> int:
    """The first process of another pid namespace, which belongs to nobody's tree."""
    words = (
        ["unshare", "--pid", "--fork"]
        if sandbox.uid is None and os.geteuid() == 0
        else ["unshare", "-Ur", "--pid", "--fork"]
    )
    tag = new_tag()
    sandbox.tags.append(tag)
    code = f"open('/proc/self/comm','w').write({tag!r}); import time, signal, os\nsignal.signal(17, signal.SIG_IGN)\ntime.sleep(90)"
    process = sandbox.popen([*words, sys.executable, "-I", "-S", "-c", code])
    until(lambda: living(tag) or process.poll() is not None, 60, "the namespace stands")
    if process.poll() is not None:
        unavailable("no pid namespace can be made here")
    return living(tag)[0]


@pytest.mark.parametrize("end", ["exited", "stall", "SIGTERM", "SIGKILL"])
def test_who_joined_another_pid_namespace_is_found_by_the_run_token(
    end: str, sandbox: Sandbox, namespace_init: int
) -> None:
    tag = new_tag()
    sandbox.tags.append(tag)
    life = "0" if end == "exited" else "60"
    program = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        textwrap.dedent(JOINS),
        tag,
        str(namespace_init),
        str(sandbox.cache),
        life,
    ]
    process = sandbox.guarded(program, "--ignore", "stray", window="3s" if end == "stall" else "5m")
    until(lambda: (sandbox.cache / "joined").exists() or process.poll() is not None, 60, "it has joined")
    if end.startswith("SIG"):
        assert living(tag), sandbox.stderr()
        process.send_signal(getattr(signal, end))
    expected = {"exited": 0, "stall": 124, "SIGTERM": 143, "SIGKILL": -9}[end]
    assert process.wait(120) == expected, sandbox.stderr()
    until(lambda: not living(tag), 60, "nobody is left")
    assert read_stat(namespace_init) is not None, "the namespace is somebody else's"
    if end in ("stall", "SIGTERM"):
        stop = sandbox.report()["stop"]
        assert (len(stop["killed"]) >= 1, stop["survivors"]) == (True, [])


def test_other_runs_are_not_hit_by_a_search_for_the_run_token(own_sandbox: Sandbox) -> None:
    from prefect_cachewatch.supervise.reading import find_by_run_token

    run_token = os.urandom(16).hex()
    early = own_sandbox.popen(["sleep", "60"], env={"CACHEWATCH_ID": run_token})
    time.sleep(0.1)
    own = own_sandbox.popen(["sleep", "60"], env={"CACHEWATCH_ID": run_token})
    other = own_sandbox.popen(["sleep", "60"], env={"CACHEWATCH_ID": "f" * 32})
    nested = own_sandbox.popen(
        ["sleep", "60"], env={"A": "b", "CACHEWATCH_ID": "e" * 32, "OUTER": f"CACHEWATCH_ID={run_token}"}
    )
    began = read_stat(own.pid)
    assert began is not None
    until(lambda: find_by_run_token("f" * 32) and find_by_run_token("e" * 32), 60, "they run")
    assert set(find_by_run_token(run_token)) == {early.pid, own.pid}
    assert set(find_by_run_token(run_token, began.start_ticks)) == {own.pid}
    assert other.poll() is None and nested.poll() is None


class Freezer:
    """A control group that can be frozen: who is in it does not even take SIGKILL until it is thawed (version 1)."""

    def __init__(self) -> None:
        self.path = Path("/sys/fs/cgroup/freezer") / f"cachewatch-{new_tag()}"
        try:
            self.path.mkdir()
        except OSError:
            unavailable("needs root and a freezer control group of version 1")

    def freeze(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))
        (self.path / "freezer.state").write_text("FROZEN")
        until(lambda: (self.path / "freezer.state").read_text() == "FROZEN\n", 60, "it is frozen")

    def thaw(self) -> None:
        (self.path / "freezer.state").write_text("THAWED")

    def end(self) -> None:
        self.thaw()
        until(lambda: not (self.path / "cgroup.procs").read_text(), 60, "nobody is in the group")
        self.path.rmdir()


@pytest.fixture
def freezer(sandbox: Sandbox) -> Iterator[Freezer]:
    group = Freezer()
    yield group
    for tag in sandbox.tags:
        signal_each(living(tag))
    group.end()


def test_nothing_starts_beside_a_survivor_in_the_same_directory(sandbox: Sandbox, freezer: Freezer) -> None:
    tag, command = sandbox.tree("plain", writes=5)
    process = sandbox.guarded(command, window="2s")
    wait_ready(tag, "plain")
    (pid,) = living(tag)
    freezer.freeze(pid)
    assert process.wait(120) == 124, sandbox.stderr()
    assert [one["pid"] for one in sandbox.report()["stop"]["survivors"]] == [pid]
    again = sandbox.guarded(["true"])
    assert again.wait(60) == 125
    assert "is in use by another job" in sandbox.stderr()
    doctor = sandbox.popen(sandbox.cachewatch("doctor", "--no-prefect", "--json"), stdout=subprocess.PIPE)
    assert f"pid {pid} " in doctor.communicate(timeout=60)[0].decode()
    freezer.thaw()
    until(lambda: not living(tag), 60, "it ends")
    runs = sandbox.root / "home" / "state" / "cachewatch" / "runs"
    until(lambda: os.listdir(runs) == [], 60, "the guard lets go")
    assert sandbox.guarded(["true"]).wait(60) in (0, 1)


def test_what_cannot_be_killed_costs_later_starts_next_to_nothing(own_sandbox: Sandbox) -> None:
    """Each start looks for leftovers first: 10 s of patience for each of them, again and again, was 70 s here."""
    runs = own_sandbox.mkdir("runs")
    runs.chmod(0o700)
    freezer = Freezer()
    left = [own_sandbox.popen(["sleep", "600"]) for _ in range(7)]
    try:
        for number, process in enumerate(left):
            freezer.freeze(process.pid)
            process.kill()
            run_token = f"{number:032x}"
            put(runs, header(run_token=run_token), [identity(process)], f"{run_token}.run")
        began = time.monotonic()
        report = clear_leftovers(str(runs))
        took_s = time.monotonic() - began
    finally:
        freezer.thaw()
        ends = [process.wait(120) for process in left]
        freezer.end()
    assert ends == [-9] * 7
    assert sorted(one.pid for one in report.survivors) == sorted(process.pid for process in left)
    assert took_s < 60, "10 s of patience for each would be 70 s"
    assert clear_leftovers(str(runs)).removed == 7


ATTEMPTS = """
    import os, signal, sys, time
    name, path = sys.argv[1:]
    open("/proc/self/comm", "w").write(name)
    number = 1 + sum(entry.startswith("attempt.") for entry in os.listdir(path))
    open(f"{path}/attempt.{number}", "w").write("x" * 9000 * number)
    if number == 1:
        time.sleep(60)
"""


@pytest.mark.parametrize("thawed", mostly_apart([True, False], [True]))
def test_an_attempt_waits_for_what_is_left_of_the_one_before(thawed: bool, sandbox: Sandbox, freezer: Freezer) -> None:
    tag = new_tag()
    sandbox.tags.append(tag)
    program = [sys.executable, "-I", "-S", "-c", textwrap.dedent(ATTEMPTS), tag, str(sandbox.cache)]
    argv = sandbox.cachewatch("generate", "--cache-dir", str(sandbox.cache), "--attempts", "2", "--backoff", "1s")
    argv += ["--stall-after", "2s", "--first-write-within", "5m", "--poll", "200ms", "--grace", "500ms"]
    process = sandbox.popen([*argv, "--report", str(sandbox.report_path), "--", *program], stderr=subprocess.PIPE)
    until((sandbox.cache / "attempt.1").exists, 90, "attempt 1 runs")
    (pid,) = living(tag)
    freezer.freeze(pid)
    until(lambda: sandbox.report_path.exists() or process.poll() is not None, 60, "attempt 1 has ended")
    time.sleep(5)
    assert os.listdir(sandbox.cache).count("attempt.2") == 0
    if thawed:
        freezer.thaw()
    text = process.communicate(timeout=150)[1].decode(errors="replace")
    assert process.returncode == (0 if thawed else 124), text
    assert (sandbox.cache / "attempt.2").exists() == thawed
    if not thawed:
        assert f"There is no further attempt beside what is left of this one, which may still write: pid {pid} " in text
