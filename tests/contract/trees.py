"""Generators of awkward shapes, run as a script: `python trees.py TAG LIFE_S SHAPE [DIR WRITES INTERVAL_S]`.

Standard library only, readable by any user. Every process carries TAG as its name (/proc/PID/comm), which a wiped
environment does not take away, with a + behind it once it stays as it is; it ends by itself after LIFE_S. The first
process writes.
"""

import contextlib
import ctypes
import os
import random
import signal
import sys
import threading
import time

TAG, LIFE_S, SHAPE = sys.argv[1], float(sys.argv[2]), sys.argv[3]
DIRECTORY = sys.argv[4] if len(sys.argv) > 4 else ""
WRITES = int(sys.argv[5]) if len(sys.argv) > 5 else 0
INTERVAL_S = float(sys.argv[6]) if len(sys.argv) > 6 else 0.1
END_S = time.monotonic() + LIFE_S


def name_me(settled: bool = False) -> None:
    with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w") as file:  # root's, once the user has changed
        file.write(TAG + "+" * settled)


def idle() -> None:
    name_me(True)
    while (left_s := END_S - time.monotonic()) > 0:
        time.sleep(left_s)
    os._exit(0)


def write() -> None:
    """Write one file after the other; all of them, then silence; for ever if WRITES is negative."""
    name_me(True)
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


def child(run=idle) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(0)
    return pid


def execute(env) -> None:
    """Go on as a new program without a descriptor, and with this environment."""
    os.closerange(0, 256)
    os.open("/dev/null", os.O_RDWR)
    left = max(1.0, END_S - time.monotonic())
    os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, TAG, f"{left:.1f}", "idle"], env)


def daemon() -> None:
    """Double fork, new session, and an exec with an empty environment and no inherited descriptor."""
    os.setsid()
    if os.fork():
        os._exit(0)
    execute({})


def session() -> None:
    os.setsid()
    idle()


def orphan() -> None:
    """The orphan of an orphan, and so on: each starts the next one and ends."""
    for _ in range(20):
        if os.fork():
            os._exit(0)
        os.setsid()
    idle()


def chain(left: int = 98) -> None:
    """Each process is the child of the one before it, and leads a session of its own."""
    ignore_term()
    os.setsid()
    if left:
        child(lambda: chain(left - 1))
    idle()


def respawn(stubborn: bool) -> None:
    """One line of a bomb: it goes on in a new process every half second, and at each SIGTERM."""
    name_me(True)
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


def groups() -> None:
    os.setpgid(0, 0)
    child()
    idle()


def other_user() -> None:
    name_me(True)
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ignore_term()
    idle()


def start_at_term(*_: object) -> None:
    child(lambda: (signal.signal(signal.SIGTERM, signal.SIG_DFL), os.setsid(), idle()))


def trace() -> None:
    """Hold the parent's other child, as a debugger does."""
    libc = ctypes.CDLL(None)
    held = child()
    time.sleep(0.1)
    for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
        libc.ptrace(request, held, None, None)
    ignore_term()
    idle()


def main() -> None:
    name_me()
    if SHAPE == "term_ignorer":
        ignore_term()
        child()
    elif SHAPE == "daemon":
        child(daemon)
    elif SHAPE == "sessions":
        for _ in range(200):
            child(session)
    elif SHAPE == "bomb":
        for number in range(40):
            child(lambda number=number: respawn(number % 2 == 0))
    elif SHAPE == "chain":
        child(chain)
    elif SHAPE == "stopped":
        child(lambda: (ignore_term(), name_me(True), os.kill(os.getpid(), signal.SIGSTOP), idle()))
    elif SHAPE == "groups":
        child(groups)
        child(groups)
    elif SHAPE == "orphan":
        child(orphan)
    elif SHAPE == "thread":
        threading.Thread(target=lambda: (name_me(), child(session), idle()), daemon=True).start()
    elif SHAPE == "nohup":
        child(lambda: os.execvp("nohup", ["nohup", sys.executable, "-I", "-S", __file__, TAG, f"{LIFE_S}", "idle"]))
    elif SHAPE == "user":
        child(other_user)
    elif SHAPE == "traced":
        child(trace)
    elif SHAPE == "term_starter":
        signal.signal(signal.SIGTERM, start_at_term)
    elif SHAPE == "leaderless":
        ignore_term()
        name_me(True)
        threading.Thread(target=lambda: (write(), idle())).start()
        ctypes.CDLL(None).pthread_exit(None)
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


if __name__ == "__main__":
    main()
