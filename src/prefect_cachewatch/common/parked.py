"""Files that stay open, and locked, without a descriptor: in flight in a socket, whose own descriptor is held instead.

Whoever closes a file on a FUSE file system waits for its server's answer, and where that hangs nothing ends the wait. Each
child that is started closes what it inherits: its parent waits with it, and within an exec it holds up every reader
of its /proc/PID/stat. A socket is closed without a question, and the file that waits in it for a receiver stays open,
with its locks, until the last copy of the socket has been closed. Standard library only.
"""

from __future__ import annotations

import _socket
import os
import sys

__all__ = ["park", "taken"]


def park(fd: int) -> int:
    """Put an open file, or what holds a lock, into a socket, and close the descriptor.

    Args:
        fd: of the file; closed here, while its file system still answers.

    Returns:
        The socket's descriptor, not inheritable: to be inherited, closed or passed on in the file's place. Where the
        kernel takes no more files in flight of this user (as many as RLIMIT_NOFILE), the file's own.

    Raises:
        OSError: there is no socket to be had; the file is still open.

    Example:
        >>> with open("/proc/self/stat") as file:
        ...     parked = park(os.dup(file.fileno()))
        ...     again = taken(parked)
        ...     os.path.sameopenfile(again, file.fileno())
        True
        >>> os.close(parked), os.close(again)
        (None, None)
    """
    giver, keeper = _socket.socketpair()
    try:
        rights = fd.to_bytes(4, sys.byteorder)
        try:
            giver.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        except OSError:
            return fd
        os.close(fd)
        return keeper.detach()
    finally:
        giver.close()
        keeper.close()


def taken(parked: int) -> int:
    """Get a descriptor of a parked file, which stays parked.

    Args:
        parked: of `park`.

    Returns:
        The descriptor, not inheritable; it is the caller's to close.
    """
    try:
        keeper = _socket.socket(fileno=parked)
    except OSError:  # the file's own
        return os.dup(parked)
    try:
        rights = keeper.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_PEEK | _socket.MSG_CMSG_CLOEXEC)[1]
        return memoryview(rights[0][2]).cast("i")[0]
    finally:
        keeper.detach()
