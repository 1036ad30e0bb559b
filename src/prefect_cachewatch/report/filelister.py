"""The child that lists whole cache directories into a compressed file; run by `main`, standard library only.

argv: output file, seconds, largest compressed size in bytes, directories; standard input: a JSON list of known secrets.
Each file is one JSON line, without secrets; the last line says how many there were and what was cut. No file is opened.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii

from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.measure.borders import find_borders

_BATCH = 1000
_MAX_DEPTH = 128


def list_files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Walk a directory by descriptors: no symlink is followed, no other mount entered.

    Args:
        root: the directory.

    Yields:
        (path, stat) of everything but directories.

    Example:
        >>> list(list_files("/nowhere"))
        []
    """
    try:
        top = os.open(root, OPEN_DIRECTORY)
    except OSError:
        return
    device, borders = os.fstat(top).st_dev, find_borders([root])
    stack = [(top, root.rstrip("/") + "/", os.scandir(top))]
    try:
        while stack:
            here, prefix, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                entries.close()
                os.close(here)
                stack.pop()
                continue
            if entry.name in borders.get(prefix, ()):
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(facts.st_mode):
                    yield prefix + entry.name, facts
                elif facts.st_dev == device and len(stack) < _MAX_DEPTH:
                    below = os.open(entry.name, OPEN_DIRECTORY, dir_fd=here)
                    stack.append((below, prefix + entry.name + "/", os.scandir(below)))
            except OSError:  # removed or replaced meanwhile
                continue
    finally:
        for here, _, entries in stack:
            entries.close()
            os.close(here)


def main() -> None:
    """List the directories named on the command line until the time or the size is used up."""
    target, seconds, most_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    deadline = time.monotonic() + seconds
    secrets = json.load(sys.stdin)
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    files = total = written = 0
    cut = ""
    lines: list[str] = []
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def flush(last: bool = False) -> None:
        nonlocal written
        packed = packer.compress("".join(lines).encode())
        # A sync point now and then, so that a child that is killed leaves a file that can be read so far.
        packed += packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        lines.clear()
        written += os.write(out, packed)

    pending = 0
    for root in sys.argv[4:]:
        if cut:
            break
        for path, facts in list_files(root):
            files += 1
            total += facts.st_size
            lines.append(
                f'{{"path":{encode_basestring_ascii(redact(path, secrets))},"size_bytes":{facts.st_size},'
                f'"allocated_bytes":{facts.st_blocks * 512},"modified_at":{facts.st_mtime:.3f}}}\n'
            )
            pending += 1
            if pending == _BATCH:
                pending = 0
                if len(lines) >= 20 * _BATCH:
                    flush()
                if time.monotonic() > deadline:
                    cut = f"after {seconds:g} s"
                elif written > most_bytes:
                    cut = f"after {most_bytes} compressed bytes"
                if cut:
                    break
    summary = {"end": True, "files": files, "bytes": total, "cut": cut or None}
    lines.append(json.dumps(summary) + "\n")
    flush(last=True)
    os.close(out)
    print(json.dumps(summary), flush=True)
