"""One of several processes that work on one cache; used by test_store_locks.

usage: python -m tests.contract.store_worker ROOT ACT [TURNS]
`hold` and `hold with children` begin a build, say so, and wait for the end of stdin. Any other act is done TURNS times beside
the others; one line for each error that should not be, and at the end how often it was done.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from prefect_cachewatch import BuildDamaged, CacheStore, StoreBusy, StoreError
from tests.contract.builds import NAME, Recipe, offer

ROOT, ACT = Path(sys.argv[1]), sys.argv[2]
STORE = CacheStore(ROOT)
MINE = f"{ACT} {os.getpid()}"
# What an operator is told of a build that another one took away meanwhile, or where nothing is left to go back to.
TOLD = (
    "cannot be rolled back", "there is no build", "has no active build", "is gone", "cannot read the build",
    "there is no /", "No such file", "has no published build", "was made current meanwhile",
)  # fmt: skip


def hold(children: bool) -> None:
    with STORE.begin(NAME, Recipe(cache_key={"v": "1"})) as build:  # type: ignore[arg-type]
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
