"""The guard: a separate process that owns the generator's tree and outlives the process that started it.

It is a child subreaper, starts the command and watches the process that started it by pidfd. An engine is a subreaper
itself: what a dead guard leaves behind falls to it. For any other process there are two guards, and the outer one watches
the inner one. If that process or a guard ends, the tree is stopped (see `stop_tree`) until
no process is left, or until a deadline, when the remaining ones are reported. This includes processes that carry the
run's token and have left the tree for a pid namespace with its own init. In one case only does the tree go on without
guards: the living flow process asks for its release (see `Guard.release`). Standard library only. It knows nothing of
caches and growth.

Wire format: one JSON object a line. In: first the configuration, then {"cmd": "stop", "grace_s": n} or {"cmd":
"freeze"}, {"cmd": "signal", "numbers": [n]}, {"cmd": "suspend"}, {"cmd": "resume"}, {"cmd": "release"}. A
stop may name the signal that it is for: {"cmd": "stop", "first": n}. Out: started, exec_failed, no_reaper, reaped, exited, frozen, suspended,
released, stopping, gone.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import json
import math
import os
import select
import signal
import time

from prefect_cachewatch.common.parked import taken
from prefect_cachewatch.supervise.proc import (
    RUN_TOKEN,
    ProcessStat,
    descendants,
    is_alive,
    read_stat,
    read_status,
    send_signal,
)
from prefect_cachewatch.supervise.reading import find_by_run_token
from prefect_cachewatch.supervise.run_updates import update_run_file
from prefect_cachewatch.supervise.stop_tree import KILL_DEADLINE_S, TreeStop
from prefect_cachewatch.supervise.tending import Tended

TYPE_CHECKING = False  # importing typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_TEND_EVERY_S, _NOTES_END_S = 1.0, 2.0
_HELD_S, _HELD_ORPHAN_S = 10.0, 2.0  # how long the inner guard may stay stopped; the second without a flow process
_TICK_MOST_S, _CONTINUED_S = 2.0, 5.0
_RELEASED = 64  # exit status of an inner guard that has released the tree
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Guard:
    """State of one guard process: the command it started and the processes it stopped."""

    def __init__(self, control: int) -> None:
        self.control = control
        self.leader = -1
        self.status: int | None = None
        self.run_token, self.since_ticks = "", 0
        self._strays: set[tuple[int, int]] = set()
        self._stray_sought = False
        self._kill_by_s = math.inf
        self.says_reaped = False
        self._suspended: dict[int, ProcessStat] = {}
        self._heard = b""
        self._heard_all = False

    def release(self, oom_score: bytes) -> None:
        """Release the tree and end; returns only if no tree is left.

        Args:
            oom_score: what the guards' own oom_score_adj is.
        """
        tree = descendants(os.getpid())
        if not tree:
            return  # the next loop reports its end
        for pid in tree:
            _write_oom_score(str(pid), oom_score)
        self.say("released")
        _leave(_RELEASED)

    def say(self, event: str, **data: Any) -> None:
        message = json.dumps({"ev": event, **data}).encode() + b"\n"
        try:
            while message:
                message = message[os.write(self.control, message) :]
        except OSError:
            return  # the flow process has gone; the tree is stopped anyway

    def reap(self) -> bool:
        """Reap the children that have ended; return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.leader:
                self.status = status
            elif self.says_reaped:
                self.say("reaped", pid=pid, status=status)

    def _look(self) -> dict[int, ProcessStat]:
        """Reap the children that have ended; list the living ones, including those found by the run token alone."""
        self.reap()
        living = descendants(os.getpid())
        for pid, ticks in self._strays:
            if pid not in living and is_alive(pid, ticks) and (found := read_stat(pid)):
                living |= {pid: found, **descendants(pid)}
        return living

    def _seek_strays(self) -> bool:
        """Look for processes that carry the run token and are not descendants; return whether there are new ones.

        A child that joins another pid namespace (nsenter, apptainer) is reparented to that namespace's init, not to us.
        """
        known = self._strays | {(pid, found.start_ticks) for pid, found in descendants(os.getpid()).items()}
        found = find_by_run_token(self.run_token, self.since_ticks) if self.run_token else {}
        new = {(pid, status.start_ticks) for pid, status in found.items() if pid != os.getpid()} - known
        self._strays |= new
        return bool(new)

    def _nap_in_grace(self, seconds: float) -> float:
        if not self._stray_sought:  # only after the first signals, since it may take a moment
            self._stray_sought = True
            self._seek_strays()
        self._kill_by_s = min(self._kill_by_s, self._nap(seconds))
        return self._kill_by_s

    def obey(self, command: dict[str, Any]) -> None:
        """Execute a command about the running tree, except a stop."""
        if command["cmd"] == "freeze":
            self.say("frozen", pids=list(_freeze()))
        elif command["cmd"] == "signal":
            self.forward(command["numbers"])
        elif command["cmd"] == "suspend":
            self.suspend()
        elif command["cmd"] == "resume":
            self.resume()

    def forward(self, numbers: Sequence[int]) -> None:
        """Pass signals on to the command's process group, as dumb-init and `tini -g` do."""
        for number in numbers:
            try:
                if self.status is None:  # not reaped yet: its pid and its group cannot belong to another process
                    os.killpg(self.leader, number)
                else:
                    for pid, found in descendants(os.getpid()).items():
                        if os.getpgid(pid) == self.leader:
                            send_signal(pid, found.start_ticks, number)
            except OSError:
                continue  # it has just ended

    def suspend(self) -> None:
        """SIGSTOP the whole tree; `resume` continues those that were not stopped before."""
        for pid, found in _freeze().items():
            if found.state not in "Tt":
                self._suspended[pid] = found
        self.say("suspended")

    def resume(self) -> None:
        """SIGCONT the processes that were suspended, children first: a shell among them must not see them stopped."""
        for pid, found in reversed(self._suspended.items()):
            send_signal(pid, found.start_ticks, signal.SIGCONT)
        self._suspended.clear()

    def _group(self) -> dict[int, ProcessStat]:
        """Return the living processes of the command's group."""
        living, group = self._look(), dict[int, ProcessStat]()
        for pid, found in living.items():
            try:
                if pid == self.leader or os.getpgid(pid) == self.leader:
                    group[pid] = found
            except OSError:
                continue  # it has just ended
        return group

    def _tell_catching(self, number: int) -> None:
        """Pass on a signal that ends the run to the processes that handle it; SIGQUIT to all, for their core dumps.

        Python and shells catch SIGINT by default, and would end from it without their SIGTERM cleanup. So a process
        that catches or ignores SIGTERM gets SIGTERM alone.
        """
        for pid, found in self._catching(number).items():
            send_signal(pid, found.start_ticks, number)

    def _catching(self, number: int) -> dict[int, ProcessStat]:
        return {
            pid: found for pid, found in self._group().items() if number == signal.SIGQUIT or self._is_for(pid, number)
        }

    def _is_for(self, pid: int, number: int) -> bool:
        status = read_status(f"/proc/{pid}/status")  # empty if it has just ended
        caught, ignored = (int(status.get(name, b"0"), 16) for name in (b"SigCgt", b"SigIgn"))
        return _has(caught, number) and not (number == signal.SIGINT and _has(caught | ignored, signal.SIGTERM))

    def _tell_first(self, number: int, until_s: float) -> None:
        """Pass on the signal that ends the run, as timeout does; a process that catches it gets no other until then."""
        self._tell_catching(number)
        while (left_s := min(until_s, self._kill_by_s) - time.monotonic()) > 0:
            if not any(found.state not in "TtZ" and self._is_for(pid, number) for pid, found in self._group().items()):
                return
            self._nap_in_grace(min(left_s, 0.02))

    def _nap(self, seconds: float) -> float:
        """Wait, and pass on commands that arrive; return the deadline of a further stop that arrived, else infinity."""
        if self._heard_all or not select.select([self.control], [], [], seconds)[0]:
            time.sleep(seconds if self._heard_all else 0)
            return math.inf
        data = _read_some(self.control)
        self._heard_all = not data
        self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        commands = [json.loads(line) for line in lines if line]
        for command in commands:
            for number in command["numbers"] if command["cmd"] == "signal" else ():
                self._tell_catching(number)
        stops = [command for command in commands if command["cmd"] == "stop"]
        return min((time.monotonic() + float(stop.get("grace_s", math.inf)) for stop in stops), default=math.inf)

    def stop(self, why: str, grace_s: float, first: int = 0) -> None:
        """Stop the tree and report it as gone; `first` is the signal that ends the run."""
        began = time.monotonic()
        self.say("stopping", why=why, grace_s=grace_s)
        tree, self._kill_by_s = TreeStop(self._look), began + grace_s
        if grace_s > 0:
            if first not in (0, signal.SIGTERM):
                tree.note_first(self._catching(first))
                self._tell_first(first, began + grace_s / 2)
            tree.terminate(self._kill_by_s, self._nap_in_grace)
        give_up_s = time.monotonic() + KILL_DEADLINE_S
        survivors: list[dict[str, Any]] = []
        for _ in range(3):  # bounded: each round but the first is for strays found after the others
            survivors = tree.sweep(max(give_up_s, time.monotonic() + 1))
            if not self._seek_strays():
                break
            if (left_s := self._kill_by_s - time.monotonic()) > 0:
                tree.terminate(time.monotonic() + left_s, self._nap_in_grace)
        deadline_s = time.monotonic() + 1
        while self.reap() and not survivors and time.monotonic() < deadline_s:
            time.sleep(0.0005)  # for the exit status of the last process
        self.say(
            "gone",
            why=why,
            status=self.status,
            gone_after_s=time.monotonic() - began,
            terminated=tree.terminated,
            killed=tree.killed,
            survivors=survivors,
        )


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def _read_configuration(control: int) -> dict[str, Any] | None:
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(control, 65536)
        if not chunk:
            return None
        data += chunk
    configuration: dict[str, Any] = json.loads(data)
    return configuration


def _guard_alone(guard: Guard, configuration: dict[str, Any], flow_fd: int) -> NoReturn:
    """Guard the tree for a process that takes in what this one would leave behind."""
    state: tuple[int, str] | None = configuration["state"]
    notes: list[_TreeNotes] = []
    state_fds = [-1]

    def begun() -> None:
        if state is not None:  # after the fork: the command closes only the parked one
            state_fds[0] = taken(state[0])
            notes.append(_TreeNotes(os.getpid(), state_fds[0]))

    _guard_tree(guard, configuration, flow_fd, begun=begun)
    _outlive(guard, configuration, state_fds[0], notes[0] if notes else None)


def _guard_outer(guard: Guard, inner: int, configuration: dict[str, Any], flow_fd: int) -> NoReturn:
    """Wait for the inner guard; stop the tree if it dies before it has done so, continue it if it is stopped.

    Meanwhile it records the tree's processes in the run's state file.
    """
    state: tuple[int, str] | None = configuration["state"]
    state_fd = taken(state[0]) if state else -1  # after the last fork: the command closes only the parked one
    inner_fd = os.pidfd_open(inner)
    poll = select.poll()
    poll.register(inner_fd, select.POLLIN)
    poll.register(flow_fd, select.POLLIN)
    notes = _TreeNotes(inner, state_fd) if state else None
    tended, orphaned, orphan_s = Tended(inner), False, 0.0
    while inner_fd not in (ready := [fd for fd, _ in poll.poll(_TEND_EVERY_S * 1000)]):
        if flow_fd in ready:
            orphaned = True
            poll.unregister(flow_fd)
        elif orphaned:
            orphan_s += _TEND_EVERY_S
        tended.look(_HELD_ORPHAN_S if orphaned else _HELD_S)
        if (late_s := orphan_s - float(configuration["grace_s"]) - 3 * KILL_DEADLINE_S) > 0:
            tended.kill()  # its time is over
        if late_s > KILL_DEADLINE_S:
            break  # it is frozen, or hangs in the kernel: stop the tree without it
    # Only the inner guard is waited for: orphans of the tree become our children only after its death.
    ended = _exit_code(inner)
    if ended == _RELEASED:
        os._exit(0)
    if ended != 0:
        guard.stop("inner_guard_died", 0.0)
    _outlive(guard, configuration, state_fd, notes)


def _outlive(guard: Guard, configuration: dict[str, Any], state_fd: int, notes: _TreeNotes | None) -> NoReturn:
    """End once nothing of the tree is left; until then state file and locks stay."""
    state: tuple[int, str] | None = configuration["state"]
    guard.reap()
    os.close(guard.control)  # whoever started us has heard everything
    if configuration["alone"]:
        os.close(configuration["alone"]["front"])  # a front whose engine has died waits for this end
    left = descendants(os.getpid())
    if notes is not None:
        notes.end(left)
    while left:  # the remaining processes may still write: the cache directories stay locked until they have gone
        for pid, found in left.items():
            send_signal(pid, found.start_ticks, signal.SIGKILL)
        time.sleep(_TEND_EVERY_S)
        guard.reap()
        left = descendants(os.getpid())
    for fd in set(configuration["hold"]):
        os.close(fd)
    if state is not None:
        _unlink_own(state_fd, state[1])
    os._exit(0)


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child that has ended; None if a tracer keeps it from us."""
    end_s = time.monotonic() + 1
    while time.monotonic() < end_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


class _TreeNotes:
    """Keeps the state file's list of processes; costs at most a three-hundredth of one core.

    It runs in a thread, which is abandoned if the file lies on a file system that hangs.
    """

    def __init__(self, inner: int, fd: int) -> None:
        self._inner, self._fd = inner, fd
        self._header_bytes = 0
        self._known: set[tuple[int, int]] = set()
        self._ended, self._writing = False, _thread.allocate_lock()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        pause_s, least_s = 0.05, 0.1
        try:
            with self._writing:
                self._header_bytes = os.pread(self._fd, 4096, 0).find(b"\n") + 1
            while True:
                time.sleep(pause_s)
                began = time.thread_time()  # processor time, so that a busy machine does not make it rarer
                with self._writing:
                    if self._ended:
                        return
                    self._write(descendants(os.getpid()))
                least_s = min(1.0, 2 * least_s)
                pause_s = max(least_s, 300 * (time.thread_time() - began))
        except OSError:
            return

    def end(self, left: dict[int, ProcessStat]) -> None:
        """Write the last list: these processes could not be killed, and a janitor looks at them again."""
        if not self._writing.acquire(timeout=_NOTES_END_S):
            return
        self._ended = True
        try:
            if left:
                self._write(left)
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            return
        finally:
            self._writing.release()

    def _write(self, tree: dict[int, ProcessStat]) -> None:
        """Write the list, unless it has not changed."""
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


def _spawn(configuration: dict[str, Any], guard: Guard, guards: list[int]) -> None:
    """Start the command in a session of its own; report started or exec_failed."""
    me = os.getpid()
    failure_read, failure_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        step = "start"
        try:
            os.setsid()
            if configuration["may_release"]:  # a server that is released holds the locks of its directories itself
                for fd in configuration["hold"]:
                    os.set_inheritable(fd, True)
            else:  # it could not be undone when the guard releases the tree and ends
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(98)
            for target, source in enumerate(configuration["stdio"]):
                os.dup2(source, target)
                os.set_inheritable(target, True)  # dup2 onto itself leaves close-on-exec set
            _restore_signals(**configuration["signals"])
            # If memory runs out, the generator should die before the process that reports it.
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
    failure = os.read(failure_read, 100)  # ends at exec, which closes the other end
    os.close(failure_read)
    if failure:
        errno_text, _, step = failure.decode().partition(" ")
        guard.reap()
        guard.say("exec_failed", errno=int(errno_text), step=step)
        os._exit(0)
    started = read_stat(pid)
    guard.say("started", pid=pid, start_ticks=started.start_ticks if started else 0, guards=guards)


def _restore_signals(ignored: Sequence[int], blocked: Sequence[int]) -> None:
    """Give a child the signal dispositions of the flow process's caller; this process ignores nearly all signals."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


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


def _guard_tree(
    guard: Guard,
    configuration: dict[str, Any],
    flow_fd: int,
    outer_fd: int | None = None,
    begun: Callable[[], object] = int,
) -> None:
    """Run the command and wait for the first reason to end; then make sure that no process of it is left."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    oom_score = _read_oom_score()
    _spawn(configuration, guard, [os.getpid()] if outer_fd is None else [os.getppid(), os.getpid()])
    begun()
    silence = _Silence(guard, configuration["alone"]) if configuration["alone"] else None
    poll = select.poll()
    for fd in (guard.control, flow_fd, wake_read, *((outer_fd,) if outer_fd is not None else ())):
        poll.register(fd, select.POLLIN)
    grace_s, why, buffer, first = float(configuration["grace_s"]), "", b"", 0
    said_exit = release_asked = False
    while not why:
        for fd, _ in poll.poll(None if silence is None else _TEND_EVERY_S * 1000):
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
                *lines, buffer = (buffer + data).split(b"\n")
                for command in map(json.loads, filter(None, lines)):
                    if command["cmd"] == "stop":
                        why, grace_s = "stop", float(command.get("grace_s", grace_s))
                        first = first or int(command.get("first", 0))
                    elif command["cmd"] == "release":
                        release_asked = True
                    elif command["cmd"] == "beat":
                        if silence is not None:
                            silence.end()
                    else:
                        guard.obey(command)
        if silence is not None and not why and silence.lasts():
            why = "watch_silent"
        anybody = guard.reap()
        if guard.status is not None and not said_exit and not why:
            said_exit = True
            guard.say("exited", status=guard.status, left=len(descendants(os.getpid())))
        if guard.status is not None and not why:
            why = "" if anybody and _waits_for_tree(guard.status, configuration) else "exited"
        if release_asked and not why and _is_alive(flow_fd) and (outer_fd is None or _is_alive(outer_fd)):
            release_asked = False
            guard.release(oom_score)
    guard.stop(why, grace_s, first)
    if silence is not None and why == "watch_silent":
        silence.tell()


def _waits_for_tree(status: int, configuration: dict[str, Any]) -> bool:
    """Whether descendants of a command that has ended are waited for: after exit code 0, unless only it is."""
    return os.waitstatus_to_exitcode(status) == 0 and configuration["wait_for"] != "leader"


class _Silence:
    """The dead-man's rule: an engine that does not beat is continued first, and then the tree is stopped.

    Args:
        guard: tells that it lasts.
        rule: `front`, `silent_s` and `stops`, as of `supervisor.Alone`.
    """

    def __init__(self, guard: Guard, rule: dict[str, Any]) -> None:
        self._guard, self._rule = guard, rule
        self._silent_s, self._looked_s = 0.0, time.monotonic()
        self._engine, self._said = Tended(os.getppid()), False

    def end(self) -> None:
        """The engine has beaten."""
        self._silent_s, self._said = 0.0, False

    def lasts(self) -> bool:
        """Count the time since the last look, and say whether the tree is to be stopped."""
        now_s = time.monotonic()
        # While the machine, or this process, was suspended nobody could beat.
        self._silent_s += min(now_s - self._looked_s, _TICK_MOST_S)
        self._looked_s = now_s
        if self._silent_s < self._rule["silent_s"]:
            return False
        if not self._said:
            self._said = True
            self._engine.look(math.inf)
            self._guard.say("silent", silent_s=self._silent_s)
        return bool(self._rule["stops"]) and self._silent_s >= self._rule["silent_s"] + _CONTINUED_S

    def tell(self) -> None:
        """Tell the front, which may wait for the engine."""
        event = {"event": "gone", "protocol": 1, "at": time.time(), "at_s": 0.0, "why": "watch_silent"}
        try:
            os.write(self._rule["front"], json.dumps(event).encode() + b"\n")
        except OSError:
            return


def _leave(status: int) -> NoReturn:
    """End; an outer guard that was stopped is continued, or it would keep state file and locks indefinitely."""
    Tended(os.getppid()).look(math.inf)
    os._exit(status)


def _is_alive(pidfd: int) -> bool:
    return not select.select([pidfd], [], [], 0)[0]


def _read_some(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b"\n"
    except OSError:
        return b""


def _freeze() -> dict[int, ProcessStat]:
    """SIGSTOP the whole tree, twice to catch processes that forked meanwhile; returns their earlier states."""
    frozen: dict[int, ProcessStat] = {}
    for _ in range(3):
        new = {pid: found for pid, found in descendants(os.getpid()).items() if pid not in frozen}
        if not new:
            break
        for pid, found in new.items():
            send_signal(pid, found.start_ticks, signal.SIGSTOP)
        frozen.update(new)
    return frozen


def main(control: int) -> None:
    """Guard one command until no process of it is left; never returns.

    Args:
        control: descriptor of the connected control socket; the configuration is read from it.
    """
    _prctl(_PR_SET_NAME, b"cachewatch-guard")
    no_reaper = 0
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        no_reaper = error.errno or errno.EINVAL
    # If the guards are stopped and the flow process is killed, the kernel wakes them with this signal.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    os.chdir("/")  # do not pin the file system that is being watched
    os.set_inheritable(control, False)
    configuration = _read_configuration(control)
    if configuration is None:
        os._exit(97)
    if no_reaper:
        Guard(control).say("no_reaper", errno=no_reaper)
        os._exit(97)
    flow_fd = os.pidfd_open(configuration["flow_pid"])
    if os.getppid() != configuration["flow_pid"]:
        os._exit(97)  # it died before it was pinned, and its pid may have been reused
    keep: Sequence[int] = configuration["stdio"]
    state: tuple[int, str] | None = configuration["state"]
    front = [configuration["alone"]["front"]] if configuration["alone"] else []
    for fd in (*keep, *configuration["hold"], *(state[:1] if state else ()), *front):
        os.set_inheritable(fd, False)
    guard = Guard(control)
    found = read_stat(os.getpid())
    guard.run_token, guard.since_ticks = configuration["run_token"], found.start_ticks if found else 0
    guard.says_reaped = configuration["says_reaped"]
    # The outer guard survives a SIGTERM sent to every process, since the inner one needs its grace period: like every
    # helper it starts with signals ignored (`spawn_helper`).
    configuration["env"][RUN_TOKEN] = configuration["run_token"]
    if configuration["alone"]:
        _guard_alone(guard, configuration, flow_fd)
    outer = os.getpid()
    inner = os.fork()
    if inner:
        for fd in set(keep):
            os.close(fd)
        _guard_outer(guard, inner, configuration, flow_fd)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # fork inherits neither
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    outer_fd = os.pidfd_open(outer)
    if os.getppid() != outer:
        os._exit(97)
    _guard_tree(guard, configuration, flow_fd, outer_fd)
    _leave(0)
