"""`cachewatch watch`: real processes that somebody else started, their ends, their stalls, and who may be watched."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.supervise.proc import read_stat
from support import (
    CACHEWATCH,
    PATIENCE_S,
    Ran,
    assert_none_left,
    ended_pid,
    eventually,
    needs_root,
    new_tag,
    program,
    run,
    running,
    tagged,
)

LIFE_S = 100
WELL = ("--stall-after", "5m", "--first-write-within", "5m", "--poll", "0.2s")
SHORT = ("--stall-after", "1s", "--first-write-within", "1s", "--poll", "0.2s", "--grace", "0.5s")
SLEEPS = f"import time; time.sleep({LIFE_S})"
# Programs that wait for a file, so that a watch is there before they go on.
WAITS = """
import os, time
while not os.path.exists(f"{cache}/../go"):
    time.sleep(0.02)
"""
WRITES = """
import os, sys, time
for n in range(5):
    with open(f"{cache}/{n}.bin", "wb") as file:
        file.write(os.urandom(20_000))
    time.sleep(0.1)
"""
# Writes until a file says stop, and not while another says pause.
OBEYS = """
import os, sys, time
file = open(f"{cache}/x.bin", "wb", buffering=0)
while not os.path.exists(f"{cache}/../end"):
    if not os.path.exists(f"{cache}/../pause"):
        file.write(os.urandom(20_000))
    time.sleep(0.05)
raise SystemExit(6)
"""
# Its leader goes on; a daemon leaves it for init when it is told to, in a session of its own, deaf to SIGTERM.
DAEMON = f"""
import os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(15, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep({LIFE_S})
        os._exit(0)
    while not os.path.exists(f"{{cache}}/../go"):
        time.sleep(0.02)
    os._exit(0)
os.wait()
time.sleep({LIFE_S})
"""


@pytest.fixture
def cache(tmp_path) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    return path


@pytest.fixture
def started(cache) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts programs as somebody else would; each is ended by its pid and reaped at the end."""
    found: list[subprocess.Popen[bytes]] = []

    def start(source: str, tag: str | None = None, **options: object) -> subprocess.Popen[bytes]:
        argv = program(f"cache = {str(cache)!r}\n{source}", tag or new_tag())
        found.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **options))
        return found[-1]

    yield start
    for process in found:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)


@pytest.fixture
def of_another_user() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    needs_root("a process of another user")
    process = subprocess.Popen(["sleep", str(LIFE_S)], user=65534)
    yield lambda: process
    process.kill()
    process.wait(PATIENCE_S)


def watch(pid: int, cache: Path | None, *options: object) -> Ran:
    where = [] if cache is None else ["--cache-dir", str(cache)]
    return run(watch_argv(pid, *where, *options))


def watch_then_go(pid: int, cache: Path, *options: object) -> Ran:
    """Watch; what waits for the file goes on when the watch has begun."""
    began_s = time.monotonic()
    with running(watch_argv(pid, "--cache-dir", cache, *options)) as watching:
        first = watching.stderr.readline()
        assert "Ctrl-C leaves it alone" in first
        time.sleep(0.5)  # it is measuring the start
        (cache.parent / "go").touch()
        stdout, stderr = watching.communicate(timeout=PATIENCE_S)
    return Ran(watching.returncode, stdout, first + stderr, time.monotonic() - began_s)


def watch_argv(pid: int, *options: object) -> list[str]:
    return [*CACHEWATCH, "watch", "--pid", str(pid), *map(str, options)]


# Its end


@pytest.mark.parametrize(("end", "status", "name"), [("", 0, "completed"), ("raise SystemExit(7)", 7, "failed")])
def test_the_end_of_a_process_that_is_no_child_is_seen_with_its_exit_code(cache, started, tmp_path, end, status, name):
    # This test's process is the parent, and does not reap it: the status is read from the zombie.
    process = started(WAITS + WRITES + end)
    ran = watch_then_go(process.pid, cache, *WELL, "--report", tmp_path / "r.json")
    assert ran.status == status, ran.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["outcome"], report["exit_code"], report["stop"]) == (name, status, None)
    attached = report["attached"]
    assert (attached["pid"], attached["on_stall"], attached["stalls"]) == (process.pid, "report", [])
    assert report["cache_dirs"] == [str(cache)]
    assert ran.last_line == report["message"]
    assert ("its output is not seen by an observer" in ran.last_line) is (name == "failed")


def test_a_process_that_a_signal_ended_is_128_and_its_number(cache, started):
    process = started(WAITS + WRITES + "os.kill(os.getpid(), 9)")
    ran = watch_then_go(process.pid, cache, *WELL, "--json")
    assert ran.status == 137
    assert "the generator was killed by SIGKILL;" in ran.last_line
    assert json.loads(ran.stdout)["message"] == ran.last_line


def test_the_end_is_seen_at_once_and_not_at_the_next_poll(cache, started):
    process = started(WAITS)
    ran = watch_then_go(process.pid, cache, "--allow-empty", "--poll", "2m", "--stall-after", "5m")
    assert ran.status == 0
    assert ran.seconds < 60


# Its child goes on until a file says stop; it ends when another says go.
LEAVES_A_CHILD = f"""
import os, time
if os.fork() == 0:
    ends = time.monotonic() + {LIFE_S}
    while not os.path.exists(f"{{cache}}/../end") and time.monotonic() < ends:
        time.sleep(0.05)
    os._exit(0)
"""


def test_what_a_process_leaves_behind_is_named(cache, started, tmp_path):
    tag = new_tag()
    process = started(LEAVES_A_CHILD + WAITS, tag)
    assert eventually(lambda: len(tagged(tag)) == 2)
    (child,) = (pid for pid in tagged(tag) if pid != process.pid)
    ran = watch_then_go(process.pid, cache, *WELL, "--allow-empty")
    assert ran.status == 0
    assert f"processes that it left behind go on: pid {child} (" in ran.stderr
    (tmp_path / "end").touch()
    assert_none_left(tag)


# Stalls


@pytest.mark.campaign
def test_a_stall_has_it_stopped_with_a_daemon_that_went_to_init(cache, started, tmp_path):
    tag = new_tag()
    process = started(DAEMON, tag)
    assert eventually(lambda: len(tagged(tag)) == 3)
    options = ("--stall-after", "4s", "--first-write-within", "4s", "--poll", "0.2s", "--grace", "0.5s")
    ran = watch_then_go(process.pid, cache, *options, "--on-stall", "stop", "--report", tmp_path / "r.json")
    assert ran.status == 124, ran.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["outcome"], report["stall"]["kind"]) == ("stalled", "never_started")
    assert " Tensor cache generation never started: no byte written within 4 s in " in ran.stderr.splitlines()[-1]
    stop = report["stop"]
    assert [who["pid"] for who in stop["terminated"]] == [process.pid]
    assert (len(stop["killed"]), stop["survivors"]) == (1, [])
    assert tag in stop["killed"][0]["argv"]
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert (report["exit_code"], report["signal"]) == (None, 15)
    assert_none_left(tag, 1)
    assert Path(report["bundle"]).is_dir()
    assert report["diagnosis"]["category"]


@pytest.mark.campaign
def test_a_stall_is_only_reported_once_and_again_after_it_grew(cache, started, tmp_path):
    pause, report = tmp_path / "pause", tmp_path / "r.json"
    process = started(OBEYS)
    assert eventually(lambda: (cache / "x.bin").exists() and (cache / "x.bin").stat().st_size > 0)
    argv = watch_argv(process.pid, "--cache-dir", cache, *SHORT, "--report", report)

    def stalls() -> int:
        return len(json.loads(report.read_text())["attached"]["stalls"]) if report.exists() else 0

    with running(argv) as watching:
        for _ in range(2):  # there may be more: the process may get no processor for a whole window
            known = stalls()
            pause.touch()
            assert eventually(lambda known=known: stalls() > known)
            time.sleep(1.5)  # more than the window: what is said again shows below
            assert process.poll() is None
            size = (cache / "x.bin").stat().st_size
            pause.unlink()
            assert eventually(lambda size=size: (cache / "x.bin").stat().st_size > size + 100_000)
        (tmp_path / "end").touch()
        _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 124
    final = json.loads(report.read_text())
    assert (final["outcome"], final["exit_code"], final["stop"]) == ("failed", 6, None)
    told = final["attached"]["stalls"]
    assert len(told) >= 2
    for before, after in itertools.pairwise(told):  # once, and again after it grew
        assert before["at_s"] < before["resumed_at_s"] < after["at_s"]
    assert {stall["kind"] for stall in told} == {"no_growth"}
    assert f"Process {process.pid} was left alone." in told[0]["message"]
    assert all(Path(stall["bundle"]).is_dir() for stall in told)
    assert len({stall["bundle"] for stall in told}) == len(told)
    assert said.count("Tensor cache generation stalled: no disk write activity detected for ") == len(told)


def test_one_that_wrote_before_the_watch_began_is_judged_by_the_window_of_writing(cache, started, tmp_path):
    process = started(WRITES + SLEEPS)
    assert eventually(lambda: len(list(cache.iterdir())) == 5)
    ran = watch(process.pid, cache, "--stall-after", "1s", "--first-write-within", "10m", "--poll", "0.2s", "--no-bundle",
                "--grace", "1s", "--on-stall", "stop", "--report", tmp_path / "r.json")  # fmt: skip
    assert ran.status == 124
    assert json.loads((tmp_path / "r.json").read_text())["stall"]["kind"] == "no_growth"


@pytest.mark.campaign
def test_a_time_limit_is_said_once_and_the_process_goes_on(cache, started, tmp_path):
    process = started(OBEYS)
    with running(
        watch_argv(process.pid, "--cache-dir", cache, *WELL, "--max-duration", "1s", "--no-bundle")
    ) as watching:
        line = eventually(lambda: watching.stderr.readline() if watching.poll() is None else "")
        while "exceeded its time limit" not in line:
            line = watching.stderr.readline()
        assert line.rstrip().endswith(f"Process {process.pid} was left alone.") or "left alone. " in line
        time.sleep(1)
        (tmp_path / "end").touch()
        _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 124
    assert "exceeded" not in said


@pytest.mark.parametrize(
    ("number", "status", "on_stall"),
    [(signal.SIGINT, 130, "stop"), (signal.SIGXCPU, 152, "report")],
)
def test_the_end_of_the_watch_leaves_the_process_alone(cache, started, tmp_path, number, status, on_stall):
    process = started(SLEEPS)
    report = tmp_path / "r.json"
    argv = watch_argv(process.pid, "--cache-dir", cache, *WELL, "--on-stall", on_stall, "--report", report)
    with running(argv) as watching:
        assert "Ctrl-C leaves it alone" in watching.stderr.readline()
        time.sleep(0.5)
        watching.send_signal(number)
        _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == status
    assert f"The watch was ended ({number.name})" in said
    assert f"process {process.pid} goes on" in said
    assert process.poll() is None
    assert read_stat(process.pid).state not in "TZ"
    assert json.loads(report.read_text())["outcome"] == "detached"


def test_a_watch_that_is_killed_leaves_the_process_alone(cache, started):
    process = started(SLEEPS)
    with running(watch_argv(process.pid, "--cache-dir", cache, *WELL, "--on-stall", "stop")) as watching:
        assert "Ctrl-C leaves it alone" in watching.stderr.readline()
        watching.kill()
        watching.wait(PATIENCE_S)
    time.sleep(0.5)
    assert process.poll() is None
    assert read_stat(process.pid).state not in "TZ"


# Who may be watched


@pytest.mark.parametrize("path", ["nowhere", "a-file"])
def test_a_directory_that_is_none_is_refused_and_not_made(tmp_path, started, path):
    process = started(SLEEPS)
    (tmp_path / "a-file").write_text("")
    ran = watch(process.pid, tmp_path / path)
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert not (tmp_path / "nowhere").exists()
    assert process.poll() is None


def test_who_may_not_be_watched_is_refused_in_one_sentence(cache, started):
    process = started("import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()")
    thread = eventually(
        lambda: next((int(t) for t in os.listdir(f"/proc/{process.pid}/task") if int(t) != process.pid), 0)
    )
    gone = ended_pid()
    for pid, sentence in (
        (1, "process 1 is init, from which everything descends: give the pid of the generator"),
        (os.getpid(), f"process {os.getpid()} is this cachewatch, or started it, directly or through others: give "),
        (gone, f"there is no process {gone}: see ps -e for the generator's"),
        (thread, f"{thread} is a thread of process {process.pid}: give the pid of the process"),
        (0, "--pid 0 is no process id: give the generator's, a number from 2 on (see ps -e)"),
    ):
        ran = watch(pid, cache)
        assert (ran.status, ran.stderr.count("\n")) == (125, 1)
        assert ran.stderr.startswith(f"cachewatch: {sentence}")
    process.kill()
    assert eventually(lambda: (found := read_stat(process.pid)) is not None and found.state == "Z")
    assert "has ended already: nothing is left to watch" in watch(process.pid, cache).stderr


def test_another_users_process_may_be_watched_and_not_stopped_without_the_right(cache, of_another_user):
    process = of_another_user()
    cache.chmod(0o777)
    # Before the change of user: another user may not read the checkout.
    source = f"""
import os
from prefect_cachewatch.cli import watching
from prefect_cachewatch.cli.main import main
os.setresuid(12345, 12345, 12345)
main({watch_argv(process.pid, "--cache-dir", str(cache), "--on-stall", "stop")[len(CACHEWATCH) :]!r})
"""
    ran = run([sys.executable, "-c", source])
    assert ran.status == 125
    assert ran.stderr.strip().endswith(
        "belongs to another user and could not be stopped: watch it as that user or as root, or with --on-stall report"
    )
    assert process.poll() is None


def test_whom_and_where_to_watch_must_be_said(cache, started):
    for argv, sentence in (
        (["--cache-dir", str(cache)], "say whom to watch: a process, with --pid PID (see ps -e)"),
        (["--pid", "4711"], "no cache directory given: say which one process 4711 writes to with --cache-dir DIR"),
    ):
        ran = run([*CACHEWATCH, "watch", *argv])
        assert (ran.status, ran.stderr) == (125, f"cachewatch: {sentence}\n")
