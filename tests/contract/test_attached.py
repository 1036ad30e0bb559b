"""`cachewatch watch`: processes that somebody else started, their ends and stalls, who may be watched, and that the watch itself harms nobody."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.harness import QUICK, WELL, Place, Ran, eventually, state

SHORT = (*QUICK, "--stall-after", "2s", "--first-write-within", "2s")
SLEEPS = "time.sleep(3600)"
# Waits for `go`, so that a watch is there before it goes on.
WAITS = "while not (PLACE / 'go').exists(): time.sleep(0.02)\n"
WRITES = "for number in range(5): (PLACE / f'cache/{number}.bin').write_bytes(os.urandom(20_000)); time.sleep(0.1)\n"
# Writes until `end` is there, and not while `pause` is; says so in `paused`.
OBEYS = """
file = open(PLACE / 'cache/x.bin', 'wb', buffering=0)
while not (PLACE / 'end').exists():
    if not (PLACE / 'pause').exists(): file.write(os.urandom(20_000))
    time.sleep(0.05)
sys.exit(6)
"""
# It goes on; a daemon leaves it for init when it is told to, in a session of its own, deaf to SIGTERM.
DAEMON = """
import signal
if os.fork() == 0:
    os.setsid(); signal.signal(15, signal.SIG_IGN)
    if os.fork() == 0: time.sleep(3600)
    while not (PLACE / 'go').exists(): time.sleep(0.02)
    os._exit(0)
os.wait(); time.sleep(3600)
"""
LEAVES_A_CHILD = """
if os.fork() == 0:
    (PLACE / 'child').write_text(str(os.getpid()))
    while not (PLACE / 'end').exists(): time.sleep(0.05)
    os._exit(0)
"""


class Generators:
    """Programs of a place that somebody else has started: this test's process is their parent, and reaps none of them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.begun: list[subprocess.Popen[str]] = []
        place.cache.mkdir()

    def start(self, source: str) -> int:
        argv = list(map(str, self.place.program(source)))
        self.begun.append(
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=self.place.env, start_new_session=True)  # type: ignore[arg-type]
        )
        return self.begun[-1].pid

    def end(self) -> None:
        for pid in self.place.everybody():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.begun:
            process.wait()
        self.place.assert_nobody()

    def argv(self, pid: int, *options: object) -> list[object]:
        return [
            "watch",
            "--pid",
            pid,
            "--cache-dir",
            self.place.cache,
            "--report",
            self.place.root / "r.json",
            *options,
        ]

    def watch(self, pid: int, *options: object, go: bool = True) -> Ran:
        """Watch to the end; what waits for `go` goes on when the first measurement has been shown."""
        with self.watching(pid, *options) as watching:
            if go:
                (self.place.root / "go").touch()
            stdout, said = watching.communicate(timeout=120)
        return Ran(watching.returncode, stdout, said, self.report())

    @contextlib.contextmanager
    def watching(self, pid: int, *options: object) -> Iterator[subprocess.Popen[str]]:
        """Start a watch, and go on when it has begun to measure."""
        with self.place.start(*self.argv(pid, "-v", *options)) as watching:
            assert watching.stderr is not None
            ends = threading.Timer(120, watching.kill)  # what is read below comes, or the watch is none
            ends.start()
            try:
                assert "Ctrl-C leaves it alone" in watching.stderr.readline()
                assert watching.stderr.readline().startswith("cachewatch: "), "no measurement is shown"
                yield watching
            finally:
                ends.cancel()
                watching.kill()

    def report(self) -> dict[str, object]:
        file = self.place.root / "r.json"
        return json.loads(file.read_text()) if file.exists() else {}


@pytest.fixture
def generators(place: Place) -> Iterator[Generators]:
    made = Generators(place)
    yield made
    made.end()


@pytest.mark.parametrize(
    ("end", "status", "outcome"),
    [("", 0, "completed"), ("sys.exit(7)", 7, "failed"), ("os.kill(os.getpid(), 9)", 137, "failed")],
    ids=["exit code 0", "exit code 7", "SIGKILL"],
)
def test_the_end_of_a_process_that_is_no_child_is_seen(
    generators: Generators, end: str, status: int, outcome: str
) -> None:
    pid = generators.start(WAITS + WRITES + end)
    ran = generators.watch(pid, *WELL)
    assert (ran.status, ran.report["outcome"], ran.report["stop"]) == (status, outcome, None), ran.stderr
    attached = ran.report["attached"]
    assert (attached["pid"], attached["on_stall"], attached["stalls"]) == (pid, "report", [])
    assert ran.report["cache_dirs"] == [str(generators.place.cache)]
    assert ran.last_line == ran.report["message"]


def test_the_end_is_seen_at_once_and_not_at_the_next_poll(generators: Generators) -> None:
    pid = generators.start(WAITS)
    options = ("--allow-empty", "--poll", "1h", "--stall-after", "3h")
    with generators.place.start(*generators.argv(pid, *options)) as watching:
        assert watching.stderr is not None and "Ctrl-C" in watching.stderr.readline()
        (generators.place.root / "go").touch()
        watching.communicate(timeout=120)
    assert watching.returncode == 0


def test_what_a_process_leaves_behind_is_named_and_left_alone(generators: Generators) -> None:
    pid = generators.start(LEAVES_A_CHILD + WAITS)
    child = generators.place.root / "child"
    assert eventually(lambda: child.exists() and child.read_text())
    ran = generators.watch(pid, *WELL, "--allow-empty")
    assert ran.status == 0 and f"pid {child.read_text()} (" in ran.stderr
    assert state(int(child.read_text())) not in ("", "Z", "T")


def test_a_stall_has_it_stopped_with_a_daemon_that_went_to_init(generators: Generators) -> None:
    pid = generators.start(DAEMON)
    assert eventually(lambda: len(generators.place.everybody()) == 3)
    ran = generators.watch(pid, *SHORT, "--on-stall", "stop")
    assert (ran.status, ran.report["outcome"], ran.report["stall"]["kind"]) == (124, "stalled", "never_started")
    stop = ran.report["stop"]
    assert ([who["pid"] for who in stop["terminated"]], stop["survivors"]) == ([pid], [])
    assert len(stop["killed"]) >= 1 and Path(ran.report["bundle"]).is_dir()
    assert generators.begun[0].wait(60) == -signal.SIGTERM
    assert (ran.report["exit_code"], ran.report["signal"]) == (None, signal.SIGTERM)
    generators.place.assert_nobody()


def test_one_that_wrote_before_the_watch_began_is_judged_by_the_window_of_writing(generators: Generators) -> None:
    pid = generators.start(WRITES + SLEEPS)
    assert eventually((generators.place.cache / "4.bin").exists)
    windows = (*QUICK, "--stall-after", "2s", "--first-write-within", "10m")
    ran = generators.watch(pid, *windows, "--on-stall", "stop", "--no-bundle")
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")


def test_a_stall_is_only_reported_once_and_again_after_it_grew(generators: Generators) -> None:
    place, written = generators.place, generators.place.cache / "x.bin"
    pid = generators.start(OBEYS)
    assert eventually(lambda: written.exists() and written.stat().st_size)

    def stalls() -> int:
        return len((generators.report().get("attached") or {}).get("stalls", ()))  # type: ignore[attr-defined]

    with generators.watching(pid, *SHORT) as watching:
        drained = threading.Thread(target=lambda: list(watching.stderr or ()))
        drained.start()
        for _ in range(2):  # there may be more: the process may get no processor for a whole window
            known = stalls()
            (place.root / "pause").touch()
            assert eventually(lambda known=known: stalls() > known)
            assert state(pid) not in ("", "Z", "T")
            size = written.stat().st_size
            (place.root / "pause").unlink()
            assert eventually(lambda size=size: written.stat().st_size > size + 100_000)
        (place.root / "end").touch()
        watching.wait(120)
        drained.join()
    final = generators.report()
    assert (watching.returncode, final["outcome"], final["exit_code"], final["stop"]) == (124, "failed", 6, None)
    told = final["attached"]["stalls"]  # type: ignore[index]
    assert len(told) >= 2 and {stall["kind"] for stall in told} == {"no_growth"}
    for before, after in itertools.pairwise(told):
        assert before["at_s"] < before["resumed_at_s"] < after["at_s"]
    assert len({stall["bundle"] for stall in told}) == len(told)


def test_a_time_limit_is_told_once_and_the_process_goes_on(generators: Generators) -> None:
    pid = generators.start(OBEYS)
    with generators.watching(pid, *WELL, "--max-duration", "1s", "--no-bundle") as watching:
        assert watching.stderr is not None
        while "exceeded its time limit" not in (line := watching.stderr.readline()):
            assert line
        assert state(pid) not in ("", "Z", "T")
        for _ in range(2):  # further measurements
            assert "exceeded" not in watching.stderr.readline()
        (generators.place.root / "end").touch()
        _, said = watching.communicate(timeout=120)
    assert (watching.returncode, "exceeded its time limit" in said) == (124, False)


@pytest.mark.parametrize(
    ("number", "status", "on_stall"),
    [(signal.SIGINT, 130, "stop"), (signal.SIGTERM, 143, "report"), (signal.SIGXCPU, 152, "report"), (signal.SIGKILL, -9, "stop")],
    ids=["Ctrl-C", "SIGTERM", "SIGXCPU", "SIGKILL"],
)  # fmt: skip
def test_the_end_of_the_watch_leaves_the_process_alone(
    generators: Generators, number: signal.Signals, status: int, on_stall: str
) -> None:
    pid = generators.start(SLEEPS)
    with generators.watching(pid, *WELL, "--on-stall", on_stall) as watching:
        watching.send_signal(number)
        _, said = watching.communicate(timeout=120)
    assert watching.returncode == status
    if number != signal.SIGKILL:
        assert f"process {pid} goes on" in said and generators.report()["outcome"] == "detached"
    assert eventually(lambda: generators.place.everybody() == [pid])  # nothing of the watch is left
    assert state(pid) not in ("", "Z", "T")


def test_an_engine_that_is_killed_is_our_own_failure_and_leaves_the_process_alone(generators: Generators) -> None:
    pid, place = generators.start(SLEEPS), generators.place
    with generators.watching(pid, *WELL, "--on-stall", "stop") as watching:
        (engine,) = [
            each for each in place.everybody() if b"cachewatch: engine" in Path(f"/proc/{each}/cmdline").read_bytes()
        ]
        os.kill(engine, signal.SIGKILL)
        _, said = watching.communicate(timeout=120)
    assert (watching.returncode, f"process {pid} was left alone" in said) == (125, True), said
    assert eventually(lambda: place.everybody() == [pid]) and state(pid) not in ("", "Z", "T")


def test_who_may_not_be_watched_is_refused_in_one_sentence(generators: Generators) -> None:
    pid = generators.start("import threading; threading.Thread(target=time.sleep, args=(3600,)).start()")
    thread = eventually(lambda: next((int(task) for task in os.listdir(f"/proc/{pid}/task") if int(task) != pid), 0))
    ended = generators.start("")
    assert eventually(lambda: state(ended) == "Z")
    with subprocess.Popen(["true"]) as gone:
        pass
    for refused, words in (
        (1, "is init"),
        (os.getpid(), "is this cachewatch, or started it"),
        (gone.pid, f"there is no process {gone.pid}"),
        (thread, f"is a thread of process {pid}"),
        (ended, "has ended already"),
        (0, "is no process id"),
        (-1, "is no process id"),
        (10**399, "--pid"),
    ):
        ran = generators.place.run(*generators.argv(refused))
        assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1), ran.stderr
        assert words in ran.stderr
    assert state(pid) not in ("", "Z", "T")


@pytest.mark.parametrize("where", ["nowhere", "a-file", "a-pipe", None])
def test_a_directory_that_is_none_is_refused_and_not_made(generators: Generators, where: str | None) -> None:
    pid, root = generators.start(SLEEPS), generators.place.root
    (root / "a-file").touch()
    os.mkfifo(root / "a-pipe")
    ran = generators.place.run("watch", "--pid", pid, *(["--cache-dir", root / where] if where else []))
    assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1)
    assert not (root / "nowhere").exists() and state(pid) not in ("", "Z", "T")


def test_whom_to_watch_must_be_said(place: Place) -> None:
    ran = place.run("watch", "--cache-dir", place.root)
    assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1) and "--pid" in ran.stderr


def test_another_users_process_is_not_to_be_stopped_without_the_right(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts a process of another user")
    place.cache.mkdir()
    place.before = ["setpriv", "--bounding-set=-kill"]  # root without the right to signal others
    with subprocess.Popen(["sleep", "3600"], user=65534) as other:
        try:
            ran = place.run("watch", "--pid", other.pid, "--cache-dir", place.cache, "--on-stall", "stop")
            assert (ran.status, ran.stderr.count("\n")) == (125, 1), ran.stderr
            assert "belongs to another user and could not be stopped" in ran.stderr
            assert state(other.pid) not in ("", "Z", "T")
        finally:
            other.kill()
