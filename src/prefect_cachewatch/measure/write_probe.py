"""A small write to a directory's storage, to tell a slow one from a dead one; it may hang, and standard library only."""

from __future__ import annotations

import os
import signal
import time

PROBE_BYTES = 1 << 20
_FLAGS = os.O_WRONLY | os.O_CLOEXEC


def probe_write(directory: str) -> float:
    """Write 1 MiB to a file without a name in a directory, and sync it.

    Args:
        directory: absolute; nothing of the probe is seen in it.

    Returns:
        How many seconds it took.

    Raises:
        OSError: it cannot be written.
    """
    began_s = time.monotonic()
    fd = _open_nameless(directory)
    try:
        os.write(fd, bytes(PROBE_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    return time.monotonic() - began_s


def _open_nameless(directory: str) -> int:
    try:
        return os.open(directory, _FLAGS | os.O_TMPFILE, 0o600)
    except OSError:  # NFS and FUSE have no such files
        path = os.path.join(directory, f".cachewatch-probe-{os.urandom(8).hex()}")
    # The helper process is ended by SIGALRM if this hangs: not between the two calls, which would leave the name.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.unlink(path)
        except OSError:
            os.close(fd)
            raise
        return fd
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
