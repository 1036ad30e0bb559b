"""Keeps a file open, and locked, by a socket: the file is in flight in it, and only the socket has a descriptor.

Closing a file on a FUSE file system waits for its server's answer, and if the server hangs nothing ends the wait. Each
child that is started closes the descriptors it inherits, and its parent waits with it. A close during exec also blocks
every reader of /proc/PID/stat. Closing a socket asks no file system. The file that is in flight in it stays open, with
its locks, until the last copy of the socket is closed. Standard library only.
"""

from __future__ import annotations

import _socket
import os
import sys


def park(fd: int) -> int:
    """Put an open file, or a descriptor that holds a lock, into a socket, and close the descriptor.

    Args:
        fd: of the file; closed here, while its file system still answers.

    Returns:
        The socket's descriptor, not inheritable. Inherit, close or pass it on in the file's place. If the kernel allows
        this user no more files in flight (the limit is RLIMIT_NOFILE), the file's own descriptor.

    Raises:
        OSError: no socket can be made; the file is still open.

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
    """Return a descriptor of a parked file; the file stays parked.

    Args:
        parked: the result of `park`.

    Returns:
        The descriptor, not inheritable; the caller closes it.
    """
    try:
        keeper = _socket.socket(fileno=parked)
    except OSError:  # parked is the file's own descriptor
        return os.dup(parked)
    try:
        rights = keeper.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_PEEK | _socket.MSG_CMSG_CLOEXEC)[1]
        return memoryview(rights[0][2]).cast("i")[0]
    finally:
        keeper.detach()
