"""Nobody survives: process trees of every shape, and everything that ends a run; through `cachewatch exec`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.contract.harness import QUICK, WELL, Place, assert_refused, eventually, state

TREES = Path(__file__).with_name("trees.py")
LIFE_S = 300
# How many processes live at least, once a tree stands.
SHAPES = {
    "plain": 1, "term_ignorer": 2, "daemon": 2, "sessions": 201, "bomb": 30, "chain": 100, "stopped": 2, "groups": 5, "orphan": 2,
    "thread": 2, "leaderless": 1, "traced": 3, "term_starter": 1, "nohup": 2, "user": 2,
}  # fmt: skip


class Tree:
    """A guarded generator of some shape, whose processes are known by their name."""

    def __init__(self, place: Place, shape: str) -> None:
        self.place, self.shape, self.tag = place, shape, f"t{uuid.uuid4().hex[:13]}"
        self.process: subprocess.Popen[str]
        place.cache.mkdir(exist_ok=True)

    def start(self, *options: object, writes: int = -1, before: tuple[str, ...] = ()) -> None:
        trees = [sys.executable, "-I", "-S", TREES, self.tag, LIFE_S, self.shape, self.place.cache, writes, 0.1]
        report = ("--no-bundle", "--report", self.place.root / "report.json")
        self.process = self.place.start(
            "exec", "--cache-dir", self.place.cache, *options, *report, "--", *before, *trees, start_new_session=True
        )

    def living(self, settled: bool = False) -> list[int]:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
        return [int(pid) for pid in pids if self._has(pid, self.tag + "+" * settled)]

    def _has(self, pid: str, name: str) -> bool:
        """Whether it is called so and lives; that is, one of its threads, for the first one may have ended."""
        with contextlib.suppress(OSError):  # it ends just now
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                threads = [Path(path, "stat").read_text() for path in Path(f"/proc/{pid}/task").iterdir()]
                return any(text[text.rindex(")") + 2] not in "ZX" for text in threads)
        return False

    def stand(self) -> None:
        """Wait until the whole tree lives, and has written."""

        def stands() -> bool:
            return len(self.living(settled=True)) >= SHAPES[self.shape] and any(self.place.cache.iterdir())

        eventually(lambda: stands() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        assert stands(), f"{len(self.living(settled=True))} of {len(self.living())} have settled"

    def engine(self) -> int:
        """The process that the command has started to run its generator."""
        return self.helpers()[0]

    def guard(self) -> int:
        """The process between the engine and its generator."""
        _, guard = self.helpers()
        return guard

    def helpers(self) -> list[int]:
        """Those between the command and its generator, from above."""
        for pid in self.living():
            with contextlib.suppress(psutil.Error):  # it ends just now
                way = [parent.pid for parent in psutil.Process(pid).parents()]
                if self.process.pid in way:
                    between = way[: way.index(self.process.pid)][::-1]
                    return [pid for pid in between if not self._has(str(pid), self.tag)]
        raise AssertionError("no process of the tree is below the command")

    def known(self) -> None:
        """Wait until the state directory tells of each process, as also a wiped environment cannot prevent."""

        def told() -> str:
            files = [path for path in (self.place.root / "state").rglob("*") if path.is_file()]
            return "\n".join(path.read_text(errors="replace") for path in files)

        assert eventually(lambda: all(str(pid) in told() for pid in self.living()))

    def status(self) -> int:
        """Wait for the command, and until nobody holds its streams."""
        self.process.communicate(timeout=120)
        return self.process.returncode

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place.root / "report.json").read_text())
        return found

    def assert_gone(self) -> None:
        assert eventually(lambda: not self.living()), f"left: {self.living()}"
        self.place.assert_nobody()  # neither a guard nor a scanner


@pytest.fixture
def tree(place: Place, request: pytest.FixtureRequest) -> Iterator[Tree]:
    """A tree of the shape that the row names."""
    made = Tree(place, request.getfixturevalue("shape") if "shape" in request.fixturenames else "daemon")
    if made.shape == "user" and os.geteuid() != 0:
        pytest.skip("only root can change its user")
    yield made
    for pid in [*made.living(), *place.everybody()]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_stalled_tree_is_gone_when_the_command_ends(tree: Tree, shape: str) -> None:
    tree.start(*QUICK, "--stall-after", "1500ms", "--first-write-within", "60s", writes=3)
    assert tree.status() == 124
    assert tree.living() == []
    report = tree.report()
    assert (report["outcome"], report["stall"]["kind"], report["stop"]["survivors"]) == ("stalled", "no_growth", [])
    assert len(report["stop"]["terminated"]) + len(report["stop"]["killed"]) >= 1
    tree.assert_gone()


@pytest.mark.parametrize("shape", ["bomb", "daemon", "leaderless", "orphan", "sessions", "stopped", "thread"])
def test_a_killed_command_leaves_nobody(tree: Tree, shape: str) -> None:
    tree.start(*WELL)
    tree.stand()
    tree.process.kill()
    assert tree.status() == -signal.SIGKILL
    tree.assert_gone()
    assert (tree.report()["outcome"], tree.report()["stop"]["survivors"]) == ("cancelled", [])  # the engine outlives it


# Which die at one instant: the command, its engine, the guard.
DIE = {"engine": (1,), "command and engine": (0, 1), "command and guard": (0, 2), "engine and guard": (1, 2)}


@pytest.mark.parametrize("shape", ["daemon", "sessions"])
@pytest.mark.parametrize("who", DIE)
def test_whoever_is_killed_nobody_is_left(tree: Tree, who: str, shape: str) -> None:
    tree.start(*WELL)
    tree.stand()
    killed_at_once([([tree.process.pid, *tree.helpers()])[index] for index in DIE[who]])
    assert tree.status() == (-signal.SIGKILL if 0 in DIE[who] else 125)
    tree.assert_gone()


def test_an_engine_that_is_stopped_is_continued(tree: Tree) -> None:
    tree.start(*QUICK, "--stall-after", "10s", "--first-write-within", "60s", writes=3)
    tree.stand()
    os.kill(tree.engine(), signal.SIGSTOP)
    assert tree.status() == 124
    tree.assert_gone()


def test_a_command_that_is_stopped_holds_up_no_verdict_and_no_stop(tree: Tree) -> None:
    tree.start(*QUICK, "--stall-after", "10s", "--first-write-within", "60s", writes=3)
    tree.stand()
    tree.process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: not tree.living())
    assert state(tree.process.pid) == "T"
    tree.process.send_signal(signal.SIGCONT)
    assert tree.status() == 124
    tree.assert_gone()


def test_an_engine_and_a_command_that_are_stopped_are_no_end_of_the_watch(tree: Tree) -> None:
    # Nobody but the guard can act: it continues the engine, which decides.
    tree.start(*QUICK, "--stall-after", "10s", "--first-write-within", "60s", writes=3)
    tree.stand()
    tree.process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: state(tree.process.pid) == "T")
    os.kill(engine := tree.engine(), signal.SIGSTOP)
    assert eventually(lambda: state(engine) == "T")
    assert eventually(lambda: not tree.living(), 180)
    tree.process.send_signal(signal.SIGCONT)
    assert tree.status() == 124
    tree.assert_gone()


def test_an_engine_that_does_nothing_any_more_has_its_tree_stopped_by_the_guard(tree: Tree) -> None:
    tree.start(*WELL)
    tree.stand()
    tree.process.send_signal(signal.SIGSTOP)  # it would end an engine that is held
    assert eventually(lambda: state(tree.process.pid) == "T")
    with held(tree.engine()):
        assert eventually(lambda: not tree.living(), 180)
        tree.process.send_signal(signal.SIGCONT)
        assert tree.status() == 125
    tree.assert_gone()


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """Hold all threads of a process as a debugger does: SIGCONT does not continue it."""
    source = "import ctypes, sys, time; call = ctypes.CDLL(None).ptrace; call.argtypes = [ctypes.c_long] * 4\n"
    source += (
        "import os; print([call(16, int(one), 0, 0) for one in os.listdir(f'/proc/{sys.argv[1]}/task')], flush=True)\n"
    )
    source += "time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", source, str(pid)], stdout=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stdout is not None and set(json.loads(tracer.stdout.readline())) == {0}
            assert eventually(lambda: state(pid) == "t")
            yield
        finally:
            tracer.kill()


def killed_at_once(pids: list[int]) -> None:
    for pid in pids:  # so that neither acts on the death of the other
        os.kill(pid, signal.SIGSTOP)
    for pid in pids[::-1]:  # the death of a parent would let its stopped child go on
        os.kill(pid, signal.SIGKILL)


def stopped(tree: Tree) -> None:
    os.kill(guard := tree.guard(), signal.SIGSTOP)
    assert eventually(lambda: state(guard) == "T")


def sent(name: str) -> Callable[[Tree], None]:
    return lambda tree: tree.process.send_signal(getattr(signal, name))


def to_group(name: str) -> Callable[[Tree], None]:
    return lambda tree: os.killpg(tree.process.pid, getattr(signal, name))


# What ends the run, and of which shape -> what is done, the exit status, the outcome.
ENDS: dict[tuple[str, str], tuple[Callable[[Tree], object], int, str]] = {
    ("SIGTERM", "sessions"): (sent("SIGTERM"), 143, "cancelled"),
    ("SIGTERM", "stopped"): (sent("SIGTERM"), 143, "cancelled"),
    ("SIGTERM", "bomb"): (sent("SIGTERM"), 143, "cancelled"),
    ("Ctrl-C", "term_ignorer"): (to_group("SIGINT"), 130, "cancelled"),
    ("a closed terminal", "nohup"): (to_group("SIGHUP"), 129, "cancelled"),
    ("the guard is killed", "daemon"): (lambda tree: os.kill(tree.guard(), signal.SIGKILL), 125, "failed"),
    ("the guard is killed", "bomb"): (lambda tree: os.kill(tree.guard(), signal.SIGKILL), 125, "failed"),
    ("the guard is killed", "chain"): (lambda tree: os.kill(tree.guard(), signal.SIGKILL), 125, "failed"),
    ("the guard is killed", "sessions"): (lambda tree: os.kill(tree.guard(), signal.SIGKILL), 125, "failed"),
    ("the guard is stopped, then it is killed", "daemon"): (lambda tree: killed_at_once([tree.guard()]), 125, "failed"),
    ("the guard is stopped, then SIGTERM", "daemon"): (
        lambda tree: (stopped(tree), sent("SIGTERM")(tree)), 143, "cancelled",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("end", "shape"), ENDS)
def test_whatever_ends_the_run_ends_its_tree(tree: Tree, end: str, shape: str) -> None:
    act, status, outcome = ENDS[end, shape]
    tree.start(*WELL)
    tree.stand()
    act(tree)
    assert tree.status() == status
    tree.assert_gone()
    report = tree.report()
    assert report["outcome"] == outcome
    assert (report["stop"] or {}).get("survivors", []) == []


def test_a_stopped_guard_does_not_hold_up_the_end_of_a_stalled_tree(tree: Tree) -> None:
    tree.start(*QUICK, "--stall-after", "10s", "--first-write-within", "60s", writes=3)
    tree.stand()
    stopped(tree)
    assert tree.status() == 124
    tree.assert_gone()
    assert tree.report()["stop"]["survivors"] == []


def test_a_stopped_guard_acts_on_the_death_of_the_command(tree: Tree) -> None:
    tree.start(*WELL)
    tree.stand()
    stopped(tree)
    tree.process.kill()
    assert tree.status() == -signal.SIGKILL
    tree.assert_gone()


def test_a_guard_that_is_stopped_and_whose_generator_ends_hides_no_status(place: Place) -> None:
    source = """
        parents = [os.getppid(), int(Path(f'/proc/{os.getppid()}/stat').read_text().rpartition(') ')[2].split()[1])]
        (PLACE / 'cache/a').write_bytes(b'x' * 9000)
        for pid in parents[::-1]:
            os.kill(pid, 19)
        sys.exit(7)
    """
    ran = place.exec(*WELL, command=place.program(source))
    assert (ran.status, ran.report["outcome"], ran.report["exit_code"]) == (7, "failed", 7)
    place.assert_nobody()


def test_the_time_limit_ends_a_tree_that_writes_on(tree: Tree) -> None:
    tree.start(*WELL, "--max-duration", "2s")
    assert tree.status() == 124
    tree.assert_gone()
    assert tree.report()["stop"]["survivors"] == []


# What the command does whose child it leaves behind -> options, exit status, outcome. It leaves when the tree stands.
LEAVES = {
    "it fails": ("exit 5", (), 5, "failed"),
    "it is killed": ("kill -KILL $$", (), 137, "failed"),
    "it ends well, and only it is waited for": ("exit 0", ("--wait-for", "leader"), 0, "completed"),
}


@pytest.mark.parametrize("how", LEAVES)
def test_what_a_command_leaves_behind_is_stopped(tree: Tree, how: str) -> None:
    end, options, status, outcome = LEAVES[how]
    go = tree.place.root / "go"
    script = f'"$@" & while ! [ -e {go} ]; do sleep 0.1; done; {end}'
    tree.start(*WELL, *options, before=("sh", "-c", script, "sh"))
    tree.stand()
    go.touch()
    assert tree.status() == status
    tree.assert_gone()
    assert tree.report()["outcome"] == outcome


def test_what_a_command_leaves_behind_is_waited_for_and_watched(tree: Tree) -> None:
    script = '"$@" & sleep 0.5; exit 0'
    options = ("--stall-after", "1500ms", "--first-write-within", "60s")
    tree.start(*QUICK, *options, writes=20, before=("sh", "-c", script, "sh"))
    assert tree.status() == 124
    tree.assert_gone()
    assert tree.report()["growth"]["files_present"] == 20


# A hundred orphans that end one after the other; zombies would still be the guard's.
ORPHANS = """
import subprocess
subprocess.run(["sh", "-c", "for n in $(seq 100); do sleep 3 & done"])
def below():
    listed = subprocess.run(["ps", "-o", "comm=", "--ppid", str(os.getppid())], capture_output=True, text=True)
    return listed.stdout.split()
assert below().count("sleep") > 50
while below() != [Path("/proc/self/comm").read_text().strip()]: time.sleep(0.1)
"""


def test_orphans_are_reaped_while_the_command_runs(place: Place) -> None:
    ran = place.exec(*WELL, "--allow-empty", command=place.program(ORPHANS))
    assert ran.status == 0, ran.stderr


# As a sandbox in which prctl(PR_SET_CHILD_SUBREAPER) fails with EPERM.
NO_REAPER = """
import ctypes, struct
libc = ctypes.CDLL(None)
prctl = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 3, prctl), (0x20, 0, 0, 16), (0x15, 0, 1, 36), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_where_orphans_cannot_be_adopted_nothing_is_started(place: Place) -> None:
    place.before = place.program(NO_REAPER)
    ran = place.run("exec", "--cache-dir", place.cache, "--", "touch", place.root / "ran")
    assert_refused(ran, 125, "could be neither reaped nor stopped", "nothing was started")
    assert not (place.root / "ran").exists()


def everybody_killed(tree: Tree) -> list[int]:
    """As where the host's memory ends: the command, its engine and its guard die before any of them can act; who is left."""
    tree.start(*WELL)
    tree.stand()
    if tree.shape == "daemon":
        tree.known()
    killed_at_once([tree.process.pid, *tree.helpers()])
    tree.status()
    left = tree.living()
    assert left, "nobody outlived the guard: this shows nothing"
    return left


@pytest.mark.parametrize("shape", ["bomb", "daemon", "sessions"])
def test_who_outlives_command_engine_and_guard_is_found_by_doctor(tree: Tree, shape: str) -> None:
    everybody_killed(tree)
    ran = tree.place.run("doctor", "--no-prefect", "--json")
    assert ran.status == 0, ran.stdout
    assert tree.living() == []
    tree.assert_gone()


def test_who_outlives_command_engine_and_guard_is_stopped_by_the_next_run(tree: Tree) -> None:
    left = everybody_killed(tree)
    ran = tree.place.exec(*WELL, command=["true"])
    assert ran.status == 0, ran.stderr
    assert tree.living() == []
    assert any(f"pid {pid} " in note for note in ran.report["notes"] for pid in left)
