"""The guard: a process of its own that owns the generator's tree and outlives whoever started it.

Twin guards, each a child subreaper: the outer one watches the inner one, the inner one starts the
command and watches the flow process by pidfd. Whatever ends the flow process, or either guard, the
tree is stopped: SIGTERM to every descendant, the grace period, then {walk, SIGSTOP, walk again,
SIGKILL, reap} until nobody is left, or a deadline after which what is left is named. On one path alone
the tree goes on without them: the living flow process asks for its release (see `Guard.release`).
Standard library only. It knows nothing of caches and growth.

Wire format: one JSON object a line. In: first the configuration, then {"cmd": "stop", "grace_s": n}
or {"cmd": "freeze"}, {"cmd": "release"}. Out: started, exec_failed, exited, frozen, kept, released, gone.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import select
import signal
import time

from prefect_cachewatch.supervise.proc import (
    COOKIE,
    ProcessStat,
    children,
    command_line,
    descendants,
    read_stat,
    send_signal,
)
from prefect_cachewatch.supervise.run_updates import update_run_file

TYPE_CHECKING = False  # typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["main"]

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_KILL_DEADLINE_S = 10.0
_NAMED_MAX = 256
_RELEASED = 64  # exit status of an inner guard that has let go
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Guard:
    """State of one guard process: the command it started and what it stopped."""

    def __init__(self, control: int) -> None:
        self.control = control
        self.leader = -1
        self.status: int | None = None
        self.terminated: dict[tuple[int, int], dict[str, Any]] = {}
        self.killed: dict[tuple[int, int], dict[str, Any]] = {}
        self._heard = b""
        self._heard_all = False

    def release(self, state: tuple[int, str] | None, oom_score: bytes) -> None:
        """Let the tree go and end; returns only if it is kept, because it ends by itself or the state file stays.

        Args:
            state: descriptor and path of the run's state file.
            oom_score: what the guards' own oom_score_adj is.
        """
        tree = descendants(os.getpid())
        if not tree:
            return  # the next turn reports its end
        for pid in tree:
            _write_oom_score(str(pid), oom_score)
        if state is not None:
            # This is the moment: while the file stands a janitor may stop the tree, and nobody may once it has gone.
            try:
                if os.fstat(state[0]).st_nlink:
                    os.unlink(state[1])
            except FileNotFoundError:
                pass
            except OSError as error:
                self.say("kept", reason=f"its state file {state[1]} cannot be removed: {error.strerror}")
                return
        self.say("released")
        os._exit(_RELEASED)

    def say(self, event: str, **data: Any) -> None:
        message = json.dumps({"ev": event, **data}).encode() + b"\n"
        try:
            while message:
                message = message[os.write(self.control, message) :]
        except OSError:
            return  # the flow process has gone; the tree is stopped all the same

    def reap(self) -> bool:
        """Reap what has ended; true while any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.leader:
                self.status = status

    def terminate(self, deadline_s: float) -> None:
        """SIGTERM and SIGCONT every descendant once, also late-comers, until the deadline or a sooner one from outside."""
        nap = 0.001
        while self.reap():
            for pid, found in descendants(os.getpid()).items():
                identity = (pid, found.start_ticks)
                if identity not in self.terminated:
                    self.terminated[identity] = _named(pid, found)
                    # A stopped process acts on SIGTERM only when it goes on.
                    send_signal(pid, found.start_ticks, signal.SIGTERM)
                    send_signal(pid, found.start_ticks, signal.SIGCONT)
            left = deadline_s - time.monotonic()
            if left <= 0:
                return
            deadline_s = min(deadline_s, self._nap(min(nap, left)))
            nap = min(nap * 1.5, 0.02)

    def _nap(self, seconds: float) -> float:
        """Wait; returns the deadline of a further stop that came meanwhile, else never."""
        if self._heard_all or not select.select([self.control], [], [], seconds)[0]:
            time.sleep(seconds if self._heard_all else 0)
            return math.inf
        data = _read_some(self.control)
        self._heard_all = not data
        self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        stops = [command for line in lines if line and (command := json.loads(line))["cmd"] == "stop"]
        return min((time.monotonic() + float(stop.get("grace_s", math.inf)) for stop in stops), default=math.inf)

    def sweep(self, deadline_s: float) -> list[dict[str, Any]]:
        """SIGKILL every descendant until none is left; returns those that would not die."""
        me, nap = os.getpid(), 0.0005
        while True:
            self.reap()
            living = descendants(me)
            if not living and not children(me):
                return []
            # Frozen first: a process that forks while it is being killed would leave a child behind.
            for pid, found in living.items():
                send_signal(pid, found.start_ticks, signal.SIGSTOP)
            for pid, found in {**descendants(me), **living}.items():
                identity = (pid, found.start_ticks)
                if identity not in self.killed:
                    self.killed[identity] = _named(pid, found)
                send_signal(pid, found.start_ticks, signal.SIGKILL)
            if time.monotonic() > deadline_s:
                return [_named(pid, found) for pid, found in descendants(me).items()]
            time.sleep(nap)
            nap = min(nap * 1.5, 0.02)

    def stop(self, why: str, grace_s: float) -> None:
        """Stop the tree and report it as gone."""
        began = time.monotonic()
        if grace_s > 0:
            self.terminate(began + grace_s)
        survivors = self.sweep(time.monotonic() + _KILL_DEADLINE_S)
        gone_after_s = time.monotonic() - began
        self.say(
            "gone",
            why=why,
            status=self.status,
            gone_after_s=gone_after_s,
            terminated=[who for key, who in self.terminated.items() if key not in self.killed][:_NAMED_MAX],
            killed=list(self.killed.values())[:_NAMED_MAX],
            survivors=survivors,
        )


def _named(pid: int, found: ProcessStat) -> dict[str, Any]:
    return {
        "pid": pid,
        "start_ticks": found.start_ticks,
        "state": found.state,
        "argv": command_line(pid)[:32],
    }


def _read_configuration(control: int) -> dict[str, Any] | None:
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(control, 65536)
        if not chunk:
            return None
        data += chunk
    configuration: dict[str, Any] = json.loads(data)
    return configuration


def _guard_outer(guard: Guard, inner: int, state: tuple[int, str] | None) -> None:
    """Wait for the inner guard; stop the tree if it dies before it has done so itself.

    Meanwhile it notes who belongs to the tree in the run's state file. That may block where the file lies on
    a file system that hangs, so it is not the inner guard's work.
    """
    inner_fd = os.pidfd_open(inner)
    poll = select.poll()
    poll.register(inner_fd, select.POLLIN)
    notes = _TreeNotes(inner, state[0]) if state else None
    while not poll.poll(None if notes is None else notes.pause_s * 1000):
        if notes is not None and not notes.take():
            notes = None
    # Only the inner guard is waited for: orphans of the tree become ours only after its death.
    _, status = os.waitpid(inner, 0)
    if os.waitstatus_to_exitcode(status) == _RELEASED:
        os._exit(0)
    if os.waitstatus_to_exitcode(status) != 0:
        guard.stop("inner_guard_died", 0.0)
    guard.reap()
    if state is not None:
        if left := descendants(os.getpid()):  # could not be killed: a janitor looks again
            _TreeNotes(inner, state[0]).write(left)
        else:
            _unlink_own(*state)
    os._exit(0)


class _TreeNotes:
    """Keeps the state file's list of processes; costs at most a three-hundredth of one core."""

    def __init__(self, inner: int, fd: int) -> None:
        self.pause_s = 0.05
        self._inner, self._fd = inner, fd
        self._header_bytes = os.pread(fd, 4096, 0).find(b"\n") + 1
        self._known: set[tuple[int, int]] = set()
        self._least_s = 0.1

    def take(self) -> bool:
        """Look at the tree, write what has changed; false if that does not work."""
        began = time.monotonic()
        try:
            self.write(descendants(os.getpid()))
        except OSError:
            return False
        self._least_s = min(1.0, 2 * self._least_s)
        self.pause_s = max(self._least_s, 300 * (time.monotonic() - began))
        return True

    def write(self, tree: dict[int, ProcessStat]) -> None:
        """Write the list, unless it is what was written last."""
        now = {(pid, found.start_ticks) for pid, found in tree.items() if pid != self._inner}
        if now != self._known:
            update_run_file(self._fd, self._header_bytes, sorted(now))
            self._known = now


def _unlink_own(fd: int, path: str) -> None:
    try:
        mine, there = os.fstat(fd), os.lstat(path)
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            os.unlink(path)
    except OSError:
        return


def _spawn(configuration: dict[str, Any], guard: Guard) -> None:
    """Start the command in a session of its own; report started or exec_failed."""
    me = os.getpid()
    failure_read, failure_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        step = "start"
        try:
            os.setsid()
            if not configuration["may_release"]:  # it could not be taken back when the guard lets go and ends
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(98)
            for target, source in enumerate(configuration["stdio"]):
                os.dup2(source, target)
                os.set_inheritable(target, True)  # dup2 onto itself leaves close-on-exec set
            for restored in (
                signal.SIGCHLD,
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGHUP,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(restored, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            # If memory runs out, the generator should go before the one who reports it.
            _write_oom_score("self", b"500")
            if configuration["cwd"]:
                step = "cwd"
                os.chdir(configuration["cwd"])
            step = "exec"
            os.execvpe(configuration["argv"][0], configuration["argv"], configuration["env"])
        except OSError as error:
            os.write(failure_write, f"{error.errno or errno.EINVAL} {step}".encode())
        except BaseException as error:  # noqa: BLE001 - nothing may return from a forked child
            os.write(failure_write, f"{errno.EINVAL} {type(error).__name__}".encode())
        os._exit(127)
    guard.leader = pid
    os.close(failure_write)
    for fd in set(configuration["stdio"]):
        os.close(fd)
    failure = os.read(failure_read, 100)  # ends at exec, which closes the other side
    os.close(failure_read)
    if failure:
        errno_text, _, step = failure.decode().partition(" ")
        guard.reap()
        guard.say("exec_failed", errno=int(errno_text), step=step)
        os._exit(0)
    started = read_stat(pid)
    guard.say("started", pid=pid, start_ticks=started.start_ticks if started else 0, guards=[os.getppid(), me])


def _read_oom_score() -> bytes:
    try:
        with open("/proc/self/oom_score_adj", "rb") as file:
            return file.read().strip() or b"0"
    except OSError:
        return b"0"


def _write_oom_score(who: str, data: bytes) -> None:
    try:
        fd = os.open(f"/proc/{who}/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, data)
    except OSError:
        return
    finally:
        os.close(fd)


def _guard_inner(
    guard: Guard, configuration: dict[str, Any], flow_fd: int, outer_fd: int, state: tuple[int, str] | None
) -> None:
    """Run the command and wait for the first reason to end; then see that nothing of it is left."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    oom_score = _read_oom_score()
    _spawn(configuration, guard)
    poll = select.poll()
    for fd in (guard.control, flow_fd, outer_fd, wake_read):
        poll.register(fd, select.POLLIN)
    grace_s, why, buffer = float(configuration["grace_s"]), "", b""
    said_exit = release_asked = False
    while not why:
        for fd, _ in poll.poll():
            if fd == flow_fd:
                why = "flow_died"
            elif fd == outer_fd:
                why = "outer_guard_died"
            elif fd == wake_read:
                if set(os.read(wake_read, 512)) & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
                    why = why or "guard_signalled"
            elif fd == guard.control:
                data = _read_some(guard.control)
                if not data:
                    why = why or "control_closed"
                buffer += data
                while b"\n" in buffer:
                    line, _, buffer = buffer.partition(b"\n")
                    command = json.loads(line)
                    if command["cmd"] == "stop":
                        why, grace_s = "stop", float(command.get("grace_s", grace_s))
                    elif command["cmd"] == "freeze":
                        guard.say("frozen", pids=_freeze())
                    elif command["cmd"] == "release":
                        release_asked = True
        anybody = guard.reap()
        if guard.status is not None and not said_exit and not why:
            said_exit = True
            guard.say("exited", status=guard.status, left=len(descendants(os.getpid())))
        if guard.status is not None and not why:
            # Exit 0 with descendants left: the tree counts, unless the leader alone is waited for.
            failed = os.waitstatus_to_exitcode(guard.status) != 0
            if not anybody or failed or configuration["wait_for"] == "leader":
                why = "exited"
        if release_asked and not why and _is_alive(flow_fd) and _is_alive(outer_fd):
            release_asked = False
            guard.release(state, oom_score)
    guard.stop(why, grace_s)
    os._exit(0)


def _is_alive(pidfd: int) -> bool:
    return not select.select([pidfd], [], [], 0)[0]


def _read_some(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b"\n"
    except OSError:
        return b""


def _freeze() -> list[int]:
    """SIGSTOP the whole tree, twice over for those that forked meanwhile; returns the pids."""
    frozen: dict[int, ProcessStat] = {}
    for _ in range(3):
        new = {pid: found for pid, found in descendants(os.getpid()).items() if pid not in frozen}
        if not new:
            break
        for pid, found in new.items():
            send_signal(pid, found.start_ticks, signal.SIGSTOP)
        frozen.update(new)
    return list(frozen)


def main(control: int) -> None:
    """Guard one command until nothing of it is left; never returns.

    Args:
        control: descriptor of the connected control socket; the configuration is read from it.
    """
    _prctl(_PR_SET_NAME, b"cachewatch-guard")
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.chdir("/")  # never pin the file system that is being watched
    os.set_inheritable(control, False)
    configuration = _read_configuration(control)
    if configuration is None:
        os._exit(97)
    flow_fd = os.pidfd_open(configuration["flow_pid"])
    if os.getppid() != configuration["flow_pid"]:
        os._exit(97)  # it died before it was pinned, and its pid may be another's
    keep: Sequence[int] = configuration["stdio"]
    state: tuple[int, str] | None = configuration["state"]
    for fd in (*keep, *configuration["hold"], *(state[:1] if state else ())):
        os.set_inheritable(fd, False)
    guard = Guard(control)
    # The outer guard outlives a SIGTERM to everybody, since the inner one needs its grace period.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    outer = os.getpid()
    inner = os.fork()
    if inner:
        for fd in set(keep):
            os.close(fd)
        os.close(flow_fd)
        _guard_outer(guard, inner, state)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # not inherited by fork
    outer_fd = os.pidfd_open(outer)
    if os.getppid() != outer:
        os._exit(97)
    configuration["env"][COOKIE] = configuration["cookie"]
    _guard_inner(guard, configuration, flow_fd, outer_fd, state)
