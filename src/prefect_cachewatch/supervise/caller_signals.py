"""What this process's caller ignores and blocks, which a command that it starts is to get as well; standard library only."""

from __future__ import annotations

import os
import signal

from prefect_cachewatch.supervise.proc import read_status
from prefect_cachewatch.supervise.turns import read_each

# Python ignores these before our code runs, so our own disposition says nothing about the caller's.
_TAKEN_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# Other programs that ignore them (Python, Rust, Node) give their children the default; a shell passes on a trap ''.
_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "yash", "zsh"})


def inherited_signals() -> dict[str, list[int]]:
    """Return the signals that were ignored when this process was started, and those that it blocks.

    SIGCHLD always has its default, as with timeout(1): a program whose children vanish loses their exit codes.

    Returns:
        `ignored` and `blocked`: signal numbers.

    Example:
        >>> sorted(inherited_signals())
        ['blocked', 'ignored']
    """
    ignored = [
        number
        for number in sorted(signal.valid_signals() - {signal.SIGCHLD, *_TAKEN_BY_PYTHON})
        if signal.getsignal(number) == signal.SIG_IGN
    ]
    mask = _ignored_by_shell(os.getppid())
    ignored += [number for number in _TAKEN_BY_PYTHON if mask >> (number - 1) & 1]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ()) - {signal.SIGCHLD}
    return {"ignored": [int(number) for number in ignored], "blocked": sorted(int(number) for number in blocked)}


def _program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def _ignored_by_shell(pid: int) -> int:
    """Return the bit mask of the signals that the parent ignores; 0 unless it is a shell."""
    if read_each([pid], _program).get(pid) not in _SHELLS:
        return 0
    return int(read_status(f"/proc/{pid}/status").get(b"SigIgn", b"0"), 16)
