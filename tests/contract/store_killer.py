"""Lets a publisher die, or its storage refuse, at one call into the kernel after the other; used by test_store_kills.

usage: python -m tests.contract.store_killer ROOT SCENARIO SIGKILL|ENOSPC|EIO|EACCES STRIDE
At every STRIDE-th call that changes something: each child dies right before it, or gets the error. Between two calls
nothing changes, so that is every state that a kill can leave. Prints one JSON object: the calls that were hit, how many
children went through all of their steps, and what was broken afterwards.
"""

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from prefect_cachewatch import CacheStore, StoreError
from tests.contract.builds import NAME, active, offer, states
from tests.contract.strikes import GENERATING, strike

ROOT, SCENARIO, HOW = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
STRIDE = int(sys.argv[4])
STORE = CacheStore(ROOT)
# A reader without a pin has this time from the switch on; where readers pin, none is needed.
GRACE_S = 60 if SCENARIO in ("publish", "resume") else 0
# Of others, some named as builds are.
FOREIGN = ["c/notes", "c/builds/notes", "c/builds/20260101T000000000Z-00000000", "c/builds/.cachewatch-trash-mine"]
FOREIGN += ["c/quarantine/kept-by-hand", "other"]


def generator(fill: Callable[[Path, int], None]) -> Callable[[int], Callable[[Path], None]]:
    def marked(mark: int) -> Callable[[Path], None]:
        def run(build: Path) -> None:
            GENERATING.append(None)
            try:
                fill(build, mark)
            finally:
                GENERATING.pop()

        return run

    return marked


@generator
def files(build: Path, mark: int) -> None:
    (build / "layers").mkdir(exist_ok=True)
    for number in range(4):
        (build / f"layers/{number}.bin").write_bytes(f"{mark}:{number}".encode() * 500)


@generator
def seeded(build: Path, mark: int) -> None:
    """Start from a copy of the last build."""
    shutil.copytree(os.path.realpath(ROOT / NAME / "current"), build, dirs_exist_ok=True)
    (build / "mark.bin").write_bytes(b"%d" % mark)


def refuse(mark: int) -> None:
    offer(ROOT, {"half.tmp": b"half", "a": b"%d" % mark}, key="refused")
    STORE.prune_quarantine(NAME, keep=1)


def switch(_mark: int) -> None:
    newest = max(build_id for build_id, state in states(ROOT).items() if state in ("active", "published"))
    STORE.rollback(NAME)
    STORE.activate(NAME, newest)  # by name: what was rolled back from is passed over without one
    STORE.gc(NAME, keep=2, grace_s=0)


def unhealthy(mark: int) -> None:
    build = offer(ROOT, seeded(mark))
    STORE.rollback(NAME, expected=build.build_id, unhealthy="the server did not answer")
    STORE.gc(NAME, keep=2, grace_s=0)


def die_half_way(mark: int) -> None:
    """Leave a build for the next run of the key to resume."""

    def fill(build: Path) -> None:
        files(mark)(build)
        (build / "layers/3.bin").rename(build / "layers/3.bin.tmp")
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        offer(ROOT, fill)


SCENARIOS: dict[str, Callable[[int], object]] = {
    "publish": lambda mark: offer(ROOT, files(mark)),
    "resume": lambda mark: offer(ROOT, files(mark)),
    "refuse": refuse,
    "switch": switch,
    "unhealthy": unhealthy,
    "clean up": lambda _: STORE.gc(NAME, keep=1, keep_quarantined=0, grace_s=0),
}


def hit_at(step: int, note: int) -> None:
    """Let the step-th call that changes something be the last one, or fail."""
    write, kill, pid = os.write, os.kill, os.getpid()

    def hit(name: str) -> None:
        write(note, name.encode())
        if HOW == "SIGKILL":
            kill(pid, signal.SIGKILL)
        number = getattr(errno, HOW)
        raise OSError(number, os.strerror(number))

    strike(step, hit)


def child(step: int, mark: int) -> tuple[str, str]:
    """Run the scenario in a child that is hit at a step; returns the call that was hit, and an error that is no sentence."""
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(read_end)
        told = os.dup(write_end)
        try:
            hit_at(step, write_end)
            SCENARIOS[SCENARIO](mark)
        except StoreError:
            pass  # the storage's error, in a sentence
        except BaseException as error:
            with os.fdopen(told, "w") as pipe:
                pipe.write(f"!{error!r}")
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        hit, _, wrong = pipe.read().decode().partition("!")
    os.waitpid(pid, 0)
    return hit, wrong


def broken(before: dict[str, str]) -> list[str]:
    """What neither a kill nor an error may leave: looked at before anybody repairs anything."""
    found = [f"{path} of others is gone" for path in FOREIGN if not (ROOT / path / "theirs").exists()]
    with STORE.open_current(NAME) as pinned:
        if pinned.build_id != active(ROOT):
            found.append("the pinned build is not the current one")
    try:
        STORE.verify(NAME, depth="full")
    except StoreError as error:
        found.append(f"the active build: {error}")
    now = {build: state for build, state in states(ROOT).items() if f"c/builds/{build}" not in FOREIGN}
    found += [f"{build} is {state}" for build, state in now.items() if state in ("damaged", "staging")]
    if [*now.values()].count("active") != 1:
        found.append(f"active builds: {now}")
    if SCENARIO in ("publish", "resume", "refuse"):  # which remove nothing that is whole
        found += [
            f"{build} is lost"
            for build, state in before.items()
            if state in ("active", "published") and build not in now
        ]
    return found


def recovers(step: int) -> list[str]:
    """What has to work afterwards without anybody's help."""
    if SCENARIO == "refuse":
        SCENARIOS[SCENARIO](step)  # to its end: each child goes the same way, and each of its calls has its turn
    done = offer(ROOT, (seeded if SCENARIO == "unhealthy" else files)(step))  # the same generator
    left = STORE.gc(NAME, keep=3, keep_quarantined=1, grace_s=GRACE_S).problems
    return [*left, *([] if active(ROOT) == done.build_id and not done.refused else ["the next run did not publish"])]


for path in FOREIGN:
    (ROOT / path).mkdir(parents=True, exist_ok=True)
    (ROOT / path / "theirs").touch()
for number in range(3):
    offer(ROOT, files(number))
refuse(0)
hits: list[str] = []
problems: list[str] = []
finished = 0
for step in range(1, 2000, STRIDE):
    if SCENARIO == "resume":
        die_half_way(step)
    if SCENARIO == "clean up":  # so that each child has as much to remove
        offer(ROOT, files(step)), offer(ROOT, files(step))
    before = states(ROOT)
    hit, wrong = child(step, 1000 + step)
    problems += [
        f"step {step} ({hit}): {one}" for one in [*([wrong] if wrong else []), *broken(before), *recovers(step)]
    ]
    if not hit:
        finished += 1
        break
    hits.append(hit)
print(json.dumps({"hits": hits, "finished": finished, "problems": problems[:20]}))
