"""Real generators that hang or crash in real ways, and the cause that the report names; beside each a near miss that has another.

What no machine of a test has is the nearest real thing: an exceeded quota is a FUSE file system that refuses a write with
EDQUOT, a device is a FUSE file below /dev, /dev/kmsg, or a pipe.
"""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.harness import QUICK, Place, Ran, eventually

ROOT = os.geteuid() == 0
FUSE = os.path.exists("/dev/fuse")
HEAD = """
import fcntl, mmap, signal, socket, subprocess, threading
CACHE = Path({cache!r})
(CACHE / 'layer0.bin').write_bytes(os.urandom(50_000))
"""
SLEEPS = "time.sleep(3600)"
DISK = "mkdir -p {{root}}/disk; mount -t tmpfs -o size={size},nr_inodes={inodes},mode=777 none {{root}}/disk; mkdir {{root}}/disk/cache"
DAEMON = shlex.join([sys.executable, str(Path(__file__).with_name("fuse_daemon.py"))])
FUSE_AT = f"export SCENARIO_PID=$$; mkdir -p {{at}}; {DAEMON} {{at}} {{mode}}"


def fuse(at: str, mode: str) -> str:
    return FUSE_AT.format(at=at, mode=mode)


def disk(size: str = "8m", inodes: int = 99) -> str:
    return DISK.format(size=size, inodes=inodes)


@dataclass(frozen=True)
class Hang:
    """A generator in Python after `HEAD`, and what its report says of it."""

    source: str
    category: str
    confidence: str | None = None
    says: tuple[str, ...] = ()
    mounts: str = ""
    window: str = "2s"
    writes: bool = True  # whether it writes before it hangs


# Two processes with a connection between them; the second one waits for the first one, and the generator for both.
RANKS = """
import socket, subprocess
first = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); c, _ = s.accept(){}"
second = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
one = subprocess.Popen([sys.executable, '-c', first], stdout=subprocess.PIPE, text=True)
subprocess.Popen([sys.executable, '-c', second, one.stdout.readline().strip()])
one.wait()
"""
HANGS = {
    # Storage
    "a full file system": Hang(
        """
        file = open(CACHE / 'x', 'wb', 0)
        try:
            while True: file.write(bytes(4096))
        except OSError as error: print(error, flush=True)
        time.sleep(3600)
        """,
        "disk_full", "high", ("No space left on device", "{cache}"), disk("1m"),
    ),
    "two mebibytes that are left": Hang(
        "(CACHE / 'x').write_bytes(bytes(6 << 20)); time.sleep(3600)", "unknown", mounts=disk("9m")
    ),
    "a file system without inodes": Hang(
        """
        try:
            for number in range(99): (CACHE / str(number)).touch()
        except OSError as error: print(error, flush=True)
        time.sleep(3600)
        """,
        "inodes_exhausted", "high", mounts=disk(inodes=10),
    ),
    "a few inodes that are left": Hang(
        "for number in range(5): (CACHE / str(number)).touch()\ntime.sleep(3600)", "unknown", mounts=disk(inodes=16)
    ),
    "a quota that is used up": Hang(
        """
        file = open(CACHE / 'quota/file', 'r+b', 0)
        while True:
            try: file.write(bytes(4096))
            except OSError as error: print(error, flush=True)
            time.sleep(0.1)
        """,
        "quota_exceeded", "high", ("Disk quota exceeded",), fuse("{cache}/quota", "quota"),
    ),
    "a line that speaks of quotas": Hang("print('quota: 10 GB of 80 GB used', flush=True); time.sleep(3600)", "unknown"),
    "a file system that turned read-only": Hang(
        """
        subprocess.run(['mount', '-o', 'remount,ro', str(CACHE.parent)], check=True)
        while True:
            try: (CACHE / 'x').write_bytes(b'x')
            except OSError as error: print(error, flush=True)
            time.sleep(0.1)
        """,
        "read_only_filesystem", "high", ("{cache}",), disk(),
    ),
    "a checkpoint that is mounted read-only": Hang(
        "os.chdir(PLACE / 'in'); time.sleep(3600)", "unknown",
        mounts="mkdir -p {root}/in; mount -t tmpfs -o ro none {root}/in",
    ),
    "a refusal somewhere else": Hang(
        "print(\"[Errno 13] Permission denied: '/root/.cache/huggingface'\", flush=True); time.sleep(3600)", "unknown"
    ),
    "a read that is never answered": Hang(
        "open(PLACE / 'slow/file', 'rb', 0).read(10)", "blocked_on_io", None, ("{root}/slow/file",),
        fuse("{root}/slow", "hang-read"),
    ),
    "reads that are answered": Hang(
        """
        file = open(PLACE / 'slow/file', 'rb', 0)
        while True: file.read(10); file.seek(0); time.sleep(0.2)
        """,
        "unknown", mounts=fuse("{root}/slow", "well"),
    ),
    "a mapped file of fixed size that is filled": Hang(
        """
        file = open(CACHE / 'pre.npy', 'w+b'); file.truncate(1 << 22); file.write(bytes(1 << 22)); file.flush()
        mapped, at = mmap.mmap(file.fileno(), 1 << 22), 0
        while True:
            mapped[at:at + 65536] = os.urandom(65536); mapped.flush(); at = (at + 65536) % (1 << 22); time.sleep(0.05)
        """,
        "in_place_writes", None, ("pre.npy",),
    ),
    "an open file that nobody touches": Hang(
        "file = open(CACHE / 'pre.npy', 'w+b'); file.write(bytes(1 << 22)); file.flush(); time.sleep(3600)", "unknown"
    ),
    "writes to another directory": Hang(
        """
        (PLACE / 'other').mkdir()
        file = open(PLACE / 'other/w.bin', 'wb', 0)
        while True: file.write(bytes(1 << 18)); time.sleep(0.03)
        """,
        "writing_elsewhere", "high", ("{root}/other/w.bin",),
    ),
    "a line in a log now and then": Hang(
        "file = open(PLACE / 'run.txt', 'w', 1)\nwhile True: file.write('still here\\n'); time.sleep(0.05)", "unknown"
    ),
    "a large file that is read before the first write": Hang(
        """
        with open(PLACE / 'model.safetensors', 'wb') as file: file.truncate(1 << 28)
        file = open(PLACE / 'model.safetensors', 'rb', 0)
        while True: file.read(1 << 20) or file.seek(0); time.sleep(0.02)
        """,
        "reading_checkpoint", "high", ("{root}/model.safetensors",), writes=False,
    ),
    "a small file that is read before the first write": Hang(
        "file = open(sys.executable, 'rb', 0)\nwhile True: file.read(4096); time.sleep(0.1)", "never_started", writes=False
    ),
    "sleep before the first byte": Hang(SLEEPS, "never_started", writes=False),
    "sleep after the first byte": Hang(SLEEPS, "unknown", "low", ("clock_nanosleep",)),
    "files that are made and removed": Hang(
        "while True: (CACHE / 't').write_bytes(bytes(1 << 20)); (CACHE / 't').unlink(); time.sleep(0.05)",
        "churning", writes=False, window="8s",
    ),
    # Processes
    "a process that stopped itself": Hang("os.kill(os.getpid(), signal.SIGSTOP)", "stopped_by_signal", "high", ("pid {pid}",)),
    "a process that was stopped and continued": Hang(
        "subprocess.Popen(['sh', '-c', f'kill -STOP {os.getpid()}; kill -CONT {os.getpid()}']).wait(); time.sleep(3600)",
        "unknown",
    ),
    "two locks in opposite order": Hang(
        """
        first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
        def take(one, other):
            with one: both.wait(); other.acquire()
        threading.Thread(target=take, args=(first, second)).start(); take(second, first)
        """,
        "deadlocked", "high", ("pid {pid}",),
    ),
    "a heartbeat beside a deadlock": Hang(
        """
        def beat():
            while True: time.sleep(0.1)
        threading.Thread(target=beat, daemon=True).start(); lock = threading.Lock(); lock.acquire()
        threading.Thread(target=lock.acquire).start(); lock.acquire()
        """,
        "deadlocked", "medium",
    ),
    "idle workers beside a thread that sleeps": Hang(
        """
        import queue
        for _ in range(4): threading.Thread(target=queue.Queue().get, daemon=True).start()
        time.sleep(3600)
        """,
        "unknown",
    ),
    "two processes that wait for each other's pipe": Hang(
        """
        a, b = os.pipe(), os.pipe()
        if os.fork(): os.read(a[0], 1)
        else: os.read(b[0], 1)
        """,
        "deadlocked", "medium", ("pid {pid} (python3) reads pipe:[",),
    ),
    "a lock that it holds itself, and sleep": Hang(
        "file = open(PLACE / 'own', 'w'); fcntl.flock(file, fcntl.LOCK_EX); time.sleep(3600)", "unknown"
    ),
    "an own child that holds the lock": Hang(
        """
        path = PLACE / 'own'
        child = subprocess.Popen([sys.executable, '-c', 'import fcntl, sys, time; f = open(sys.argv[1], "w"); '
            'fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(3600)', path], stdout=subprocess.PIPE)
        child.stdout.readline(); (PLACE / 'holder').write_text(str(child.pid))
        fcntl.flock(open(path), fcntl.LOCK_EX)
        """,
        "waiting_for_lock", "high", ("{root}/own", "pid {holder}", "itself one of the generator's"),
    ),
    "an idle connection beside sleep": Hang(
        "server = socket.create_server(('127.0.0.1', 0)); client = socket.create_connection(server.getsockname()); time.sleep(3600)",
        "unknown",
    ),
    "an ioctl that does not return": Hang(
        "fcntl.ioctl(os.open('/dev/net/file', os.O_RDONLY), 0x1234)", "waiting_for_device", "high", ("/dev/net/file (ioctl)",),
        fuse("/dev/net", "hang-ioctl"),
    ),
    "an open of a device that does not return": Hang(
        "open('/dev/net/0', 'rb')", "waiting_for_device", None, ("/dev/net/0",),
        "mkdir -p /dev/net; mount -t tmpfs none /dev/net; mkfifo /dev/net/0",
    ),
    "a device that is open beside sleep": Hang(
        "device = os.open('/dev/kmsg', os.O_RDONLY); time.sleep(3600)", "unknown", mounts="true"
    ),
    "an endless loop": Hang(
        "def spin_for_ever():\n    while True: pass\nspin_for_ever()", "compute_bound", None, ("pid {pid}",)
    ),
    "a child that computes": Hang(
        "subprocess.run([sys.executable, '-c', 'while True: pass'])", "compute_bound"
    ),
    "a little CPU": Hang("while True: sum(range(1000)); time.sleep(0.05)", "unknown"),
    "a pipe that nobody reads": Hang(
        "subprocess.Popen([sys.executable, '-c', 'print(\"x\" * 200000)'], stdout=subprocess.PIPE).wait()",
        "blocked_on_output_pipe", "high", ("pid {pid}",),
    ),
    "a pipe that is read slowly": Hang(
        """
        child = subprocess.Popen([sys.executable, '-c', 'import time\\nwhile True: print("x" * 99, flush=True); time.sleep(0.2)'],
            stdout=subprocess.PIPE)
        for line in child.stdout: time.sleep(0.01)
        """,
        "!blocked_on_output_pipe",
    ),
    "a child that sleeps": Hang("subprocess.run(['sleep', '3600'])", "waiting_for_child", "high", ("(sleep)",)),
    "a grandchild that sleeps": Hang(
        "subprocess.run(['sh', '-c', 'sleep 3600; true'])", "waiting_for_child", None, ("(sleep), through pid",)
    ),
    "a rank that waits for another one, which spins": Hang(RANKS.format("\\nwhile True: pass"), "compute_bound"),
    "ranks that wait for one another": Hang(RANKS.format("; c.recv(1)"), "deadlocked"),
    "a file that is cut and filled again": Hang(
        """
        while True:
            for _ in range(5):
                with open(CACHE / 'part', 'ab') as file: file.write(bytes(1_000_000))
                time.sleep(0.2)
            os.truncate(CACHE / 'part', 0)
        """,
        "churning", window="4s",
    ),
    "its own child's output that is read": Hang("subprocess.run('sleep 3600 | cat', shell=True)", "waiting_for_child"),
}  # fmt: skip


def hang(place: Place, case: Hang) -> Ran:
    if case.mounts:
        if not ROOT or (DAEMON in case.mounts and not FUSE):
            pytest.skip("mounting needs root and /dev/fuse")
        if "/disk" in case.mounts:
            place.cache = place.root / "disk/cache"
        place.mounts(case.mounts.format(cache=place.cache, root=place.root))
    head = HEAD.format(cache=str(place.cache))
    head = head if case.writes else head.rpartition("(CACHE")[0]
    note = "(PLACE / 'pid').write_text(str(os.getpid()))\n"
    source = f"{head}{note}{flush_left(case.source)}\n"
    first = "60s" if case.writes else case.window
    return place.exec(
        *QUICK, "--stall-after", case.window, "--first-write-within", first, command=place.program(source)
    )


def flush_left(source: str) -> str:
    lines = source.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


def told(place: Place, ran: Ran, says: tuple[str, ...]) -> list[str]:
    """What of these words the report does not say."""
    names = {name: (place.root / name).read_text() for name in ("pid", "holder") if (place.root / name).exists()}
    wanted = [words.format(cache=place.cache, root=place.root, **names) for words in says]
    return [words for words in wanted if words not in ran.said]


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_named_by_its_cause(place: Place, name: str) -> None:
    case = HANGS[name]
    ran = hang(place, case)
    found = ran.report["diagnosis"]
    assert ran.status == 124, ran.stderr
    if case.category.startswith("!"):
        assert found["category"] != case.category[1:], ran.said
    else:
        assert found["category"] == case.category, ran.said
    assert case.confidence in (None, found["confidence"])
    assert case.category != "churning" or "progress=any" not in ran.report["message"]
    assert told(place, ran, case.says) == [], ran.said
    assert found["summary"] and found["resolution"] and found["evidence"]


LOCKS = {
    "flock": "fcntl.flock(open(PLACE / 'pin', 'r+'), fcntl.LOCK_EX)",
    "lockf": "fcntl.lockf(open(PLACE / 'pin', 'r+'), fcntl.LOCK_EX)",
}


@pytest.mark.parametrize("kind", LOCKS)
def test_who_holds_the_lock_that_is_waited_for_is_named(place: Place, kind: str) -> None:
    with open(place.root / "pin", "w") as held:
        getattr(fcntl, kind)(held, fcntl.LOCK_EX)
        ran = hang(place, Hang(LOCKS[kind], ""))
    assert (ran.report["diagnosis"]["category"], ran.report["diagnosis"]["confidence"]) == ("waiting_for_lock", "high")
    assert told(place, ran, ("{root}/pin", f"pid {os.getpid()}", "pid {pid}", "holder: ")) == [], ran.said


# A soft lock, as filelock's SoftFileLock: its file is there, and the log says that it is waited for.
POLLS = """
lock = PLACE / 'cache/model.lock'
while True:
    try: os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL); break
    except FileExistsError: print(f'Still waiting to acquire lock on {lock} (elapsed: 20.1 seconds)', flush=True)
    time.sleep(0.1)
time.sleep(3600)
"""


@pytest.mark.parametrize("held", ["", "dead pid", "open", "pid", "elsewhere", "young"])
def test_a_soft_lock_is_stale_only_without_any_doubt_of_its_holder(place: Place, held: str) -> None:
    place.cache.mkdir()
    (lock := place.cache / "model.lock").touch()
    with subprocess.Popen(["true"]) as ended:
        pass
    lock.write_text(
        {
            "pid": f"{os.getpid()}\n",
            "elsewhere": "1\nanother-host\n",
            "dead pid": f"{ended.pid}\n{socket.gethostname()}\n",
        }.get(held, "")
    )
    os.utime(lock, None if held == "young" else (1_700_000_000, 1_700_000_000))
    with open(lock if held == "open" else os.devnull, "rb"):
        ran = hang(place, Hang(POLLS, ""))
    stale = held in ("", "dead pid")
    assert ran.report["diagnosis"]["category"] == ("stale_lock" if stale else "waiting_for_lock"), ran.said
    assert told(place, ran, (str(lock),)) == [] and ("nobody alive holds" in ran.said) == stale


@pytest.mark.parametrize("way", ["recv", "recv with a timeout", "an event loop"])
def test_a_peer_that_never_answers_is_named(place: Place, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = {
            "recv": f"socket.create_connection(('127.0.0.1', {port})).recv(1)",
            "recv with a timeout": f"c = socket.create_connection(('127.0.0.1', {port})); c.settimeout(3600); c.recv(1)",
            "an event loop": f"import asyncio\nasync def main():\n    r, w = await asyncio.open_connection('127.0.0.1', {port}); await r.read(1)\nasyncio.run(main())",
        }[way]
        ran = hang(place, Hang(source, ""))
    assert ran.report["diagnosis"]["category"] == "waiting_for_network", ran.said
    assert told(place, ran, (f"127.0.0.1:{port} (ESTABLISHED)",)) == [], ran.said


@pytest.mark.parametrize("stdin", ["pipe", "terminal"])
def test_a_prompt_that_nobody_answers_is_named(place: Place, stdin: str) -> None:
    other, place.stdin = pty.openpty() if stdin == "terminal" else os.pipe()[::-1]
    try:
        ran = hang(place, Hang("input('Overwrite? [y/N] ')", ""))
    finally:
        os.close(other)
        os.close(place.stdin)
    assert ran.report["diagnosis"]["category"] == "waiting_for_input", ran.said


@pytest.mark.skipif(not ROOT, reason="only root starts a process of another user")
def test_a_directory_of_another_user_is_permission_denied(place: Place) -> None:
    place.cache.mkdir(mode=0o755)
    for parent in (place.root, *place.root.parents):
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    tries = f"while True:\n  try: open('{place.cache}/x', 'w')\n  except OSError as error: print(error, flush=True)\n  time.sleep(0.1)"
    command = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", f"import time\n{tries}"]
    ran = place.exec(*QUICK, "--stall-after", "2s", "--first-write-within", "2s", command=command)
    found = ran.report["diagnosis"]
    assert (found["category"], found["confidence"]) == ("permission_denied", "high"), ran.said
    assert "uid 65534" in ran.said and str(place.cache) in ran.said


def test_a_cache_directory_that_was_removed_is_named(place: Place) -> None:
    ran = hang(place, Hang("import shutil; shutil.rmtree(CACHE); time.sleep(3600)", ""))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "cache_directory_missing")
    assert ran.report["diagnosis"]["category"] == "cache_directory_missing"


# Of a generator that ends by itself: its source, exit status, category, and words of the last line.
CRASHES = {
    "a CUDA allocation": ("def tile(x): raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79 GiB')\ntile(1)", 1, "gpu_out_of_memory", "tile (generator-"),
    "a module that is not there": ("import ttnn_that_is_not_there", 1, "missing_module", "No module named 'ttnn_that_is_not_there'"),
    "a file that is not there": ("open('/nowhere/w.bin')", 1, "missing_file", "'/nowhere/w.bin'"),
    "terminal codes": ("print('\\x1b[31mTT_FATAL: Device 3 does not answer\\x1b[0m\\x1b]0;owned\\x07', flush=True); sys.exit(7)", 7, "device_fault", "TT_FATAL: Device 3 does not answer [device 3]."),
    "the traceback of its child": ("subprocess.run([sys.executable, '-c', 'open(\"/nowhere/w.bin\")'], check=True)", 1, "missing_file", "'/nowhere/w.bin'"),
    "SIGSEGV": ("print('layer 7', flush=True); os.kill(os.getpid(), 11)", 139, "segmentation_fault", "its last line was: layer 7."),
    "SIGKILL by hand": ("print('layer 7', flush=True); os.kill(os.getpid(), 9)", 137, "killed", "its last line was: layer 7"),
    "abort": ("os.abort()", 134, "generator_failed", "SIGABRT"),
    "a word": ("sys.exit('no such layer')", 1, "generator_failed", "no such layer (its last line). Exit code 1. "),
    "no word": ("os._exit(3)", 3, "generator_failed", "exit code 3"),
    "one compiler of many": ("print('RuntimeError: neuronx-cc compilation failed with 70. Check compiler logs.\\nRuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:22947', flush=True); os._exit(1)", 1, "compile_error", "failed with 70"),
    "a linker on a stale handle": ("print('FAILED: jit.so\\n/usr/bin/ld: final link failed: Stale file handle\\ncollect2: error: ld returned 1 exit status\\nninja: build stopped', flush=True); os._exit(1)", 1, "stale_handle", "Stale file handle"),
    "a kernel that another one took": ("open('/nowhere/.triton/cache/KEY/k.ttir.tmp.pid_7_1')", 1, "cache_race", "k.ttir"),
    "a file of its own cache": ("open(CACHE / 'kernels/7.elf')", 1, "cache_race", "kernels/7.elf"),
    "an assertion in native code": ("raise RuntimeError(\"Failed: Assertion error /jit/compiler.hpp:158 'runtime != nullptr'\")", 1, "assertion", "runtime != nullptr"),
    "permission": ("raise PermissionError(13, 'Permission denied', '/etc/x')", 1, "permission_denied", "/etc/x"),
    "no space": ("raise OSError(28, 'No space left on device', str(CACHE / 'w.bin'))", 1, "disk_full", "out of space on its cache"),
    "no space elsewhere": ("raise OSError(28, 'No space left on device', '/elsewhere/w.bin')", 1, "disk_full", "it is not the cache's"),
    "memory": ("bytearray(1 << 62)", 1, "host_out_of_memory", "MemoryError"),
    "a peer that refuses": ("import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')", 1, "download_error", "Connection refused"),
    "a port that is taken": ("a = socket.create_server(('127.0.0.1', 0)); socket.create_server(a.getsockname())", 1, "port_in_use", "Address already in use"),
    "an option": ("import argparse; argparse.ArgumentParser().parse_args(['--fast'])", 2, "bad_argument", "--fast"),
    "an assertion": ("assert 1 == 2, 'shapes differ'", 1, "assertion", "shapes differ"),
    "an exception": ("class BadLayerError(Exception): pass\nraise BadLayerError('layer 7')", 1, "python_error", "BadLayerError: layer 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_is_told_by_what_it_said_last(place: Place, name: str) -> None:
    source, status, category, words = CRASHES[name]
    ran = hang(place, Hang(source, "", window="5m"))
    assert (ran.status, ran.report["diagnosis"]["category"]) == (status, category), ran.said
    assert words in ran.last_line and "\x1b" not in ran.last_line
    assert ran.report["message"] == ran.last_line
    assert ran.report["diagnosis"]["resolution"]


def test_an_error_that_a_completed_run_printed_is_no_cause(place: Place) -> None:
    source = "print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; with half the batch')"
    ran = hang(place, Hang(source, "", window="5m"))
    assert (ran.status, ran.report["diagnosis"], ran.report["bundle"]) == (0, None, None)


def memory_group() -> AbstractContextManager[str] | None:
    """A line of the shell that puts what follows into a memory control group of 32 MiB; None where there can be none."""
    base = Path("/sys/fs/cgroup/memory")

    @contextmanager
    def made() -> Iterator[str]:
        (group := base / f"cachewatch-contract-{uuid.uuid4().hex[:8]}").mkdir()
        (group / "memory.limit_in_bytes").write_text(str(32 << 20))
        yield f'echo $$ > {group}/cgroup.procs; exec "$@"'
        assert eventually(lambda: _removed(group))

    return made() if ROOT and (base / "memory.limit_in_bytes").exists() else None


@pytest.fixture
def limited() -> Iterator[str]:
    group = memory_group()
    if group is None:
        pytest.skip("needs root and a version 1 memory control group")
    with group as line:
        yield line


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:  # a process of it is still being reaped
        return False
    return True


def in_group(place: Place, limited: str, source: str, window: str) -> Ran:
    command = ["sh", "-c", limited, "sh", *place.program(HEAD.format(cache=str(place.cache)) + source)]
    return place.exec(*QUICK, "--stall-after", window, "--first-write-within", "60s", command=command)


def test_a_kill_by_the_memory_limit_is_told_from_one_by_hand(place: Place, limited: str) -> None:
    ran = in_group(place, limited, "time.sleep(1.5); x = bytearray(1 << 28)\n", "5m")
    assert (ran.status, ran.report["diagnosis"]["category"]) == (137, "oom_killed"), ran.said


FILLS = """
file = open(PLACE / 'big', 'w+b'); [file.write(bytes(1 << 20)) for _ in range(96)]; file.flush(); os.fsync(file.fileno())
(CACHE / 'layer1.bin').write_bytes(os.urandom(50_000))
"""
# Four processes at four places: on a busy machine too, one of them waits for a page.
MAPPED = f"""{FILLS}
m = mmap.mmap(file.fileno(), 96 << 20)
start = 2 * bool(os.fork()) + bool(os.fork()); parent = os.getppid()
while os.getppid() == parent:
    for i in range(0, 96 << 20, 4096): m[(i + start * (24 << 20)) % (96 << 20)]
"""


@pytest.mark.parametrize(
    ("source", "window", "category"),
    [(MAPPED, "6s", "memory_pressure"), (FILLS + SLEEPS, "2s", "unknown")],
    ids=["more mapped pages than memory", "a control group full of page cache"],
)
def test_memory_that_is_short_is_told_from_page_cache(
    place: Place, limited: str, source: str, window: str, category: str
) -> None:
    ran = in_group(place, limited, source, window)
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, category), ran.said
