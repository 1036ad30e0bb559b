"""Notes which processes of a tree end while others go on, and how: a front waits for ever for an engine that died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass, replace

from prefect_cachewatch.evidence.readings import EndedProcess, ProcessSample
from prefect_cachewatch.supervise.proc import read_proc, stat_fields

_OPEN_MAX = 256
_ENDED_MAX = 50
_TOLD = 5
# struct pidfd_info of linux/pidfd.h: mask, cgroup, eleven numbers, exit code.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO, _WITH_EXIT = 0xC040FF0B, 1 << 3
_EXIT_CODE = 49  # of the fields of /proc/PID/stat from the state on


@dataclass
class _Known:
    pid: int
    name: str
    since_s: float
    fd: int = -1


class EndedProcesses:
    """Follows the processes of one attempt from sample to sample."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}
        self._ended: dict[tuple[int, int], tuple[EndedProcess, float]] = {}

    def note(self, sample: ProcessSample) -> None:
        """Take in a sample.

        Args:
            sample: of the whole tree.
        """
        now_s = sample.monotonic_s
        here = {(pid, reading.start_ticks): reading for pid, reading in sample.readings.items()}
        for key, known in list(self._known.items()):
            if key not in here:
                self._end(key, known, now_s, _exit_info(known.fd))
        for key, reading in here.items():
            if key in self._ended:
                continue
            if key not in self._known:
                name = os.fsdecode(read_proc(f"/proc/{reading.pid}/comm")).strip()
                self._known[key] = _Known(reading.pid, name, now_s, self._open(reading.pid))
            if reading.state == "Z":
                fields = stat_fields(f"/proc/{reading.pid}/stat")
                status = int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else None
                self._end(key, self._known[key], now_s, status)

    def told(self, now_s: float) -> tuple[EndedProcess, ...]:
        """Return the last ones that are worth telling: those that ended badly, and those that had lived for a while.

        Args:
            now_s: monotonic time.

        Returns:
            The latest first.
        """
        found = [(one, at_s) for one, at_s in self._ended.values() if one.lived_s > 0 or one.status]
        found.sort(key=lambda each: -each[1])
        return tuple(replace(one, ago_s=max(0.0, now_s - at_s)) for one, at_s in found[:_TOLD])

    def close(self) -> None:
        """Let go of the processes."""
        for known in self._known.values():
            _close(known.fd)
        self._known.clear()

    def _open(self, pid: int) -> int:
        if len(self._known) < _OPEN_MAX:
            with contextlib.suppress(OSError):  # it has ended
                return os.pidfd_open(pid)
        return -1

    def _end(self, key: tuple[int, int], known: _Known, now_s: float, status: int | None) -> None:
        del self._known[key]
        _close(known.fd)
        self._ended[key] = EndedProcess(known.pid, known.name, 0.0, now_s - known.since_s, status), now_s
        while len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]


def _exit_info(fd: int) -> int | None:
    """The wait status of an ended process that was reaped, which Linux 6.15 and later tell by its pidfd."""
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _WITH_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(fd, _GET_INFO, buffer)
    except (OSError, ValueError):
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return int(status) if mask & _WITH_EXIT else None


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
