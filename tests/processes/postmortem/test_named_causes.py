"""Every cause is shown by a real process and named rightly; beside it a near miss that must not be.

What this machine cannot show is the nearest real thing: an exceeded quota is a FUSE file system
that refuses a write with EDQUOT, a device is a FUSE file or a FIFO below /dev, and /dev/kmsg.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import uuid
from pathlib import Path

import pytest
from tests.support import ended_pid, leave_behind

from prefect_cachewatch.common.users import user_name

SLEEP = "ready(); time.sleep(99)"
MOUNT = "mkdir -p /tmp/cw-cache; mount -t tmpfs -o size={size},nr_inodes={inodes},mode=777 none /tmp/cw-cache"
CACHE = "/tmp/cw-cache"
NOTHING_WRITTEN = {"first_write_s": None, "bytes_written": 0}
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def limited():
    """A shell prefix that puts what follows into a memory control group of 32 MiB."""
    base = Path("/sys/fs/cgroup/memory")
    if not (base / "memory.limit_in_bytes").exists() or os.geteuid() != 0:
        pytest.skip("needs root and a version 1 memory control group")
    group = base / f"cachewatch-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(32 << 20))
    yield f"echo $$ > {group}/cgroup.procs; exec "
    for _ in range(100):
        try:
            group.rmdir()
            break
        except OSError:
            import time

            time.sleep(0.05)


# --- storage


def test_a_full_tmpfs_is_disk_full(hang_with_mounts, python):
    code = (
        f"f = open('{CACHE}/x', 'wb', 0)\n"
        "try:\n  while True: f.write(bytes(4096))\n"
        "except OSError as e: print(e, flush=True)\n" + SLEEP
    )
    found = hang_with_mounts(command=python(code), cache=CACHE, setup=MOUNT.format(size="1m", inodes=100))
    assert (found["category"], found["confidence"]) == ("disk_full", "high")
    assert any("No space left on device" in line for line in found["evidence"])


def test_a_tmpfs_with_two_mebibytes_left_is_not_disk_full(hang_with_mounts, python):
    code = f"open('{CACHE}/x', 'wb').write(bytes(6 << 20))\n" + SLEEP
    found = hang_with_mounts(command=python(code), cache=CACHE, setup=MOUNT.format(size="8m", inodes=100))
    assert found["category"] == "unknown"


def test_a_tmpfs_without_inodes_is_inodes_exhausted(hang_with_mounts, python):
    code = (
        f"try:\n  for i in range(99): open(f'{CACHE}/{{i}}', 'w').close()\n"
        "except OSError as e: print(e, flush=True)\n" + SLEEP
    )
    found = hang_with_mounts(command=python(code), cache=CACHE, setup=MOUNT.format(size="8m", inodes=8))
    assert (found["category"], found["confidence"]) == ("inodes_exhausted", "high")


def test_a_few_free_inodes_are_not_inodes_exhausted(hang_with_mounts, python):
    code = f"for i in range(5): open(f'{CACHE}/{{i}}', 'w').close()\n" + SLEEP
    found = hang_with_mounts(command=python(code), cache=CACHE, setup=MOUNT.format(size="8m", inodes=12))
    assert found["category"] == "unknown"


WRITE_AGAIN_AND_AGAIN = (
    f"f = open('{CACHE}/file', 'r+b', 0); ready()\n"
    "while True:\n  try: f.write(bytes(4096))\n"
    "  except OSError as e: print(e, flush=True)\n  time.sleep(0.1)"
)


def test_writes_refused_with_edquot_are_quota_exceeded(hang_with_mounts, python, fuse):
    found = hang_with_mounts(command=python(WRITE_AGAIN_AND_AGAIN), cache=CACHE, setup=fuse(CACHE, "quota"))
    assert (found["category"], found["confidence"]) == ("quota_exceeded", "high")


def test_a_log_that_speaks_of_quotas_is_not_quota_exceeded(hang, python, tmp_path):
    found = hang(python("print('quota: 10 GB of 80 GB used');" + SLEEP), str(tmp_path))
    assert found["category"] == "unknown"


def test_a_remount_read_only_is_read_only_filesystem(hang_with_mounts, python):
    code = (
        "ready()\nwhile True:\n"
        f"  try: open('{CACHE}/x', 'wb').write(b'x')\n"
        "  except OSError as e: print(e, flush=True)\n  time.sleep(0.1)"
    )
    found = hang_with_mounts(
        command=python(code), cache=CACHE, setup=MOUNT.format(size="8m", inodes=99), then=f"mount -o remount,ro {CACHE}"
    )
    assert (found["category"], found["confidence"]) == ("read_only_filesystem", "high")


def test_a_read_only_mount_of_the_checkpoint_is_not_read_only_filesystem(hang_with_mounts, python):
    setup = MOUNT.format(size="8m", inodes=99) + "; mkdir -p /tmp/cw-in; mount -t tmpfs -o ro none /tmp/cw-in"
    found = hang_with_mounts(command=python("os.chdir('/tmp/cw-in');" + SLEEP), cache=CACHE, setup=setup)
    assert found["category"] == "unknown"


def test_a_file_system_that_never_answers_is_filesystem_unresponsive(hang_with_mounts, python, fuse):
    found = hang_with_mounts(
        command=python(f"ready(); os.stat('{CACHE}/file')"), cache=CACHE, setup=fuse(CACHE, "hang"), budget_s=1.0
    )
    assert (found["category"], found["confidence"]) == ("filesystem_unresponsive", "high")
    assert found["took_s"] < 2.0


def test_a_slow_file_system_is_not_filesystem_unresponsive(hang_with_mounts, python, fuse):
    found = hang_with_mounts(command=python(SLEEP), cache=CACHE, setup=fuse(CACHE, "slow"))
    assert found["category"] == "unknown"


@root_only
def test_another_users_directory_is_permission_denied(hang, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    code = (
        "import time\nprint('ready', flush=True)\nwhile True:\n"
        f"  try: open('{cache}/x', 'w')\n  except OSError as e: print(e, flush=True)\n  time.sleep(0.1)"
    )
    found = hang(["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", code], str(cache))
    assert (found["category"], found["confidence"]) == ("permission_denied", "high")
    assert "uid 65534" in found["summary"]


def test_a_refusal_somewhere_else_is_not_permission_denied(hang, python, tmp_path):
    code = "print(\"[Errno 13] Permission denied: '/root/.cache/huggingface'\", flush=True);" + SLEEP
    assert hang(python(code), str(tmp_path))["category"] == "unknown"


def test_a_removed_cache_directory_is_named(hang, python, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    found = hang(python(SLEEP), str(cache), then=f"rmdir {cache}")
    assert found["category"] == "cache_directory_missing"


def test_a_read_that_storage_never_answers_is_blocked_on_io(hang_with_mounts, python, fuse, tmp_path):
    code = f"f = open('{CACHE}/file', 'rb', 0); ready(); f.read(10)"
    found = hang_with_mounts(command=python(code), cache=str(tmp_path), setup=fuse(CACHE, "hang-read"))
    assert found["category"] == "blocked_on_io"
    assert f"{CACHE}/file" in found["summary"]


def test_short_reads_that_are_answered_are_not_blocked_on_io(hang_with_mounts, python, fuse, tmp_path):
    code = f"f = open('{CACHE}/file', 'rb', 0); ready()\nwhile True:\n  f.read(10); f.seek(0); time.sleep(0.2)"
    found = hang_with_mounts(command=python(code), cache=str(tmp_path), setup=fuse(CACHE, "healthy"))
    assert found["category"] == "unknown"


def test_filling_a_mapped_file_of_fixed_size_is_in_place_writes(hang, python, tmp_path):
    code = (
        f"f = open('{tmp_path}/pre.npy', 'w+b'); f.truncate(1 << 22); m = mmap.mmap(f.fileno(), 1 << 22); ready(); i = 0\n"
        "while True:\n  m[i:i+65536] = b'x' * 65536; m.flush(); i = (i + 65536) % (1 << 22); time.sleep(0.05)"
    )
    found = hang(python(code), str(tmp_path))
    assert found["category"] == "in_place_writes"
    assert "pre.npy" in found["summary"] and "progress" in found["resolution"]


def test_an_open_file_that_nobody_touches_is_not_in_place_writes(hang, python, tmp_path):
    code = f"f = open('{tmp_path}/pre.npy', 'w+b'); f.truncate(1 << 22); time.sleep(1.2);" + SLEEP
    assert hang(python(code), str(tmp_path))["category"] == "unknown"


def test_writes_to_another_directory_are_writing_elsewhere_and_named(hang, python, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "cache").mkdir()
    code = (
        f"f = open('{tmp_path}/other/w.bin', 'wb', 0); ready()\nwhile True: f.write(bytes(1 << 18)); time.sleep(0.03)"
    )
    found = hang(python(code), str(tmp_path / "cache"))
    assert (found["category"], found["confidence"]) == ("writing_elsewhere", "high")
    assert "w.bin" in found["summary"]


def test_a_log_line_now_and_then_is_not_writing_elsewhere(hang, python, tmp_path):
    (tmp_path / "cache").mkdir()
    code = f"f = open('{tmp_path}/run.txt', 'w', 1); ready()\nwhile True: f.write('still here\\n'); time.sleep(0.05)"
    assert hang(python(code), str(tmp_path / "cache"))["category"] == "unknown"


def test_reading_a_large_file_before_the_first_write_is_reading_checkpoint(hang, python, tmp_path):
    (tmp_path / "cache").mkdir()
    code = (
        f"f = open('{tmp_path}/model.safetensors', 'wb'); f.truncate(1 << 28); f.close()\n"
        f"f = open('{tmp_path}/model.safetensors', 'rb', 0); ready()\n"
        "while True:\n  f.read(1 << 20) or f.seek(0); time.sleep(0.02)"
    )
    found = hang(python(code), str(tmp_path / "cache"), growth=NOTHING_WRITTEN)
    assert (found["category"], found["confidence"]) == ("reading_checkpoint", "high")
    assert "model.safetensors" in found["summary"]


def test_reading_a_configuration_now_and_then_is_not_reading_checkpoint(hang, python, tmp_path):
    code = "f = open(sys.executable, 'rb', 0); ready()\nwhile True: f.read(4096); time.sleep(0.1)"
    assert hang(python(code), str(tmp_path), growth=NOTHING_WRITTEN)["category"] == "never_started"


# --- processes


def test_sigstop_is_stopped_by_signal(hang, python, tmp_path):
    found = hang(python(SLEEP), str(tmp_path), then="kill -STOP PID")
    assert (found["category"], found["confidence"]) == ("stopped_by_signal", "high")


def test_a_process_that_was_continued_is_not_stopped_by_signal(hang, python, tmp_path):
    found = hang(python(SLEEP), str(tmp_path), then="kill -STOP PID; sleep 0.1; kill -CONT PID")
    assert found["category"] == "unknown"


def test_two_locks_in_opposite_order_are_deadlocked(hang, python, tmp_path):
    code = (
        "a = threading.Lock(); b = threading.Lock()\n"
        "def both(x, y):\n  with x:\n    time.sleep(0.1)\n    with y: pass\n"
        "threading.Thread(target=both, args=(a, b)).start(); ready(); both(b, a)"
    )
    found = hang(python(code), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("deadlocked", "high")


def test_idle_worker_threads_beside_a_sleeping_main_thread_are_not_deadlocked(hang, python, tmp_path):
    code = (
        "import queue\nq = queue.Queue()\n"
        "for _ in range(4): threading.Thread(target=q.get, daemon=True).start()\n" + SLEEP
    )
    assert hang(python(code), str(tmp_path))["category"] == "unknown"


def test_a_main_thread_that_joins_a_sleeping_one_is_not_deadlocked(hang, python, tmp_path):
    code = "t = threading.Thread(target=time.sleep, args=(99,)); t.start(); ready(); t.join()"
    assert hang(python(code), str(tmp_path))["category"] == "unknown"


def test_a_heartbeat_thread_does_not_hide_a_deadlock(hang, python, tmp_path):
    code = (
        "def beat():\n  while True: time.sleep(0.1)\n"
        "threading.Thread(target=beat, daemon=True).start(); a = threading.Lock(); a.acquire()\n"
        "threading.Thread(target=a.acquire).start(); ready(); a.acquire()"
    )
    found = hang(python(code), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("deadlocked", "medium")


def test_a_contended_flock_is_waiting_for_lock_and_names_the_holder(hang, python, tmp_path):
    import fcntl

    with open(tmp_path / "cache.pin", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = hang(python(f"f = open('{tmp_path}/cache.pin'); ready(); fcntl.flock(f, fcntl.LOCK_EX)"), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("waiting_for_lock", "high")
    assert f"pid {os.getpid()}" in found["summary"] and "cache.pin" in found["summary"]
    (holder,) = [line for line in found["evidence"] if line.startswith("holder: ")]
    assert holder.startswith(f"holder: pid {os.getpid()} of {user_name(os.getuid())}, since 20")
    assert " UTC: " in holder and "py" in holder


def test_a_contended_record_lock_is_waiting_for_lock(hang, python, tmp_path):
    import fcntl

    with open(tmp_path / "cache.pin", "w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        found = hang(
            python(f"f = open('{tmp_path}/cache.pin', 'w'); ready(); fcntl.lockf(f, fcntl.LOCK_EX)"), str(tmp_path)
        )
    assert found["category"] == "waiting_for_lock"


def test_a_process_that_holds_a_lock_and_sleeps_is_not_waiting_for_lock(hang, python, tmp_path):
    found = hang(python(f"f = open('{tmp_path}/l', 'w'); fcntl.flock(f, fcntl.LOCK_EX);" + SLEEP), str(tmp_path))
    assert found["category"] == "unknown"


POLLS_A_SOFT_LOCK = """
path = sys.argv[1]
print('ready', flush=True)
while True:
    try:
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        break
    except FileExistsError:
        print(f'Still waiting to acquire lock on {path} (elapsed: 20.1 seconds)', flush=True)
        time.sleep(0.1)
time.sleep(99)
"""


def test_a_soft_lock_that_a_dead_run_left_behind_is_stale_lock(hang, python, tmp_path):
    lock = leave_behind(tmp_path / ".locks" / "model a.lock")
    found = hang(
        [*python(POLLS_A_SOFT_LOCK), str(lock)], str(tmp_path), growth=NOTHING_WRITTEN | {"kind": "never_started"}
    )
    assert (found["category"], found["confidence"]) == ("stale_lock", "high")
    assert found["summary"].startswith(f"it waits for the lock file {lock}, made ")
    assert found["summary"].endswith("ago, which nobody alive holds")


def test_a_lock_file_with_a_dead_pid_is_probably_what_a_sleeping_generator_waits_for(hang, python, tmp_path):
    pid = ended_pid()
    leave_behind(tmp_path / "weights.lock", f"{pid}\n{socket.gethostname()}\n")
    found = hang(python(SLEEP), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("stale_lock", "medium")
    assert found["summary"].endswith(f"ago, which nobody alive holds; pid {pid}, which is in it, has ended")


@pytest.mark.parametrize("held", ["open", "pid", "elsewhere", "young"])
def test_a_soft_lock_that_may_have_a_holder_is_not_stale_lock(hang, python, tmp_path, held):
    content = {"pid": f"{os.getpid()}\n", "elsewhere": "1\nanother-host\n"}.get(held, "")
    lock = leave_behind(tmp_path / "model.lock", content)
    with open(lock if held == "open" else os.devnull, "rb"):
        if held == "young":
            os.utime(lock)
        found = hang([*python(POLLS_A_SOFT_LOCK), str(lock)], str(tmp_path))
    assert found["category"] == "waiting_for_lock"
    assert str(lock) in found["summary"] and "which nobody alive holds" not in found["summary"]


def test_an_empty_lock_file_that_no_log_names_is_not_stale_lock(hang, python, tmp_path):
    leave_behind(tmp_path / ".locks" / "model.lock")
    assert hang(python(SLEEP), str(tmp_path))["category"] == "unknown"


@pytest.mark.parametrize("timeout", ["None", "60"])
def test_a_peer_that_never_answers_is_waiting_for_network(hang, python, tmp_path, timeout):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"c = socket.create_connection(('127.0.0.1', {port})); c.settimeout({timeout}); ready(); c.recv(1)"
        found = hang(python(code), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("waiting_for_network", "high")
    assert f"127.0.0.1:{port} (ESTABLISHED)" in found["summary"]


def test_an_event_loop_that_waits_for_a_peer_is_waiting_for_network(hang, python, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            "import asyncio\nasync def main():\n"
            f"  r, w = await asyncio.open_connection('127.0.0.1', {server.getsockname()[1]})\n  ready(); await r.read(1)\n"
            "asyncio.run(main())"
        )
        assert hang(python(code), str(tmp_path))["category"] == "waiting_for_network"


def test_an_idle_connection_beside_a_sleep_is_not_waiting_for_network(hang, python, tmp_path):
    code = "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname());" + SLEEP
    assert hang(python(code), str(tmp_path))["category"] == "unknown"


def test_a_hung_ioctl_below_dev_is_waiting_for_device(hang_with_mounts, python, fuse, tmp_path):
    code = "f = os.open('/dev/net/file', os.O_RDONLY); ready(); fcntl.ioctl(f, 0x1234)"
    found = hang_with_mounts(command=python(code), cache=str(tmp_path), setup=fuse("/dev/net", "hang-ioctl"))
    assert (found["category"], found["confidence"]) == ("waiting_for_device", "high")
    assert "/dev/net/file (ioctl)" in found["summary"]


def test_an_open_of_a_device_that_does_not_return_is_waiting_for_device(hang_with_mounts, python, tmp_path):
    setup = "mkdir -p /dev/net; mount -t tmpfs none /dev/net; mkfifo /dev/net/0"
    found = hang_with_mounts(command=python("ready(); open('/dev/net/0', 'rb')"), cache=str(tmp_path), setup=setup)
    assert found["category"] == "waiting_for_device"
    assert "/dev/net/0" in found["summary"]


@root_only
def test_a_blocked_read_of_a_character_device_is_waiting_for_device(hang, python, tmp_path):
    code = "f = os.open('/dev/kmsg', os.O_RDONLY); os.lseek(f, 0, os.SEEK_END); ready(); os.read(f, 8192)"
    found = hang(python(code), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("waiting_for_device", "high")


@root_only
def test_a_device_that_is_open_beside_a_sleep_is_not_waiting_for_device(hang, python, tmp_path):
    assert hang(python("f = os.open('/dev/kmsg', os.O_RDONLY);" + SLEEP), str(tmp_path))["category"] == "unknown"


def test_an_endless_loop_is_compute_bound_and_named(hang, python, tmp_path):
    code = "def spin_for_ever():\n  while True: pass\nready(); spin_for_ever()"
    found = hang(python(code), str(tmp_path), window_s=1.5)
    assert found["category"] == "compute_bound"
    if os.access(Path(sys.executable).with_name("py-spy"), os.X_OK):
        assert "spin_for_ever" in found["summary"] and found["confidence"] == "high"


def test_a_little_cpu_is_not_compute_bound(hang, python, tmp_path):
    code = "ready()\nwhile True:\n  sum(range(1000)); time.sleep(0.05)"
    assert hang(python(code), str(tmp_path), window_s=1.5)["category"] == "unknown"


def test_a_pipe_that_nobody_reads_is_blocked_on_output_pipe(hang, python, tmp_path):
    code = "p = subprocess.Popen([sys.executable, '-c', 'print(\"x\" * 200000)'], stdout=subprocess.PIPE); ready(); p.wait()"
    found = hang(python(code), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("blocked_on_output_pipe", "high")


def test_a_pipe_that_is_read_slowly_is_not_blocked_on_output_pipe(hang, python, tmp_path):
    code = (
        "p = subprocess.Popen([sys.executable, '-c', "
        "'import time\\nwhile True: print(\"x\" * 99, flush=True); time.sleep(0.2)'], stdout=subprocess.PIPE)\n"
        "ready()\nfor line in p.stdout: time.sleep(0.01)"
    )
    assert hang(python(code), str(tmp_path))["category"] != "blocked_on_output_pipe"


def test_a_sleeping_child_is_waiting_for_child_and_named(hang, python, tmp_path):
    found = hang(python("p = subprocess.Popen(['sleep', '99']); ready(); p.wait()"), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("waiting_for_child", "high")
    assert "(sleep)" in found["summary"]


def test_the_process_that_is_waited_for_in_the_end_is_named(hang, python, tmp_path):
    found = hang(python("ready(); subprocess.run(['sh', '-c', 'sleep 99; true'])"), str(tmp_path))
    assert found["category"] == "waiting_for_child"
    assert "(sleep), through pid" in found["summary"]


def test_a_child_that_computes_is_not_waiting_for_child(hang, python, tmp_path):
    code = "p = subprocess.Popen([sys.executable, '-c', 'while True: pass']); ready(); p.wait()"
    assert hang(python(code), str(tmp_path), window_s=1.5)["category"] == "compute_bound"


@pytest.mark.parametrize("stdin", ["pipe", "pty"])
def test_an_unanswered_prompt_is_waiting_for_input(hang, python, tmp_path, stdin):
    found = hang(python("print('Overwrite? [y/N]'); ready(); input()"), str(tmp_path), stdin=stdin)
    assert (found["category"], found["confidence"]) == ("waiting_for_input", "high")


def test_reading_the_output_of_ones_own_child_is_not_waiting_for_input(hang, tmp_path):
    found = hang(["sh", "-c", "echo ready; sleep 99 | cat"], str(tmp_path))
    assert found["category"] == "waiting_for_child"


@pytest.mark.campaign
def test_more_mapped_pages_than_memory_is_memory_pressure(hang, python, tmp_path, limited):
    code = (
        f"f = open('{tmp_path}/big', 'w+b'); [f.write(bytes(1 << 20)) for _ in range(96)]; f.flush(); os.fsync(f.fileno())\n"
        "m = mmap.mmap(f.fileno(), 96 << 20); ready()\n"
        # Four processes at four places: on a busy machine too, one of them waits for a page.
        "start = 2 * bool(os.fork()) + bool(os.fork()); parent = os.getppid()\n"
        "while os.getppid() == parent:\n  for i in range(0, 96 << 20, 4096): m[(i + start * (24 << 20)) % (96 << 20)]"
    )
    (tmp_path / "cache").mkdir()
    found = hang(["sh", "-c", limited + shlex.join(python(code))], str(tmp_path / "cache"), window_s=4)
    assert found["category"] == "memory_pressure"


def test_a_control_group_full_of_page_cache_is_not_memory_pressure(hang, python, tmp_path, limited):
    code = f"f = open('{tmp_path}/big', 'w+b'); [f.write(bytes(1 << 20)) for _ in range(64)];" + SLEEP
    (tmp_path / "cache").mkdir()
    found = hang(["sh", "-c", limited + shlex.join(python(code))], str(tmp_path / "cache"))
    assert found["category"] == "unknown"


def test_a_kill_by_the_memory_limit_is_oom_killed(hang, python, tmp_path, limited):
    code = "ready(); time.sleep(0.6); x = bytearray(1 << 28)"
    found = hang(["sh", "-c", limited + shlex.join(python(code))], str(tmp_path), wait_exit=True)
    assert (found["category"], found["confidence"]) == ("oom_killed", "high")


def test_a_kill_by_hand_is_not_oom_killed(hang, python, tmp_path):
    found = hang(python(SLEEP), str(tmp_path), then="kill -KILL PID", wait_exit=True)
    assert (found["category"], found["summary"]) == (
        "killed",
        "the generator was killed by SIGKILL, and its last line was: ready",
    )


def test_files_made_and_removed_are_churning(hang, python, tmp_path):
    code = (
        "ready()\nwhile True:\n"
        f"  open('{tmp_path}/t.tmp', 'wb').write(bytes(1 << 20)); os.unlink('{tmp_path}/t.tmp'); time.sleep(0.05)"
    )
    found = hang(python(code), str(tmp_path), growth={"kind": "churning", "discarded_bytes": 8 << 20})
    assert (found["category"], found["confidence"]) == ("churning", "high")


def test_files_that_no_scan_ever_saw_are_churning_too(hang, python, tmp_path):
    code = (
        "ready()\nwhile True:\n"
        f"  open('{tmp_path}/t.tmp', 'wb').write(bytes(1 << 20)); os.unlink('{tmp_path}/t.tmp'); time.sleep(0.05)"
    )
    assert hang(python(code), str(tmp_path), growth=NOTHING_WRITTEN)["category"] == "churning"


def test_one_small_temporary_file_is_not_churning(hang, python, tmp_path):
    code = f"open('{tmp_path}/t.tmp', 'wb').write(bytes(4096)); os.unlink('{tmp_path}/t.tmp');" + SLEEP
    assert hang(python(code), str(tmp_path), growth={"discarded_bytes": 4096})["category"] == "unknown"


def test_a_generator_that_sleeps_before_its_first_byte_is_never_started(hang, python, tmp_path):
    found = hang(python(SLEEP), str(tmp_path), growth={**NOTHING_WRITTEN, "kind": "never_started"})
    assert found["category"] == "never_started"


def test_a_generator_that_sleeps_after_its_first_byte_is_unknown(hang, python, tmp_path):
    found = hang(python(SLEEP), str(tmp_path))
    assert (found["category"], found["confidence"]) == ("unknown", "low")
    assert "clock_nanosleep" in found["summary"]
