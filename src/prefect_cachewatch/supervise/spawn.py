"""Starts this package's helper processes: the standard library alone, deaf to signals, named in process listings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["package_parent", "spawn_helper"]

# A batch system signals every process of a job (Slurm's --signal=USR1@60), and a helper that died of it would take the
# run with it. What a crash of its own sends stays, and what the caller blocks or ignores is not meant for it: it waits
# for its children. `_signal` alone, since `signal` brings enum along.
_DEAF = (
    "import _signal as s;[s.signal(n,s.SIG_IGN)for n in s.valid_signals()-{4,5,6,7,8,9,11,17,18,19,31}];"
    "s.signal(17,s.SIG_DFL);s.pthread_sigmask(s.SIG_SETMASK,());"
)


def package_parent() -> str:
    """Say which directory the package is imported from, for a helper started with `python -I -S`."""
    return str(Path(__file__).resolve().parents[2])


def spawn_helper(
    module: str, fd: int, pass_fds: Sequence[int], title: str, *, own_session: bool = True
) -> subprocess.Popen[bytes]:
    """Start a standard-library-only helper process of this package, deaf to signals, in a session of its own.

    Args:
        module: dotted module whose `main(fd)` is run.
        fd: descriptor of its control socket.
        pass_fds: every descriptor it inherits, `fd` included; nothing else is.
        title: a word for process listings.
        own_session: if not, it gets a process group of its own in this process's session.

    Returns:
        The running process; its standard streams are /dev/null.
    """
    code = f"{_DEAF}import sys;sys.path.append({package_parent()!r});from {module} import main;main({fd})"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, title],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(pass_fds),
        start_new_session=own_session,
        process_group=None if own_session else 0,
        env={"LC_ALL": "C.UTF-8", "PYTHONNODEBUGRANGES": "1"},
    )
