"""A generator that writes files with pauses and notes what it really did, apart from everything that watches it.

usage: generator.py CACHE_DIR TRUTH_FILE MODE SECONDS SEED

MODE is what it does: `finish`, `fail` (exit 3 half-way), or a way to fall silent half-way: `sleep`, `stopped` (SIGSTOP
to itself), `daemon` (a child in a session of its own, deaf to SIGTERM, keeps it waiting). Standard library only.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

FILE_BYTES = 200_000


def main() -> int:
    """Generate, or fail on the way."""
    cache, truth, mode, seconds, seed = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
    note = open(truth, "a", buffering=1)

    def tell(event: str, **more: object) -> None:
        note.write(json.dumps({"event": event, "pid": os.getpid(), "at_s": time.time(), **more}) + "\n")

    tell("begin", mode=mode)
    dice = random.Random(seed)
    began_s = time.monotonic()
    end_s = began_s + seconds * (1 if mode == "finish" else 0.5)
    number = 0
    while time.monotonic() < end_s:
        with open(os.path.join(cache, f"layer{number:04d}.tensorbin"), "wb") as file:
            file.write(dice.randbytes(FILE_BYTES))
        tell("write", bytes=FILE_BYTES)
        number += 1
        time.sleep(max(0.0, min(dice.uniform(0.4, 1.6), end_s - time.monotonic())))
    if mode == "finish":
        tell("end", code=0)
        return 0
    if mode == "fail":
        tell("end", code=3)
        return 3
    tell("silent")
    if mode == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif mode == "daemon":
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        os.waitpid(child, 0)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    sys.exit(main())
