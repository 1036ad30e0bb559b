"""One of several processes that work on one cache; used by test_store_locks.

usage: python -m tests.contract.store_worker ROOT ACT [TURNS]
       python -m tests.contract.store_worker ROOT cold [STEP]
`cold` finds the cache whole, or generates it, or waits for who does; its STEP-th call that changes something is its last one.
`hold` and `hold with children` begin a build, say so, and wait for the end of stdin. Any other act is done TURNS times beside
the others; one line for each error that should not be, and at the end how often it was done.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from prefect_cachewatch import BuildDamaged, CacheStore, PublishPolicy, StoreBusy, StoreError
from tests.contract.builds import NAME, Recipe, offer
from tests.contract.strikes import strike

ROOT, ACT = Path(sys.argv[1]), sys.argv[2]
STORE = CacheStore(ROOT)
MINE = f"{ACT} {os.getpid()}"
# What an operator is told of a build that another one took away meanwhile, or where nothing is left to go back to.
TOLD = (
    "cannot be rolled back", "there is no build", "has no active build", "is gone", "cannot read the build",
    "there is no /", "No such file", "has no published build", "was made current meanwhile",
)  # fmt: skip


def hold(children: bool) -> None:
    key = sys.argv[3] if len(sys.argv) > 3 else "1"
    with STORE.begin(NAME, Recipe(cache_key={"v": key})) as build:  # type: ignore[arg-type]
        Path(build.path, "a.bin").write_bytes(b"abc")
        pids = []
        if children:
            pids.append(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid)
            pids.append(os.fork())
            if not pids[-1]:
                os.close(1)
                os.execvp("sleep", ["sleep", "600"])
        print(build.build_id, *pids, flush=True)
        sys.stdin.read()


def cold() -> str:
    """As a run does: what is whole is taken, one generates, the others wait."""
    recipe = Recipe(cache_key={"v": "cold"})
    while True:
        if STORE.find_whole(NAME, recipe.key):
            STORE.activate(NAME)
            return "cached"
        try:
            with STORE.begin(NAME, recipe) as build:  # type: ignore[arg-type]
                if STORE.find_whole(NAME, recipe.key):
                    build.discard()
                    continue
                rules = PublishPolicy(store=ROOT)
                if build.adopted:
                    build.prepare_resume(rules, window_s=0)
                build.note_growth()
                with open(ROOT / "generated", "a") as log:
                    print("begins", os.getpid(), file=log)
                for number in range(3):
                    Path(build.path, f"{number}.bin").write_bytes(b"%d" % number * 5000)
                build.publish(rules, findings=build.check(rules), threads=1)
                STORE.activate(NAME, build.build_id)
                with open(ROOT / "generated", "a") as log:
                    print("ended", os.getpid(), file=log)
            return "generated"
        except StoreBusy as busy:
            assert busy.data.get("key") in (None, recipe.key)
            time.sleep(0.01)


ACTS = {
    "publish": lambda: offer(ROOT, {f"{n}.bin": os.urandom(5000) for n in range(5)}, key=MINE),
    "refuse": lambda: (offer(ROOT, {"x.tmp": b"half"}, key=MINE), STORE.prune_quarantine(NAME, keep=1)),
    "roll back": lambda: STORE.rollback(NAME),
    "unhealthy": lambda: STORE.rollback(NAME, unhealthy="no answer"),
    "clean up": lambda: STORE.gc(NAME, keep=2, keep_quarantined=0, grace_s=0),
    "verify": lambda: STORE.verify(NAME),
    "list": lambda: STORE.list_builds(NAME),
    "activate": lambda: STORE.activate(NAME),
}

if ACT.startswith("hold"):
    hold(children="children" in ACT)
    sys.exit()
print("ready", flush=True)
if ACT == "cold":
    sys.stdin.readline()
    if len(sys.argv) > 3:
        strike(int(sys.argv[3]), lambda _: os.kill(os.getpid(), signal.SIGKILL))
    print(cold(), flush=True)
    sys.exit()
done = 0
while done < int(sys.argv[3]):
    try:
        ACTS[ACT]()
        done += 1
    except BuildDamaged as error:
        # What clean-up takes away under a reader without a pin is gone, and not damaged.
        if os.path.exists(error.data["path"]):
            print("damaged", error, flush=True)
        done += 1
    except StoreBusy:
        time.sleep(0.01)
    except StoreError as error:
        if not any(text in str(error) for text in TOLD):
            print("error", error, flush=True)
        done += 1
print("done", done, flush=True)
