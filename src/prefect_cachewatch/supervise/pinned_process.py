"""A process that another program started: identified by pidfd and start time, or refused with one sentence.

Decides which processes may be watched and how an observer learns an exit code. Signals and the process's descendants
are in `adopted`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import time

import psutil

from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.text import show_argv
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.proc import lineage, process_name, read_proc, read_stat, read_status, stat_fields
from prefect_cachewatch.supervise.reading import argv_within
from prefect_cachewatch.supervise.tending import GUARD_NAME
from prefect_cachewatch.supervise.turns import read_each

_PF_KTHREAD = 0x00200000
# ioctl PIDFD_GET_INFO of linux/pidfd.h, _IOWR(0xFF, 11, struct pidfd_info of 64 bytes). Since Linux 6.15 its last word
# is the exit status, filled once the process has been reaped; a poll of the pidfd reports that as POLLHUP.
_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_INFO_EXIT = 1 << 3
_REAPED_WITHIN_S = 1.0


class PinnedProcess(Closing):
    """One process, pinned: every later query or signal reaches this process or none.

    Args:
        pid: of the process.
        start_ticks: its start time in clock ticks since boot (field 22 of /proc/PID/stat), if the caller knows it.
        to_stop: whether it will be stopped on a stall, which needs permission to signal it.

    Raises:
        InputError: there is no such process, or it may not be watched.

    Example:
        >>> import subprocess
        >>> from prefect_cachewatch.supervise.supervisor import exit_of
        >>> with subprocess.Popen(["sleep", "30"]) as child, PinnedProcess(child.pid) as found:
        ...     child.kill()
        ...     child.wait() and found.wait_exit(10), exit_of(found.exit_status())
        (True, (None, 9))
    """

    def __init__(self, pid: int, *, start_ticks: int | None = None, to_stop: bool = False) -> None:
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
            stat, fields = read_stat(pid), _stat_fields(pid)
            if stat is None or self.exited:
                raise InputError(f"process {pid} has ended already: nothing is left to watch")
            if fields and int(fields[6]) & _PF_KTHREAD:
                raise InputError(f"process {pid} ({self.shown}) is a kernel thread: give the pid of the generator")
            if start_ticks is not None and stat.start_ticks != start_ticks:
                raise InputError(
                    f"process {pid} is another one than meant: it started at tick {stat.start_ticks}, not at "
                    f"{start_ticks}; the process that had this pid has ended"
                )
            self.start_ticks = stat.start_ticks
            self.guard = _guard_above(pid)
            self._refuse_guarded(to_stop)
            if to_stop:
                self._need_the_right()
        except BaseException:
            self.close()
            raise

    @property
    def shown(self) -> str:
        """Its command line for a message: shortened, secrets redacted."""
        return show_argv(self.argv, 120)

    @property
    def exited(self) -> bool:
        """Whether it has ended (with all its threads), reaped or not."""
        return self.wait_exit(0)

    @property
    def running_for_s(self) -> float:
        """Seconds since it was started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / os.sysconf("SC_CLK_TCK")

    def wait_exit(self, timeout_s: float) -> bool:
        """Wait for its end.

        Returns:
            Whether it has ended.
        """
        return bool(self._poll(select.POLLIN, timeout_s))

    def exit_status(self) -> int | None:
        """Return its exit status after its end, if the kernel gives it to a process other than its parent.

        Returns:
            The status as of wait(2). None if only its parent can know it: before Linux 6.15, unless its parent has not
            yet
            reaped it and this user may trace the process.
        """
        if (status := self._info_status()) is not None:
            return status
        if (status := self._zombie_status()) is not None:
            return status
        self._poll(select.POLLHUP, _REAPED_WITHIN_S)
        return self._info_status()

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _poll(self, event: int, timeout_s: float) -> bool:
        poll, end_s = select.poll(), time.monotonic() + timeout_s
        poll.register(self.fd, event)
        while True:
            left_ms = max(0.0, end_s - time.monotonic()) * 1000
            if any(seen & event for _, seen in poll.poll(left_ms)):
                return True
            if left_ms <= 0:
                return False
            time.sleep(0.002)  # POLLHUP is always reported, and POLLIN must not make this loop spin

    def _info_status(self) -> int | None:
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
        may_trace = read_each([self.pid], _may_trace).get(self.pid)
        fields = _stat_fields(self.pid) if may_trace else []
        if not fields or fields[0] not in (b"Z", b"X") or int(fields[19]) != self.start_ticks or len(fields) < 50:
            return None
        return int(fields[49])

    def _refuse_guarded(self, to_stop: bool) -> None:
        if self.guard == self.pid:
            raise InputError(f"process {self.pid} is a guard of cachewatch: give the pid of the generator below it")
        if self.guard is not None and to_stop:
            raise InputError(
                f"process {self.pid} ({self.shown}) is guarded by cachewatch already (guard {self.guard}), which stops it "
                "by a rule of its own: watch it with --on-stall report"
            )

    def _need_the_right(self) -> None:
        try:
            signal.pidfd_send_signal(self.fd, 0)
        except ProcessLookupError:
            raise InputError(f"process {self.pid} has ended already: nothing is left to watch") from None
        except PermissionError:
            raise InputError(
                f"process {self.pid} ({self.shown}) belongs to {_owner(self.pid)} and could not be stopped: "
                "watch it as that user or as root, or with --on-stall report"
            ) from None


def _refuse_ourselves(pid: int) -> None:
    if pid == 1:
        raise InputError("process 1 is init, from which everything descends: give the pid of the generator")
    if pid == os.getpid():
        raise InputError(f"process {pid} is this cachewatch itself: give the pid of the generator")
    if pid in lineage(os.getpid()):
        raise InputError(
            f"process {pid} started this cachewatch, directly or through others: give the pid of the generator"
        )


def _why_not_open(pid: int, error: OSError) -> str:
    if os.path.exists(f"/proc/{pid}"):
        main = int(read_status(f"/proc/{pid}/status").get(b"Tgid", pid))
        if main != pid:
            return f"{pid} is a thread of process {main}: give the pid of the process"
    if error.errno == errno.ESRCH:
        return f"there is no process {pid}: see ps -e for the generator's"
    return f"process {pid} cannot be watched: {error.strerror}"


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; none if the process has gone or does not answer."""
    return read_each([pid], lambda pid: stat_fields(f"/proc/{pid}/stat")).get(pid, [])


def _may_trace(pid: int) -> bool:
    return bool(read_proc(f"/proc/{pid}/io", 1))


def _guard_above(pid: int) -> int | None:
    """Return the guard that a process runs under, or the process itself if it is a guard."""
    return next((above for above in lineage(pid) if process_name(above) == GUARD_NAME), None)


def _owner(pid: int) -> str:
    def name(pid: int) -> str | None:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).username()
        return None

    found = read_each([pid], name).get(pid)
    return f"user {found}" if found else "another user"
