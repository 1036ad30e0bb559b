"""The child that asks file systems and may hang doing so; a fork, or a new interpreter; standard library only.

Reads one JSON object on stdin: `dirs` [path], `files` [[key, path]].
Writes one JSON line for each answer as it comes, so that a hang costs only what follows it.
"""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Any

from prefect_cachewatch.measure.space import read_space

#: Key of the answer that only confirms that the questions were read: a child that sends it is not merely late.
BEGUN = ""


def probe_directory(path: str) -> dict[str, Any]:
    """Ask statvfs and stat about a directory.

    Example:
        >>> probe_directory("/")["total_bytes"] > 0
        True
    """
    try:
        space, facts = read_space(path), os.stat(path)
    except OSError as error:
        return {"error": error.strerror or str(error), "errno": error.errno}
    return {
        **space,
        "owner_uid": facts.st_uid,
        "owner_gid": facts.st_gid,
        "mode": stat.S_IMODE(facts.st_mode),
        "changed_age_s": max(0.0, time.time() - facts.st_ctime),
    }


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
    for path in asked["dirs"]:
        say(path, probe_directory(path))
    for key, path in asked["files"]:
        say(key, probe_file(path))
