"""Reads the descriptors of a process whose threads may have tables of their own (`unshare(CLONE_FILES)`).

/proc/PID/fd shows those of its main thread alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

from prefect_cachewatch.supervise.proc import living_thread

_KCMP, _KCMP_FILES = {"x86_64": 312, "aarch64": 272, "riscv64": 272}.get(os.uname().machine), 2


def home_of(pid: int) -> str:
    """Say where a process's files and memory are shown: with its main thread ended, only by a living one."""
    living = living_thread(pid)
    return f"/proc/{pid}" if living is None else f"/proc/{pid}/task/{living[0]}"


def read_links(home: str) -> dict[str, str]:
    """Read what each descriptor is, by its number.

    Example:
        >>> read_links("/proc/self")["0"] == os.readlink("/proc/self/fd/0")
        True
    """
    found = {}
    for number in os.listdir(f"{home}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[number] = os.readlink(f"{home}/fd/{number}")
    return found


def other_tables(pid: int) -> list[str]:
    """List where the descriptors of those threads are shown that have not the same as the thread of `home_of`.

    Raises:
        OSError: they may not be read.

    Example:
        >>> other_tables(os.getpid())
        []
    """
    tids, living = os.listdir(f"/proc/{pid}/task"), living_thread(pid)
    if living is None or len(tids) < 2:
        return []
    ours, found = "", list[str]()
    for tid in map(int, tids):
        if tid == living[0]:
            continue
        answer = _compare_tables(living[0], tid)
        if answer == 0:
            continue
        home = f"/proc/{pid}/task/{tid}"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            # Without an answer (no kcmp in this kernel, or forbidden in a container) what they hold is compared.
            ours = ours or str(sorted(read_links(home_of(pid)).items()))
            theirs = read_links(home)
            if theirs and (answer > 0 or str(sorted(theirs.items())) != ours):
                found.append(home)
    return found


def _compare_tables(tid: int, other: int) -> int:
    """0 if two threads share their descriptors, a positive number if not, negative without an answer."""
    if _KCMP is None:
        return -1
    none = ctypes.c_long(0)
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(_KCMP), tid, other, _KCMP_FILES, none, none))
