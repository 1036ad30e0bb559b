"""The keeper: stays with a server that was handed over, reads its output and holds its cache's lock.

A server hangs if its output is not read, and gets SIGPIPE if the reader has closed it. The keeper writes the output to
a capped file of its own, and ends when the server ends. Standard library only. It sends no signals.

Wire format: one JSON object in (pipes, hold, log, log_max_bytes, tree), one line out when it is in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal

from prefect_cachewatch.common.files import open_for_writing, write_all
from prefect_cachewatch.supervise.proc import is_alive

TYPE_CHECKING = False  # importing typing costs the helpers a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_PR_SET_NAME = 15
_CHUNK = 1 << 16


class _Log:
    """A file and its predecessor, with a common size limit in bytes."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path, self._half = path, max(1, max_bytes // 2)
        self._fd = self._open()
        self._size = 0

    def write(self, data: bytes) -> None:
        if self._size + len(data) > self._half:
            self._turn()
        self._size += len(data)
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # a full disk must not stop the reading
                write_all(self._fd, data)

    def _turn(self) -> None:
        _move(self._path, self._path + ".1")
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = self._open(), 0

    def _open(self) -> int:
        try:
            return open_for_writing(self._path)
        except OSError:
            return -1


def _move(path: str, to: str) -> None:
    try:
        os.replace(path, to)
    except OSError:
        return  # it was removed


def _watch(tree: Iterable[Iterable[int]]) -> list[int]:
    """Open a pidfd for each process of the tree that is still the same process."""
    found = []
    for pid, ticks in tree:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        if is_alive(pid, ticks):
            found.append(fd)
        else:
            os.close(fd)
    return found


def _keep(pipes: list[int], processes: list[int], log: _Log) -> None:
    poll = select.poll()
    for fd in (*pipes, *processes):
        poll.register(fd, select.POLLIN)
    reading, living = set(pipes), set(processes)
    while reading or living:
        for fd, _ in poll.poll():
            if fd in living:
                living.discard(fd)
            else:
                try:
                    if data := os.read(fd, _CHUNK):
                        log.write(data)
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass  # treat it as ended
                reading.discard(fd)
            poll.unregister(fd)
            os.close(fd)


def _read_configuration(control: int) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(control, 65536)
        if not chunk:
            os._exit(97)
        data += chunk
    configuration: dict[str, Any] = json.loads(data)
    return configuration


def main(control: int) -> None:
    """Serve a handed-over server until it has ended; never returns.

    Args:
        control: descriptor of the connected control socket.
    """
    os.chdir("/")  # do not pin the file system of the cache
    configuration = _read_configuration(control)
    if os.fork():
        os._exit(0)  # init reaps the keeper: the process that handed over may run for months without waiting for it
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"cachewatch-keep", 0, 0, 0)
    # Signals that end a terminal or a worker are meant neither for the server nor for its reader.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log = _Log(configuration["log"], configuration["log_max_bytes"])
    processes = _watch(configuration["tree"])
    os.write(control, b"kept\n")
    os.close(control)
    _keep(configuration["pipes"], processes, log)
    os._exit(0)
