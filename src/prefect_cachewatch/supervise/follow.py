"""Follows a file that another process writes, and passes on what is new through a pipe.

The output of a server that may be left running goes into a file, so that nobody has to read it once this run is over.
While the run lasts its output is read as any other's: this process reads the file, which may lie on a file system that
hangs, and can be left behind. Standard library only.
"""

from __future__ import annotations

import os
import select

_LOOK_MS = 100
_CHUNK = 1 << 16


def main(control: int) -> None:
    """Follow until the control pipe is closed, then to the end of the file; never returns.

    Args:
        control: pipe that says the descriptors of the file and of the pipe to write to.
    """
    os.chdir("/")
    file, out = map(int, os.read(control, 100).split())
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        ended = poll.poll(_LOOK_MS)
        while data := os.read(file, _CHUNK):
            while data:
                data = data[os.write(out, data) :]  # an error ends this process: its reader has gone
        if ended:
            os._exit(0)
