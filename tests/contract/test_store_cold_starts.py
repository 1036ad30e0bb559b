"""Cold starts of one key side by side: one generates, the others wait for it; of those that wait, one takes over from the dead."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from prefect_cachewatch import CacheStore, StoreBusy
from tests.contract.builds import NAME, Recipe, active, beside, offer, states
from tests.contract.harness import LONG_S, WELL, Place, eventually, state
from tests.contract.on_prefect import WELL as PATIENT
from tests.contract.test_store_kills import REPOSITORY, reader
from tests.contract.test_store_locks import worker
from tests.prefect_server import PATIENCE_S, Server, flow_process_of
from tests.support import unavailable


def cold_starts(root: Path, count: int, step: int | None = None, before: Sequence[str] = ()) -> list[str]:
    """Let processes begin at once, one of them killed at its step-th call; returns what each came to, nothing of a killed one."""
    workers = [worker(root, "cold", *([step] if step and not number else []), before=before) for number in range(count)]
    for process in workers:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in workers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=LONG_S)[0].strip() for process in workers]


def assert_one_at_a_time(root: Path, doomed: bool = False) -> None:
    """Each that began has ended before the next one began, but for one that was killed."""
    log = [line.split() for line in (root / "generated").read_text().splitlines()]
    pids = [pid for _, pid in log]
    ended = [pid for word, pid in log if word == "ended"]
    assert len(ended) <= 1 and len(set(pids)) <= 1 + doomed, log
    assert pids == sorted(pids, key=pids.index), log


def test_of_eight_that_begin_at_once_one_generates_and_seven_wait_for_it(root: Path) -> None:
    assert sorted(cold_starts(root, 8)) == ["cached"] * 7 + ["generated"]
    assert_one_at_a_time(root)
    assert [*states(root).values()] == ["active"]
    assert CacheStore(root).verify(NAME).whole


@pytest.mark.parametrize("step", [3, 11, 19, 27])
def test_one_of_those_that_wait_takes_over_from_a_writer_that_is_killed(root: Path, step: int) -> None:
    takes_over(root, 4, step)


@pytest.mark.campaign
def test_one_of_seven_takes_over_at_whatever_call_the_writer_is_killed(root: Path) -> None:
    for step in range(1, 60):
        takes_over(root, 8, step)
        shutil.rmtree(root / NAME)
        (root / "generated").unlink()


def takes_over(root: Path, count: int, step: int) -> None:
    offer(root, key="before")
    with reader(root, "plain") as seen:
        first, *others = cold_starts(root, count, step)
        assert first in ("", "cached", "generated")
        assert set(others) <= {"cached", "generated"} and others.count("generated") <= 1
        assert_one_at_a_time(root, doomed=True)
        assert CacheStore(root).find_whole(NAME, Recipe(cache_key={"v": "cold"}).key), states(root)
        assert CacheStore(root).verify(NAME).whole and "damaged" not in states(root).values()
        CacheStore(root).gc(NAME, keep=2, grace_s=60)
    assert seen["bad"] == []


# -- writers on other hosts: this machine with another boot id, as the kernel of another one has it


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts another boot id")
ELSEWHERE = 'hostname elsewhere; mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@"'


@contextlib.contextmanager
def foreign(tmp_path: Path, root: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A worker on another host, until the end of the block: its locks are seen as those that a server keeps for it."""
    boot = tmp_path / "boot"
    boot.write_text("another-kernel\n")
    with subprocess.Popen(
        ["unshare", "-mu", "--propagation", "private", "sh", "-ec", ELSEWHERE, boot, sys.executable, "-m",
         "tests.contract.store_worker", root, *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@needs_root
@pytest.mark.parametrize("lock", ["kept for it by the server", "not seen from here"])
def test_a_writer_on_another_host_is_waited_for_while_it_beats(root: Path, tmp_path: Path, lock: str) -> None:
    with foreign(tmp_path, root, "hold") as process:
        assert process.stdout is not None
        build_id = process.stdout.readline().strip()
        record = beside(root / NAME / "builds" / build_id, ".begun")
        if lock == "not seen from here":
            (root / NAME / ".lock").unlink()
        for _ in range(2):
            os.utime(record)
            assert states(root) == {build_id: "staging"}
            with pytest.raises(StoreBusy) as caught:
                offer(root)
            assert caught.value.data["key"] == Recipe(cache_key={"v": "1"}).key
            assert CacheStore(root).gc(NAME, keep=1, grace_s=0).removed == ()


@pytest.mark.campaign
@needs_root
@pytest.mark.parametrize("lock", ["kept for it by the server", "not seen from here"])
def test_within_two_beats_one_of_those_that_wait_takes_over_from_a_host_that_is_gone(
    root: Path, tmp_path: Path, lock: str
) -> None:
    with foreign(tmp_path, root, "hold", "cold") as process:
        assert process.stdout is not None
        build_id = process.stdout.readline().strip()
        process.send_signal(signal.SIGSTOP)  # it beats no more, and lets nothing go
        if lock == "not seen from here":
            (root / NAME / ".lock").unlink()
        began_s = time.monotonic()
        # Processes of another host are not seen.
        results = cold_starts(root, 4, before=["unshare", "-pf", "--mount-proc", "--kill-child"])
        assert sorted(results) == ["cached"] * 3 + ["generated"]
        assert time.monotonic() - began_s > 15, "a beat was waited for"
        assert_one_at_a_time(root)
        assert states(root)[build_id] == "abandoned" and active(root) != build_id, "it may still write there"


# -- runs


SLOW = """
with (PLACE / "generated").open("a") as log:
    print(os.getpid(), file=log)
[Path(sys.argv[1], f"{n}.bin").write_bytes(b"x" * 9000) for n in range(3)]
while not (PLACE / "go").exists(): time.sleep(0.05)
"""


def generations(place: Place) -> list[int]:
    log = place.root / "generated"
    return [int(pid) for pid in log.read_text().split()] if log.exists() else []


class Runs:
    """Runs of one cache on a real server; what each says goes to a file."""

    def __init__(self, place: Place, server: Server) -> None:
        self.place, self.began = place, 0
        place.env |= server.env | {key: place.env[key] for key in ("CACHEWATCH_STATE", "XDG_STATE_HOME")}
        place.store.mkdir()
        self._slow = place.program(SLOW)

    def begin(self, *words: object, key: str = "a=1") -> Run:
        self.began += 1
        log = self.place.root / f"run-{self.began}.log"
        given = ["--store", self.place.store, "--name", NAME, "--key", key, "--attempts", "1", *WELL, *words]
        with log.open("w") as file:
            process = self.place.start("generate", *given, "--", *self._slow, "{cache_dir}", stdout=file, stderr=file)
        return Run(process, log)

    def generations(self) -> list[int]:
        log = self.place.root / "generated"
        return [int(pid) for pid in log.read_text().split()] if log.exists() else []


@dataclass
class Run:
    process: subprocess.Popen[str]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def ended(self) -> int:
        return self.process.wait(LONG_S)


@pytest.fixture
def runs(place: Place, server: Server) -> Iterator[Runs]:
    yield Runs(place, server)
    place.assert_nobody()


def test_runs_of_one_key_wait_for_the_one_that_generates_and_end_cached(place: Place, runs: Runs) -> None:
    first = runs.begin()
    assert eventually(runs.generations, LONG_S)
    second, hasty, cancelled, other = (
        runs.begin(),
        runs.begin("--max-duration", "2s"),
        runs.begin(),
        runs.begin(key="a=2"),
    )
    assert (other.ended(), "the lock is held by pid" in other.said) == (125, True), "another key is not waited for"
    assert (hasty.ended(), "as long as an attempt may last" in hasty.said) == (125, True)
    assert eventually(lambda: "waiting for it" in cancelled.said, LONG_S)
    cancelled.process.send_signal(signal.SIGTERM)
    assert cancelled.ended() == 128 + signal.SIGTERM
    assert eventually(lambda: "waiting for it" in second.said, LONG_S)
    (place.root / "go").touch()
    assert (first.ended(), second.ended()) == (0, 0)
    assert "is whole already" in second.said and len(runs.generations()) == 1


def test_one_of_the_runs_that_wait_takes_over_from_one_that_is_killed(place: Place, runs: Runs) -> None:
    first = runs.begin()
    assert eventually(runs.generations, LONG_S)
    others = [runs.begin(), runs.begin()]
    assert eventually(lambda: all("waiting for it" in run.said for run in others), LONG_S)
    first.process.kill()
    first.ended()
    assert eventually(lambda: len(runs.generations()) == 2, LONG_S)
    (place.root / "go").touch()
    assert [run.ended() for run in others] == [0, 0], [run.said for run in others]
    assert len(runs.generations()) == 2 and sum("is whole already" in run.said for run in others) == 1
    assert CacheStore(place.store).verify(NAME).whole


FULL = """
with (PLACE / "generated").open("a") as log:
    print(os.getpid(), file=log)
size = 9000
if not (PLACE / "full").exists():
    while not (PLACE / "go").exists(): time.sleep(0.05)
    (PLACE / "full").touch()
    size = 32 << 20
Path(sys.argv[1], "0.bin").write_bytes(b"x" * size)
"""


def test_who_waits_takes_over_from_a_run_whose_disk_is_full(place: Place, runs: Runs) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to mount a file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place.store], check=True)
    try:
        runs._slow = place.program(FULL)
        first = runs.begin()
        assert eventually(runs.generations, LONG_S)
        other = runs.begin()
        assert eventually(lambda: "waiting for it" in other.said, LONG_S)
        (place.root / "go").touch()
        assert first.ended() == 1 and "No space left" in first.said, first.said
        assert other.ended() == 0, other.said
        assert len(runs.generations()) == 2
        assert CacheStore(place.store).manifest(NAME).total_bytes == 9000
    finally:
        subprocess.run(["umount", "-l", place.store], check=True)


STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with (PLACE / "generated").open("a") as log:
    print(os.getpid(), file=log)
Path(sys.argv[1], "0.bin").write_bytes(b"x" * 9000)
while not (PLACE / "go").exists(): time.sleep(0.05)
"""


def test_who_waits_takes_over_only_when_the_generator_of_a_killed_run_is_gone(place: Place, runs: Runs) -> None:
    runs._slow = place.program(STUBBORN)
    first = runs.begin("--grace", "5s")
    assert eventually(runs.generations, LONG_S)
    other = runs.begin()
    assert eventually(lambda: "waiting for it" in other.said, LONG_S)
    first.process.kill()
    first.ended()
    assert eventually(lambda: len(runs.generations()) == 2, LONG_S), other.said
    assert state(runs.generations()[0]) in ("", "Z")
    (place.root / "go").touch()
    assert other.ended() == 0, other.said
    assert CacheStore(place.store).verify(NAME).whole


def test_of_two_workers_one_generates_and_the_other_takes_over_when_its_run_is_killed(
    place: Place, server: Server, tmp_path: Path
) -> None:
    place.store.mkdir()
    runs: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for pool in ("cold-a", "cold-b", "cold-c"):
            (folder := tmp_path / pool).mkdir()
            (folder / "prefect.yaml").write_text(
                f"deployments:\n  - name: {pool}\n    entrypoint: prefect_cachewatch.flows.generate_cache\n"
                f"    work_pool: {{name: {pool}}}\n"
            )
            server.prefect("work-pool", "create", pool, "--type", "process", cwd=folder)
            server.prefect("deploy", "--prefect-file", "prefect.yaml", "--name", pool, cwd=folder)
            stack.enter_context(server.worker(pool, folder))
        slow = place.program(SLOW)
        given = {
            "job": {"name": NAME, "command": [*map(str, slow), "{cache_dir}"]},
            "publish": {"store": str(place.store)},
            "stall": PATIENT,
            "retry": {"attempts": 1},
        }

        def generations() -> list[str]:
            log = place.root / "generated"
            return log.read_text().split() if log.exists() else []

        runs["cold-a"] = server.start_run("generate-cache/cold-a", given)
        assert eventually(generations, PATIENCE_S)
        for pool in ("cold-b", "cold-c"):
            runs[pool] = server.start_run(f"generate-cache/{pool}", given)
        for pool in ("cold-b", "cold-c"):
            server.log_lines(runs[pool], "waiting for it")
        flow_process_of(map(int, generations())).kill()
        assert eventually(lambda: len(generations()) == 2, PATIENCE_S)
        (place.root / "go").touch()
        ended = [server.wait_final(runs[pool])["state_name"] for pool in ("cold-b", "cold-c")]
    assert sorted(ended) == ["Cached", "Completed"] and len(generations()) == 2
    assert CacheStore(place.store).verify(NAME).whole
