"""Runs `-c CODE` with a wall clock moved by the seconds that a file holds: `fake_clock.py FILE [options] -c CODE ...`.

Only the wall clock: monotonic time is the kernel's own. (libfaketime's own sleep fails when it leaves that alone.)
"""

import sys
import time

FILE, WORDS = sys.argv[1], sys.argv[2:]
real_time, real_time_ns = time.time, time.time_ns


def offset_s() -> float:
    with open(FILE) as file:
        return float(file.read())


time.time = lambda: real_time() + offset_s()
time.time_ns = lambda: real_time_ns() + int(offset_s() * 1e9)
at = WORDS.index("-c")
sys.argv = ["-c", *WORDS[at + 2 :]]
exec(WORDS[at + 1], {"__name__": "__main__"})
