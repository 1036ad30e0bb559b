"""The child that asks file systems and may hang doing so; a fork, or run as a script; standard library only.

Reads one JSON object on stdin: `dirs` [[path, quota source or "", uid]], `files` [[key, path]].
Writes one JSON line for each answer as it comes, so that a hang costs only what follows it.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
import time
from typing import Any

__all__ = ["BEGUN", "answer_questions", "probe_directory", "probe_file"]

_Q_GETQUOTA, _USRQUOTA = 0x800007, 0

#: Key of the answer that only confirms that the questions were read: a child that sends it is not merely late.
BEGUN = ""


def probe_directory(path: str, quota_source: str, uid: int) -> dict[str, Any]:
    """Ask statvfs, stat and, where quotas are on, quotactl(2) about a directory.

    Example:
        >>> probe_directory("/", "", 0)["total_bytes"] > 0
        True
    """
    try:
        space, facts = os.statvfs(path), os.stat(path)
    except OSError as error:
        return {"error": error.strerror or str(error), "errno": error.errno}
    answer: dict[str, Any] = {
        # f_bavail, not f_bfree: what is reserved for root is not there for the generator.
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_inodes": space.f_favail if space.f_files else None,
        "total_inodes": space.f_files or None,
        "block_bytes": space.f_frsize,
        "owner_uid": facts.st_uid,
        "owner_gid": facts.st_gid,
        "mode": stat.S_IMODE(facts.st_mode),
        "changed_age_s": max(0.0, time.time() - facts.st_ctime),
    }
    if quota_source:
        answer.update(_quota(quota_source, uid))
    return answer


def probe_file(path: str) -> dict[str, Any]:
    """Return the kind of a file, its size, and when it was last written.

    Example:
        >>> probe_file("/dev/null")["kind"]
        'device'
    """
    try:
        facts = os.stat(path)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    kind = "file"
    if stat.S_ISDIR(facts.st_mode):
        kind = "directory"
    elif stat.S_ISFIFO(facts.st_mode):
        kind = "pipe"
    elif stat.S_ISCHR(facts.st_mode):
        kind = "device"
    return {"kind": kind, "size_bytes": facts.st_size, "changed_at": facts.st_ctime}


def _quota(source: str, uid: int) -> dict[str, Any]:
    import ctypes  # noqa: PLC0415 - 10 ms, and only where quotas are on

    block = ctypes.create_string_buffer(72)  # struct if_dqblk of linux/quota.h
    command = (_Q_GETQUOTA << 8 | _USRQUOTA) & 0xFFFFFFFF
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.quotactl(ctypes.c_int(command - (1 << 32)), os.fsencode(source), uid, block):
        return {}
    hard, soft, used = struct.unpack_from("=QQQ", block.raw)
    # Limits count in blocks of 1 KiB, use in bytes; a limit of 0 is none.
    return {"quota_limit_bytes": (hard or soft) * 1024, "quota_used_bytes": used} if hard or soft else {}


def answer_questions(data: bytes, target: int) -> None:
    """Answer questions, one line each.

    Args:
        data: the JSON object.
        target: descriptor that the lines go to.
    """
    if not data:
        return  # it was asked nothing
    asked = json.loads(data)

    def say(key: str, answer: dict[str, Any]) -> None:
        os.write(target, json.dumps([key, answer]).encode() + b"\n")

    say(BEGUN, {})
    for path, quota_source, uid in asked["dirs"]:
        say(path, probe_directory(path, quota_source, uid))
    for key, path in asked["files"]:
        say(key, probe_file(path))


if __name__ == "__main__":
    answer_questions(sys.stdin.buffer.readline(), 1)
