"""Rules for causes that lie in the processes: stopped, locked, waiting, computing, killed; pure.

Each takes the view of an evidence and returns the cause, or None where it does not apply.
"""

from __future__ import annotations

import re

from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.evidence.causes import Cause, Confidence
from prefect_cachewatch.evidence.model import ProcessFacts
from prefect_cachewatch.evidence.view import (
    Kind,
    View,
    Wait,
    hot_stack,
    python_line,
    quoted,
    shown,
    who,
)
from prefect_cachewatch.supervise.lockfiles import YOUNG, LockFile, has_lock_name

_IDLE_CORES = 0.02
# /proc counts CPU in hundredths of a second: a process that wakes up as one ends is charged all of it.
_UNTOLD_CPU_S = 0.025
_BUSY_CORES = 0.5
_SIGKILL = 9
_SURE = ("high", "medium", "low")
_STREAMS = {1: "its standard output", 2: "its standard error"}
_ASLEEP: tuple[Kind, ...] = ("sleep", "unknown", "child")
# Names that lock by being there; an empty *.lock may as well be what a lock by flock(2) left behind.
_BATONS = ("lock", ".lock", "baton")
_LOCK_BYTES = 4096  # a lock holds nothing, or who made it


def oom_killed(view: View) -> Cause | None:
    """The kernel killed a process of the tree because memory ran out."""
    evidence, delta, limit = view.evidence, view.evidence.oom_kills_in_window, view.evidence.out_of_memory
    groups = [group for group in evidence.cgroups if group.oom_kills is not None]
    ours = [group for group in groups if group.oom_kills]
    killed = evidence.exit_signal == _SIGKILL or evidence.exit_code == 128 + _SIGKILL
    # A machine-wide count may include other programs; the control group's count is of this generator.
    counted = bool(ours) if groups else bool(delta) and killed
    if not limit and (delta == 0 or not counted):
        return None
    whom = "the generator" if killed else "a process of the generator"
    waits = ", and the rest waits for it" if view.alive and not killed else ""
    lines = (
        f"the container went beyond {limit}" if limit else "",
        f"{delta} OOM kills on this machine since the earlier sample" if delta else "",
        *(f"{one.path}: {one.oom_kills} OOM kills, limit {format_bytes(one.limit_bytes or 0)}" for one in ours),
        "the generator was ended by SIGKILL" if killed else "",
    )
    sure: Confidence = "high" if limit or (delta and (killed or ours)) else "medium"
    return Cause("oom_killed", f"the kernel killed {whom} because memory ran out{waits}", lines, sure)


def _waits(category: str, wait: Wait, does: str, sure: Confidence = "high") -> Cause:
    """The cause of a tree of which one process waits: what it waits for, and all that the kernel and Python say of it."""
    thread = wait.thread
    lines = (
        f"thread {thread.tid}: state {thread.state}, in {wait.call or '?'}"
        + (f" on {shown(wait.target)}" if wait.target else ""),
        *(f"kernel: {frame}" for frame in (thread.kernel_stack[:6] or filter(None, [thread.wait_channel]))),
        python_line(wait.process),
    )
    return Cause(category, f"{who(wait.process)} {does}", lines, sure)


def stopped_by_signal(view: View) -> Cause | None:
    """A process was stopped (SIGSTOP, Ctrl-Z, a background read from the terminal, a debugger)."""
    wait = view.leaf("stopped")
    if wait is None:
        return None
    tracer = wait.process.tracer_pid
    how = f"is held by a debugger (pid {tracer})" if tracer else "was stopped by a signal (state T) and never continued"
    return _waits("stopped_by_signal", wait, how)


def stale_lock(view: View) -> Cause | None:
    """It waits for a lock file whose holder has ended: by its log, a dead pid in the file, or its polling."""
    return _waits_for_file("stale_lock", view, stale=True)


def _waits_for_file(category: str, view: View, *, stale: bool) -> Cause | None:
    """Name the lock file that the tree waits for, if its waiting fits one."""
    locks = [lock for lock in view.evidence.lock_files if lock.stale is stale]
    ranked: list[tuple[Confidence, LockFile]] = [(sure, lock) for lock in locks if (sure := _how_sure(view, lock))]
    if not ranked:
        return None
    sure, lock = min(ranked, key=lambda one: _SURE.index(one[0]))
    path, made = shown(lock.path, 300), format_duration(float(round(lock.age_s)))
    if stale:
        ended = f"; pid {lock.pid}, which is in it, has ended" if lock.pid is not None else ""
        whose = f"which nobody alive holds{ended}"
    elif lock.holder:
        whose = f"held by {shown(lock.holder, 200)}"
    else:
        whose = f"and nobody alive is seen to hold it ({YOUNG})" if lock.why_held == YOUNG else lock.why_held
    content = f"pid {lock.pid} in it" if lock.pid is not None else f"{lock.size_bytes} bytes in it"
    lines = (
        f"{path}: {lock.why_held or 'open in no process'}, {content}",
        "" if lock.in_log else "it wakes up again and again and does nothing else, as one does that polls a file",
    )
    # The log may name it by a path from the working directory.
    said = quoted(view.log_line(re.compile(re.escape(lock.path.rpartition("/")[2])))) if lock.in_log else ()
    kind = "directory" if lock.is_directory else "file"
    return Cause(category, f"it waits for the lock {kind} {path}, made {made} ago, {whose}", lines, sure, said)


def _how_sure(view: View, lock: LockFile) -> Confidence | None:
    """How sure it is that the tree waits for a lock file; None if nothing says so."""
    died = any(one.status != 0 for one in view.evidence.ended)
    # A lock that is younger than the tree may be of one of its processes, which hold it still if none of them died.
    own = not died and lock.age_s < max((process.age_s for process in view.alive), default=0.0)
    sleeps = view.leaf("sleep") is not None
    if lock.in_log and not has_lock_name(lock.path):  # the line may speak of a file of data as well
        return "high" if lock.size_bytes <= _LOCK_BYTES and not own else None
    if lock.in_log or (lock.in_use and lock.holder and (view.polls or sleeps)):
        return "high"
    if lock.pid is not None and lock.stale and sleeps:
        return "medium"
    known = bool(lock.holder) or lock.pid is not None
    if not view.polls or lock.in_use or (own and not known):  # its own file
        return None
    if known or lock.path.rpartition("/")[2] in _BATONS or lock.path.endswith(".lck"):
        return "medium" if view.names_cache(lock.path) else "low"
    # The kernel's locks leave files of such names behind, too, and no directories.
    return "medium" if lock.is_directory or view.evidence.growth.kind == "never_started" else "low"


def waiting_for_lock(view: View) -> Cause | None:
    """A process waits for a file lock that another one holds."""
    alive = {process.pid: process for process in view.alive}
    lock = next((lock for lock in view.evidence.locks if lock.waiter_pid in alive), None)
    if lock is not None:
        also = ", itself one of the generator's" if lock.holder_in_tree else ""
        summary = f"waits for a lock on {shown(lock.path) or 'a file'}, held by {lock.holder}{also}"
        command = f"holder: {lock.holder_command}" if lock.holder_command else ""
        lines = (
            f"/proc/locks: {lock.kind}, waiter {lock.waiter_pid}, holder {lock.holder_pid or 'not visible'}",
            command,
        )
        return Cause("waiting_for_lock", f"{who(alive[lock.waiter_pid])} {summary}", lines)
    if wait := view.leaf("lock"):
        place = shown(wait.target) or "a file"
        return _waits("waiting_for_lock", wait, f"waits for a lock on {place}, held by a process not seen here")
    return _waits_for_file("waiting_for_lock", view, stale=False)


def memory_pressure(view: View) -> Cause | None:
    """Memory is so short that the processes mostly wait for pages."""
    faults = view.major_faults_per_s
    pressure = next((one for one in view.evidence.pressure if one.resource == "memory"), None)
    tight = [one for one in view.evidence.cgroups if (one.current_bytes or 0) > 0.9 * (one.limit_bytes or 1e30)]
    swapped = sum(process.swap_bytes or 0 for process in view.alive)
    resident = sum(process.resident_bytes or 0 for process in view.alive)
    pressed = pressure is not None and pressure.some_avg10 >= 5
    if faults is None or faults < 20:
        return None
    if not (pressed or (pressure is None and tight and faults >= 100) or swapped > resident):
        return None
    lines = (
        f"{format_bytes(resident)} resident, {format_bytes(swapped)} swapped out",
        f"/proc/pressure/memory: some {pressure.some_avg10:.0f} % over 10 s" if pressure else "",
        *(
            f"{one.path}: {format_bytes(one.current_bytes or 0)} of {format_bytes(one.limit_bytes or 0)}"
            for one in tight[:1]
        ),
    )
    summary = f"memory is too short: the generator waits for pages {faults:.0f} times a second"
    return Cause("memory_pressure", summary, lines, "high" if pressed and (tight or swapped) else "medium")


def waiting_for_device(view: View) -> Cause | None:
    """A thread waits for a character device, in ioctl, read or poll, or in state D with one open."""
    if wait := view.leaf("device"):
        return _waits(
            "waiting_for_device", wait, f"waits for the device {shown(wait.target)} ({wait.call or 'in the kernel'})"
        )
    # In state D the call need not name the device: an open one is suspected, if the thread does not wait for a file.
    for wait in view.leaves:
        device = next((file.target for file in wait.process.files if file.kind == "device"), "")
        if wait.kind == "disk" and device and not wait.target:
            does = f"waits for the device {shown(device)} ({wait.call or 'in the kernel'})"
            return _waits("waiting_for_device", wait, does, "medium")
    return None


def blocked_on_output_pipe(view: View) -> Cause | None:
    """A process writes to a pipe that no process reads."""
    wait = view.leaf("pipe_write")
    if wait is None:
        return None
    inode, fd = (wait.file.inode, wait.file.fd) if wait.file else (None, -1)
    reader = next((one for one in view.waits if one is not wait and inode and _reads(one.process, inode)), None)
    stream = f"{_STREAMS.get(fd, f'descriptor {fd}')}: the pipe is full and nobody reads it"
    named = f"; the reader is {who(reader.process)}" if reader else ""
    sure: Confidence = "high" if reader is None or reader.kind in _ASLEEP else "medium"
    return _waits("blocked_on_output_pipe", wait, f"cannot go on writing to {stream}{named}", sure)


def _reads(process: ProcessFacts, pipe: int) -> bool:
    return any(file.kind == "pipe" and file.inode == pipe and file.access == "r" for file in process.files)


def waiting_for_input(view: View) -> Cause | None:
    """A process reads its standard input or a terminal, and no input comes."""
    piped = (one for one in view.leaves if one.kind == "pipe_read" and one.file is not None and one.file.fd == 0)
    wait = view.leaf("input") or next(piped, None)
    source = shown(wait.target) or "standard input" if wait else ""
    return _waits("waiting_for_input", wait, f"waits for input from {source}") if wait else None


def waiting_for_network(view: View) -> Cause | None:
    """A thread waits for a peer over a socket."""
    wait = view.leaf("socket")
    if wait is None:
        return None
    socket = wait.socket
    if socket is None:
        return _waits("waiting_for_network", wait, f"waits on a socket ({wait.call})", "medium")
    if socket.state == "LISTEN":
        return _waits("waiting_for_network", wait, f"waits for somebody to connect to {shown(socket.local)}", "medium")
    if socket.family == "unix":
        end = shown(socket.local) or "(unnamed)"
        return _waits(
            "waiting_for_network", wait, f"waits for the process at the other end of the socket {end}", "medium"
        )
    return _waits("waiting_for_network", wait, f"waits for {shown(socket.remote)} ({socket.state})")


def compute_bound(view: View) -> Cause | None:
    """The generator computes and writes nothing."""
    cores, wanted = view.cpu_cores, view.wanted_cores
    if cores is None or max(cores, wanted or 0.0) < _BUSY_CORES:
        return None
    hottest = max(view.alive, key=lambda process: process.runnable_in_window_s or process.cpu_in_window_s or 0)
    stack = hot_stack(hottest)
    place = f" in {shown(stack[0])}" if stack else ""
    lines = (
        f"{hottest.cpu_in_window_s or 0:.1f} s of CPU, and {hottest.runnable_in_window_s or 0:.1f} s with the time that it "
        f"waited for one, in {view.window_s:.1f} s",
        *(f"python: {shown(frame)}" for frame in stack[:8]),
    )
    busy = f"{cores:.1f} cores busy for {format_duration(view.window_s)}"
    summary = f"{who(hottest)} computes{place}: {busy}, nothing written"
    return Cause("compute_bound", summary, lines, "high" if stack else "medium")


def deadlocked(view: View) -> Cause | None:
    """Every thread waits for another one of the same generator, and no CPU is used."""
    kinds, cores = {wait.kind for wait in view.leaves}, view.cpu_cores
    if not view.waits or not kinds <= {"futex", "pipe_read"} or kinds == {"pipe_read"}:  # a pipe from outside the tree
        return None
    if cores is not None and cores * view.window_s > max(_IDLE_CORES * view.window_s, _UNTOLD_CPU_S):
        return None
    futexes = [wait for wait in view.leaves if wait.kind == "futex"]
    waits = futexes or view.waits
    first, threads = who(waits[0].process), [thread for wait in waits for thread in wait.process.threads]
    all_wait = all(thread.syscall in ("futex", "") or "futex" in thread.wait_channel for thread in threads)
    what = f"the {len(waits)} processes wait for one another and use no CPU"
    if len(threads) == len(futexes) == 1:
        what = f"{first} waits for a lock that nobody is left to release"
    elif futexes:
        which = f"all {len(threads)} threads" if all_wait else "the threads"
        what = f"{which} of {first} wait for one another and use no CPU"
    lines = (
        f"{format_count(len(threads), 'thread')} in {format_count(len(waits), 'process', 'processes')}",
        *(f"{who(wait.process)} reads {shown(wait.target)}" for wait in waits[:5] if wait.target and not futexes),
        *(python_line(wait.process) for wait in futexes[:2]),
    )
    timed = any(wait.timed for wait in futexes)
    sure: Confidence = "high" if futexes and all_wait and not timed and cores is not None else "medium"
    return Cause("deadlocked", f"{what}: a deadlock", lines, sure)


def waiting_for_child(view: View) -> Cause | None:
    """A process waits for its child, and the child neither computes nor shows what it waits for."""
    if any(wait.kind not in _ASLEEP for wait in view.leaves):
        return None
    by_pid = {process.pid: process for process in view.alive}
    waiting = {wait.process.pid for wait in view.waits if wait.kind in ("child", "pipe_read")}
    leaf = next((leaf for leaf in view.leaves if leaf.process.parent_pid in waiting), None)
    if leaf is None:
        return None
    child, above = leaf.process, [by_pid[leaf.process.parent_pid]]
    while (parent := by_pid.get(above[-1].parent_pid)) is not None and parent not in above:
        above.append(parent)
    through = "".join(f", through {who(process)}" for process in above[:-1])
    argv = shown(" ".join(child.argv), 160) or shown(child.name)
    lines = (f"child: {argv}, alive for {format_duration(child.age_s)}", python_line(child))
    sleeps = f"which sleeps ({leaf.thread.syscall or leaf.kind})"
    summary = f"{who(above[-1])} waits for its child {who(child)}{through}, {sleeps}"
    # A loop sleeps by a new child again and again.
    return Cause("waiting_for_child", summary, lines, "low" if view.polls else "high")


def blocked_on_io(view: View) -> Cause | None:
    """A thread waits for a disk or a network file system in the kernel."""
    wait = view.leaf("disk")
    busy = (view.read_bytes_per_s or 0) * view.window_s + (view.written_bytes or 0) >= 1 << 20
    if wait is None or (busy and wait.thread.state != "D"):
        return None
    call = (wait.thread.syscall or "a kernel call") + (f" on {shown(wait.target)}" if wait.target else "")
    sure: Confidence = "low" if busy else "high" if wait.thread.state == "D" else "medium"
    return _waits("blocked_on_io", wait, f"waits in the kernel for storage ({call})", sure)


def never_started(view: View) -> Cause | None:
    """Nothing was ever written, and no evidence shows why."""
    growth = view.evidence.growth
    silent = growth.first_write_s is None and not growth.bytes_written
    if growth.kind != "never_started" and (not silent or growth.kind in ("never_ready", "unwatched")):
        return None
    doings = _doings(view)
    return Cause("never_started", f"{doings[0]}; it never wrote a byte", doings, "medium" if view.alive else "low")


def never_ready(view: View) -> Cause | None:
    """The server finished writing and was never ready, and no other evidence shows why."""
    growth = view.evidence.growth
    if growth.kind != "never_ready":
        return None
    silent = f"the server was silent for {format_duration(round(growth.pause_s))} and never became ready"
    summary = f"{silent}: {shown(growth.unready or 'it did not answer', 300)}"
    return Cause("never_ready", summary, _doings(view), "medium")


def unknown(view: View) -> Cause:
    """No rule fits; says what each process does and where it sleeps."""
    doings = _doings(view)
    return Cause("unknown", f"{doings[0]}; the cause is not known", doings, "low")


def _doings(view: View) -> tuple[str, ...]:
    """What each process does, at most ten."""
    doings = tuple(map(_doing, (view.leaves or view.waits)[:10]))
    return doings or ("no process of the generator is left",)


def _doing(wait: Wait) -> str:
    words = {"sleep": "sleeps", "running": "runs"}
    text = f"{who(wait.process)} {words.get(wait.kind, 'waits (' + wait.kind.replace('_', ' ') + ')')}"
    text += f" in {wait.call}" if wait.call else ""
    text += f" on {shown(wait.target)}" if wait.target else ""
    # Next to the cause, the place of the sleep is the best clue: a loop that waits for something sleeps in it.
    frames = hot_stack(wait.process)
    return f"{text}, at {shown(frames[0], 60)}" if frames else text
