"""A process that another program started: pinned by a pidfd, or refused with one sentence.

It decides which processes may be watched and how an observer learns an exit code. `adopted` has the signals and the
process's descendants.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import time

from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.text import show_argv
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import lineage, read_proc, read_stat, read_status, stat_fields
from prefect_cachewatch.supervise.reading import argv_within
from prefect_cachewatch.supervise.turns import read_each

# ioctl PIDFD_GET_INFO of linux/pidfd.h, _IOWR(0xFF, 11, struct pidfd_info of 64 bytes). Since Linux 6.15 its last word
# is the exit status, filled once the process has been reaped; a poll of the pidfd reports that as POLLHUP.
_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_INFO_EXIT = 1 << 3
_REAPED_WITHIN_MS = 1000


class PinnedProcess(Closing):
    """One process, pinned: every later query or signal reaches this process or none.

    Args:
        pid: of the process.
        to_stop: whether it will be stopped on a stall, which needs permission to signal it.

    Raises:
        InputError: there is no such process, or it may not be watched.
    """

    def __init__(self, pid: int, *, to_stop: bool = False) -> None:
        self.pid = pid
        self.fd = -1
        _refuse_ourselves(pid)
        try:
            self.fd = os.pidfd_open(pid)
        except OSError as error:
            raise InputError(_why_not_open(pid, error)) from None
        try:
            # Read after pidfd_open, from a process that was alive afterwards: so the data belong to the process behind
            # the descriptor.
            self.argv = argv_within(pid)
            stat = read_stat(pid)
            if stat is None or self.exited:
                raise InputError(f"process {pid} has ended already: nothing is left to watch")
            self.start_ticks = stat.start_ticks
            if to_stop:
                self._need_the_right()
        except BaseException:
            self.close()
            raise

    @property
    def exited(self) -> bool:
        """Whether it has ended (with all its threads), reaped or not."""
        return bool(self._poll(select.POLLIN, 0))

    @property
    def running_for_s(self) -> float:
        """Seconds since it was started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / os.sysconf("SC_CLK_TCK")

    def exit_status(self) -> int | None:
        """Return its exit status after its end, as of wait(2); None where the kernel does not give it to an observer."""
        if (status := self._zombie_status()) is not None:
            return status
        self._poll(0, _REAPED_WITHIN_MS)  # POLLHUP, which is always reported: its parent has reaped it
        buffer = bytearray(64)
        struct.pack_into("=Q", buffer, 0, _INFO_EXIT)
        try:
            fcntl.ioctl(self.fd, _GET_INFO, buffer)
        except OSError:  # ENOTTY, EINVAL: an older kernel; ESRCH: reaped, and the kernel kept no status
            return None
        mask, status = struct.unpack_from("=Q", buffer, 0)[0], struct.unpack_from("=i", buffer, 60)[0]
        return int(status) if mask & _INFO_EXIT else None

    def _zombie_status(self) -> int | None:
        # The last field of /proc/PID/stat. A reader that may not trace the process gets 0 there; /proc/PID/io tells
        # whether it may.
        may_trace = read_each([self.pid], lambda pid: bool(read_proc(f"/proc/{pid}/io", 1))).get(self.pid)
        fields = (
            read_each([self.pid], lambda pid: stat_fields(f"/proc/{pid}/stat")).get(self.pid, []) if may_trace else []
        )
        if len(fields) < 50 or fields[0] not in (b"Z", b"X") or int(fields[19]) != self.start_ticks:
            return None
        return int(fields[49])

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _poll(self, event: int, timeout_ms: int) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self.fd, event)
        return poll.poll(timeout_ms)

    def _need_the_right(self) -> None:
        try:
            signal.pidfd_send_signal(self.fd, 0)
        except ProcessLookupError:
            raise InputError(f"process {self.pid} has ended already: nothing is left to watch") from None
        except PermissionError:
            raise InputError(
                f"process {self.pid} ({show_argv(self.argv, 120)}) belongs to another user and could not be stopped: "
                "watch it as that user or as root, or with --on-stall report"
            ) from None


def _refuse_ourselves(pid: int) -> None:
    if pid == 1:
        raise InputError("process 1 is init, from which everything descends: give the pid of the generator")
    if pid in lineage(os.getpid()):
        raise InputError(
            f"process {pid} is this cachewatch, or started it, directly or through others: give the pid of the generator"
        )


def _why_not_open(pid: int, error: OSError) -> str:
    if os.path.exists(f"/proc/{pid}"):
        main = int(read_status(f"/proc/{pid}/status").get(b"Tgid", pid))
        if main != pid:
            return f"{pid} is a thread of process {main}: give the pid of the process"
    if error.errno == errno.ESRCH:
        return f"there is no process {pid}: see ps -e for the generator's"
    return f"process {pid} cannot be watched: {error.strerror}"
