"""Generators of awkward shapes, run as a script: `python trees.py TAG LIFE_S SHAPE [DIR WRITES INTERVAL_S]`.

Standard library only, readable by any user. Every process carries TAG as its name (/proc/PID/comm), which a wiped
environment does not take away, and ends by itself after LIFE_S.
"""

import os
import random
import signal
import sys
import time

TAG, LIFE_S, SHAPE = sys.argv[1], float(sys.argv[2]), sys.argv[3]
DIRECTORY = sys.argv[4] if len(sys.argv) > 4 else ""
WRITES = int(sys.argv[5]) if len(sys.argv) > 5 else 0
INTERVAL_S = float(sys.argv[6]) if len(sys.argv) > 6 else 0.1
END_S = time.monotonic() + LIFE_S
COUNT = 200


def name_me() -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(TAG)


def idle() -> None:
    while time.monotonic() < END_S:
        time.sleep(0.2)
    os._exit(0)


def write() -> None:
    """Write one file after the other; all of them, then silence; for ever if WRITES is negative."""
    done = 0
    while WRITES < 0 or done < WRITES:
        if time.monotonic() > END_S:
            os._exit(0)
        with open(os.path.join(DIRECTORY, f"layer.{os.getpid()}.{done}.bin"), "wb") as file:
            file.write(os.urandom(16384))
        done += 1
        time.sleep(INTERVAL_S)


def ignore_term() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def child(run) -> None:
    if os.fork() == 0:
        try:
            run()
        finally:
            os._exit(0)


def daemon() -> None:
    """Double fork, new session, and an exec with an empty environment and no inherited descriptor."""
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 256)
    os.open("/dev/null", os.O_RDWR)
    left = max(1.0, END_S - time.monotonic())
    os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, TAG, f"{left:.1f}", "idle"], {})


def session() -> None:
    os.setsid()
    idle()


def respawn(stubborn: bool) -> None:
    """One line of a bomb: it goes on in a new process every half second, and at each SIGTERM."""
    if stubborn:
        ignore_term()

    def carry_on(*_: object) -> None:
        if os.fork():
            os._exit(0)

    if not stubborn:
        signal.signal(signal.SIGTERM, carry_on)
    while time.monotonic() < END_S:
        time.sleep(random.uniform(0.3, 0.7))
        carry_on()


def main() -> None:
    name_me()
    if SHAPE == "term_ignorer":
        ignore_term()
        child(idle)
    elif SHAPE == "daemon":
        child(daemon)
    elif SHAPE == "sessions":
        for _ in range(COUNT):
            child(session)
    elif SHAPE == "bomb":
        for number in range(COUNT):
            child(lambda number=number: respawn(number % 2 == 0))
    elif SHAPE == "hog":
        write()
        held = []
        while time.monotonic() < END_S:
            held.append(b"x" * (8 << 20))
            time.sleep(0.01)
    elif SHAPE not in ("plain", "idle"):
        raise SystemExit(f"unknown shape {SHAPE}")
    write()
    idle()


main()
