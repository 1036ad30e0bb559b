"""Publishes in children that are killed with SIGKILL before or after every system call; used by test_store_kill.

usage: store_killer.py ROOT NAME SCENARIO STRIDE
With stride 1, at every call that changes something; else at every STRIDE-th of all calls.
Prints one JSON object: how many children were killed at which kind of call, and what was broken afterwards.
"""

import collections
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe

ROOT, NAME, SCENARIO = sys.argv[1:4]
STRIDE = int(sys.argv[4])
CHANGES = {"fsync", "ftruncate", "mkdir", "pwrite", "rename", "rmdir", "symlink", "unlink", "write"}
STORE = CacheStore(ROOT)
POLICY = PublishPolicy(store=ROOT)
RECIPE = BuildRecipe.of(["generator", "{cache_dir}"], POLICY)


def publish(mark: int, files: int = 4) -> None:
    with STORE.begin(NAME, RECIPE) as build:
        gone = build.prepare_resume(POLICY, window_s=0) if build.adopted else []
        os.makedirs(f"{build.path}/layers", exist_ok=True)
        for suspect in gone:  # a generator writes again what is missing
            Path(build.path, suspect.path.removesuffix(".tmp")).write_bytes(b"again")
        for number in range(files):
            Path(f"{build.path}/layers/{number}.bin").write_bytes(f"{mark}:{number}".encode() * 500)
        findings = build.check(POLICY)
        build.publish(POLICY, findings=findings, threads=1)
    STORE.activate(NAME)


def scenario(mark: int) -> None:
    if SCENARIO == "publish":
        publish(mark)
    elif SCENARIO == "refuse":
        with STORE.begin(NAME, RECIPE) as build:
            if build.adopted:
                build.prepare_resume(POLICY, window_s=0)
            build.note_growth()
            Path(f"{build.path}/half.tmp").write_bytes(b"half")
            build.quarantine(build.check(POLICY), "refused")
        STORE.prune_quarantine(NAME, keep=1)
    elif SCENARIO == "unhealthy":
        # A generator that starts from a copy of the last build, what of it is ours included; then it is not healthy.
        with STORE.begin(NAME, RECIPE) as build:
            if build.adopted:
                build.prepare_resume(POLICY, window_s=0)
            build.note_growth()
            shutil.copytree(os.path.realpath(STORE.current_path(NAME)), build.path, dirs_exist_ok=True)
            Path(f"{build.path}/mark.bin").write_bytes(f"{mark}".encode())
            build.publish(POLICY, findings=build.check(POLICY), threads=1)
        STORE.activate(NAME, build.build_id)
        STORE.rollback(NAME, expected=build.build_id, unhealthy="the server did not answer")
        STORE.gc(NAME, keep=2, grace_s=0)
    else:
        newest = max(build.build_id for build in STORE.list_builds(NAME))
        STORE.rollback(NAME)
        # By name: what was rolled back from is passed over without one.
        STORE.activate(NAME, newest)
        STORE.gc(NAME, keep=2, grace_s=0)


def kill_at(step: int, note: int) -> None:
    """Die right before or right after the call into the kernel that is the step."""
    seen = 0

    def watch(_frame, event, argument):
        nonlocal seen
        if event not in ("c_call", "c_return") or getattr(argument, "__module__", None) not in (
            "posix",
            "fcntl",
        ):
            return
        if STRIDE == 1 and argument.__name__ not in CHANGES:
            return
        seen += 1
        if seen == step:
            os.write(note, argument.__name__.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


def broken() -> list[str]:
    """What a kill must never leave: looked at before anybody repairs anything."""
    found = []
    with STORE.open_current(NAME) as pinned:
        active = pinned.build_id
    try:
        STORE.verify(NAME, active, depth="full")
    except Exception as error:
        found.append(f"the active build: {error}")
    states = {build.build_id: build.state for build in STORE.list_builds(NAME)}
    found += [f"{build} is {state}" for build, state in states.items() if state in ("damaged", "staging")]
    if list(states.values()).count("active") != 1:
        found.append(f"active builds: {states}")
    return found


for number in range(3):
    publish(number)
killed: collections.Counter[str] = collections.Counter()
problems: list[str] = []
survivors = 0
for round_ in range(2000):
    step = 1 + round_ * STRIDE
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            kill_at(step, write_end)
            scenario(1000 + step)
        except BaseException as error:
            sys.setprofile(None)
            os.write(write_end, f"!{error!r}".encode()[:4000])
        finally:
            sys.setprofile(None)
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        last = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if last.startswith("!"):
        problems.append(f"step {step}: {last}")
    problems += [f"step {step} ({last}): {problem}" for problem in broken()]
    if not os.WIFSIGNALED(status):
        survivors += 1
        break
    killed[last] += 1
    if SCENARIO not in ("publish", "refuse"):
        # A build again, so that there is something to roll back to and to remove; no lock may be left behind.
        publish(step)
        STORE.gc(NAME, keep=3, grace_s=0)
    elif SCENARIO == "refuse":
        # To its end, which resumes what the child has left: so each child goes the same way, and each of its calls has its turn.
        scenario(step)
    elif round_ % 5 == 4:
        STORE.gc(NAME, keep=3, grace_s=1.5)
print(json.dumps({"killed": dict(killed), "problems": problems[:20], "finished": survivors, "steps": step}))
