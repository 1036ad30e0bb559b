"""Rules for causes that lie in the processes: stopped, locked, waiting, computing, killed; pure.

Each takes the view of an evidence and returns the cause, or None where it does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.evidence.causes import Cause, Confidence
from prefect_cachewatch.evidence.view import View, describe_holder, hot_stack, quoted, shown, who
from prefect_cachewatch.evidence.waits import Wait, WaitKind
from prefect_cachewatch.supervise.lockfiles import YOUNG, LockFile, has_lock_name

_IDLE_CORES = 0.02
# /proc counts CPU in hundredths of a second: a process that wakes up as one ends is charged all of it.
_UNTOLD_CPU_S = 0.025
_BUSY_CORES = 0.5
_SIGKILL = 9
_SURE = ("high", "medium", "low")
_STREAMS = {1: "its standard output", 2: "its standard error"}
_ASLEEP = (WaitKind.SLEEP, WaitKind.UNKNOWN, WaitKind.CHILD)
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
    lines = [f"the container went beyond {limit}" if limit else ""]
    lines.append(f"{delta} OOM kills on this machine since the earlier sample" if delta else "")
    for group in ours:
        most = format_bytes(group.limit_bytes) if group.limit_bytes else "none"
        lines.append(f"{group.path}: {group.oom_kills} OOM kills, limit {most}")
    lines.append("the generator was ended by SIGKILL" if killed else "")
    sure: Confidence = "high" if limit or (delta and (killed or ours)) else "medium"
    return Cause("oom_killed", f"the kernel killed {whom} because memory ran out{waits}", tuple(lines), sure)


def stopped_by_signal(view: View) -> Cause | None:
    """A process was stopped (SIGSTOP, Ctrl-Z, a background read from the terminal, a debugger)."""
    wait = view.leaf(WaitKind.STOPPED)
    if wait is None:
        return None
    process, call = wait.process, wait.thread.syscall
    stopped = sum(one.state in "Tt" for one in view.alive)
    if process.tracer_pid:
        summary = f"{who(process)} is held by a debugger (pid {process.tracer_pid})"
        return Cause("stopped_by_signal", summary, (f"state {process.state}, TracerPid {process.tracer_pid}",))
    summary = f"{who(process)} was stopped by a signal (state T) and never continued"
    lines = (f"{stopped} of {len(view.alive)} processes stopped", f"it last was in {call}" if call else "")
    return Cause("stopped_by_signal", summary, (*lines, _python_line(wait)))


def stale_lock(view: View) -> Cause | None:
    """It waits for a lock file whose holder has ended: by its log, its Python stack, a dead pid in the file, or its polling."""
    return _waits_for_file("stale_lock", view, [lock for lock in view.evidence.lock_files if lock.stale])


def _waits_for_file(category: str, view: View, locks: Sequence[LockFile]) -> Cause | None:
    """Name the lock file that the tree waits for, if its waiting fits one."""
    _, frame = _lock_frame(view)
    ranked: list[tuple[Confidence, LockFile]] = [
        (sure, lock) for lock in locks if (sure := _how_sure(view, lock, bool(frame)))
    ]
    if not ranked:
        return None
    sure, lock = min(ranked, key=lambda one: _SURE.index(one[0]))
    path, kind = shown(lock.path, 300), "directory" if lock.is_directory else "file"
    name = lock.path.rpartition("/")[2]  # the log may name it by a path from the working directory
    if lock.stale:
        ended = f"; pid {lock.pid}, which is in it, has ended" if lock.pid is not None else ""
        whose = f"which nobody alive holds{ended}"
    elif lock.holder:
        whose = f"held by {shown(lock.holder, 200)}"
    else:
        whose = f"and nobody alive is seen to hold it ({YOUNG})" if lock.why_held == YOUNG else lock.why_held
    content = "" if lock.size_bytes else ", nothing in it"
    content = f", pid {lock.pid} in it" if lock.pid is not None else content
    lines = (
        f"{path}: written {format_duration(lock.age_s)} ago, {lock.why_held or 'open in no process'}{content}",
        f"python: {frame}" if frame else "",
        "" if lock.in_log else "it wakes up again and again and does nothing else, as one does that polls a file",
    )
    made = format_duration(float(round(lock.age_s)))
    said = quoted(view.log_line(re.compile(re.escape(name)))) if lock.in_log else ()
    return Cause(category, f"it waits for the lock {kind} {path}, made {made} ago, {whose}", lines, sure, said)


def _how_sure(view: View, lock: LockFile, has_frame: bool) -> Confidence | None:
    """How sure it is that the tree waits for a lock file; None if nothing says so."""
    died = any(one.status != 0 for one in view.evidence.ended)
    # A lock that is younger than the tree may be of one of its processes, which hold it still if none of them died.
    own = not died and lock.age_s < max((process.age_s for process in view.alive), default=0.0)
    sleeps = view.leaf(WaitKind.SLEEP) is not None
    if lock.in_log and not has_lock_name(lock.path):  # the line may speak of a file of data as well
        return "high" if lock.size_bytes <= _LOCK_BYTES and not own else None
    if lock.in_log or (lock.in_use and lock.holder and (view.polls or sleeps)):
        return "high"
    if has_frame or (lock.pid is not None and lock.stale and sleeps):
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
        since = f", since {lock.holder_since}" if lock.holder_since else ""
        holder = f"pid {lock.holder_pid} ({shown(lock.holder_name, 40)}{since})"
        if lock.holder_pid <= 0:
            holder = "a process that is not visible from here (another container or host)"
        also = ", itself one of the generator's" if lock.holder_in_tree else ""
        place = shown(lock.path) if lock.path else "a file"
        line = f"/proc/locks: {lock.kind}, waiter {lock.waiter_pid}, holder {lock.holder_pid or 'not visible'}"
        lines = (line, f"holder: {describe_holder(lock)}" if lock.holder_command else "")
        summary = f"{who(alive[lock.waiter_pid])} waits for a lock on {place}, held by {holder}{also}"
        return Cause("waiting_for_lock", summary, lines)
    if wait := view.leaf(WaitKind.LOCK):
        place = shown(wait.target) or "a file"
        summary = f"{who(wait.process)} waits for a lock on {place}, held by a process not seen here"
        return Cause("waiting_for_lock", summary, (wait.told,))
    held = _waits_for_file("waiting_for_lock", view, [lock for lock in view.evidence.lock_files if not lock.stale])
    tries, frame = _lock_frame(view)
    if held is None and tries:
        summary = f"{tries} tries again and again for a lock file (filelock)"
        return Cause("waiting_for_lock", summary, (f"python: {frame}",), "medium")
    return held


def _lock_frame(view: View) -> tuple[str, str]:
    """The process and frame of a Python thread that tries again and again for a lock file."""
    for process in view.alive:
        for frame in (frame for thread in process.python_threads for frame in thread.frames[:6]):
            if "filelock" in frame and "acquire" in frame.split(" ", 1)[0]:
                return who(process), frame
    return "", ""


def memory_pressure(view: View) -> Cause | None:
    """Memory is so short that the processes mostly wait for pages."""
    faults, pressures = view.major_faults_per_s, view.evidence.pressure
    pressure = next((one for one in pressures if one.resource == "memory"), None)
    tight = [one for one in view.evidence.cgroups if (one.current_bytes or 0) > 0.9 * (one.limit_bytes or 1e30)]
    swapped = sum(process.swap_bytes or 0 for process in view.alive)
    resident = sum(process.resident_bytes or 0 for process in view.alive)
    pressed = pressure is not None and pressure.some_avg10 >= 5
    if faults is None or faults < 20:
        return None
    if not (pressed or (pressure is None and tight and faults >= 100) or swapped > resident):
        return None
    lines = [f"{faults:.0f} page faults a second needed the disk"]
    lines.append(f"{format_bytes(resident)} resident, {format_bytes(swapped)} swapped out")
    if pressure:
        some, full = pressure.some_avg10, pressure.full_avg10
        lines.append(f"/proc/pressure/memory: some {some:.0f} %, full {full:.0f} % over 10 s")
    for group in tight[:1]:
        current, limit = format_bytes(group.current_bytes or 0), format_bytes(group.limit_bytes or 0)
        lines.append(f"{group.path}: {current} of {limit}")
    summary = f"memory is too short: the generator waits for pages {faults:.0f} times a second"
    return Cause("memory_pressure", summary, tuple(lines), "high" if pressed and (tight or swapped) else "medium")


def waiting_for_device(view: View) -> Cause | None:
    """A thread waits for a character device, in ioctl, read or poll, or in state D with one open."""
    wait = view.leaf(WaitKind.DEVICE)
    target = wait.target if wait else ""
    # In state D the call need not name the device: an open one is suspected, if the thread does not wait for a file.
    for leaf in view.leaves if wait is None else ():
        device = next((file for file in leaf.process.files if file.kind == "device"), None)
        if leaf.kind is WaitKind.DISK and device is not None and not leaf.target:
            wait, target = leaf, device.target
            break
    if wait is None:
        return None
    call = wait.thread.syscall
    summary = f"{who(wait.process)} waits for the device {shown(target)} ({call or 'in the kernel'})"
    lines = _in_the_kernel(wait, f"{call or '?'} on {shown(target)}")
    return Cause("waiting_for_device", summary, lines, "high" if wait.target else "medium")


def blocked_on_output_pipe(view: View) -> Cause | None:
    """A process writes to a pipe that no process reads."""
    wait = view.leaf(WaitKind.PIPE_WRITE)
    if wait is None:
        return None
    inode, fd = (wait.file.inode, wait.file.fd) if wait.file else (None, None)
    readers = [
        other
        for other in view.waits
        if inode is not None and other.process.pid != wait.process.pid
        if any(file.kind == "pipe" and file.inode == inode and "r" in file.access for file in other.process.files)
    ]
    stream = _STREAMS.get(fd if fd is not None else -1, f"descriptor {fd}")
    reader = f"; the reader is {who(readers[0].process)}" if readers else ""
    summary = f"{who(wait.process)} cannot go on writing to {stream}: the pipe is full and nobody reads it{reader}"
    sure: Confidence = "high" if not readers or readers[0].kind in _ASLEEP else "medium"
    return Cause("blocked_on_output_pipe", summary, (f"{wait.told} on {shown(wait.target)}",), sure)


def waiting_for_input(view: View) -> Cause | None:
    """A process reads its standard input or a terminal, and no input comes."""
    piped = [one for one in view.leaves if one.kind is WaitKind.PIPE_READ and one.file is not None and one.file.fd == 0]
    wait = view.leaf(WaitKind.INPUT) or next(iter(piped), None)
    if wait is None:
        return None
    source, fd = shown(wait.target) or "standard input", wait.file.fd if wait.file else "?"
    lines = (f"{wait.told} on descriptor {fd} ({source})", _python_line(wait))
    return Cause("waiting_for_input", f"{who(wait.process)} waits for input from {source}", lines)


def waiting_for_network(view: View) -> Cause | None:
    """A thread waits for a peer over a socket."""
    wait = view.leaf(WaitKind.SOCKET)
    if wait is None:
        return None
    socket = wait.socket
    if socket is None:
        what, line = f"waits on a socket ({wait.call})", f"{wait.told} on {shown(wait.target) or 'a socket'}"
    else:
        local, remote = shown(socket.local), shown(socket.remote)
        what = f"waits for {remote} ({socket.state})"
        if socket.state == "LISTEN":
            what = f"waits for somebody to connect to {local}"
        elif socket.family == "unix":
            what = f"waits for the process at the other end of the socket {local or '(unnamed)'}"
        queues = f"{socket.receive_queue_bytes} bytes to read, {socket.send_queue_bytes} to send"
        line = f"{wait.told}: {socket.family} {local} -> {remote or '(none)'}, {socket.state}, {queues}"
    sure: Confidence = "high" if socket and socket.family != "unix" and socket.state != "LISTEN" else "medium"
    return Cause("waiting_for_network", f"{who(wait.process)} {what}", (line, _python_line(wait)), sure)


def compute_bound(view: View) -> Cause | None:
    """The generator computes and writes nothing."""
    cores, wanted = view.cpu_cores, view.wanted_cores
    if cores is None or max(cores, wanted or 0.0) < _BUSY_CORES:
        return None
    hottest = max(view.alive, key=lambda process: process.runnable_in_window_s or process.cpu_in_window_s or 0)
    starved = wanted is not None and cores < 0.5 * wanted
    late = (
        f"; it waited for a CPU for {hottest.runnable_in_window_s or 0:.1f} s: the machine is busy" if starved else ""
    )
    stack = hot_stack(hottest)
    place = f" in {shown(stack[0])}" if stack else ""
    busy = f"{cores:.1f} cores busy for {format_duration(view.window_s)}"
    lines = (
        f"{hottest.cpu_in_window_s or 0:.1f} s of CPU in {view.window_s:.1f} s{late}",
        *(f"python: {shown(frame)}" for frame in stack[:8]),
    )
    summary = f"{who(hottest)} computes{place}: {busy}, nothing written"
    return Cause("compute_bound", summary, lines, "high" if stack else "medium")


def deadlocked(view: View) -> Cause | None:
    """Every thread waits for another one of the same generator, and no CPU is used."""
    if not view.waits or not {wait.kind for wait in view.leaves} <= {WaitKind.FUTEX, WaitKind.PIPE_READ}:
        return None
    cores = view.cpu_cores
    if cores is not None and cores * view.window_s > max(_IDLE_CORES * view.window_s, _UNTOLD_CPU_S):
        return None
    futexes = [wait for wait in view.leaves if wait.kind is WaitKind.FUTEX]
    if not futexes and view.leaves:
        return None  # a pipe from outside the tree
    waits = futexes or view.waits
    first, threads = who(waits[0].process), [thread for wait in waits for thread in wait.process.threads]
    all_wait = all(thread.syscall in ("futex", "") or "futex" in thread.wait_channel for thread in threads)
    what = f"the {len(waits)} processes wait for one another and use no CPU"
    if len(threads) == len(futexes) == 1:
        what = f"{first} waits for a lock that nobody is left to release"
    elif futexes:
        which = f"all {len(threads)} threads" if all_wait else "the threads"
        what = f"{which} of {first} wait for one another and use no CPU"
    in_futex = sum("futex" in thread.syscall + thread.wait_channel for thread in threads)
    count = f"{format_count(len(threads), 'thread')} in {format_count(len(waits), 'process', 'processes')}"
    lines = (
        f"{count}, {in_futex} of them in futex",
        f"CPU: {cores:.3f} cores in {view.window_s:.1f} s" if cores is not None else "CPU: unknown",
        *(f"{who(wait.process)} reads {shown(wait.target)}" for wait in waits[:5] if not futexes),
        *map(_python_line, futexes[:2]),
    )
    timed = any(wait.timed for wait in futexes)
    sure: Confidence = "high" if futexes and all_wait and not timed and cores is not None else "medium"
    return Cause("deadlocked", f"{what}: a deadlock", lines, sure)


def waiting_for_child(view: View) -> Cause | None:
    """A process waits for its child, and the child neither computes nor shows what it waits for."""
    if any(wait.kind not in _ASLEEP for wait in view.leaves):
        return None
    by_pid = {process.pid: process for process in view.alive}
    waiting = {wait.process.pid for wait in view.waits if wait.kind in (WaitKind.CHILD, WaitKind.PIPE_READ)}
    leaf = next((leaf for leaf in view.leaves if leaf.process.parent_pid in waiting), None)
    if leaf is None:
        return None
    child, above = leaf.process, [by_pid[leaf.process.parent_pid]]
    while (parent := by_pid.get(above[-1].parent_pid)) is not None and parent not in above:
        above.append(parent)
    argv = shown(" ".join(child.argv), 160) or shown(child.name)
    through = "".join(f", through {who(process)}" for process in above[:-1])
    lines = (
        f"child: {argv}, alive for {format_duration(child.age_s)}",
        f"CPU of the child in the window: {child.cpu_in_window_s or 0:.1f} s",
        _python_line(leaf),
    )
    sleeps = f"which sleeps ({leaf.thread.syscall or leaf.kind.value})"
    summary = f"{who(above[-1])} waits for its child {who(child)}{through}, {sleeps}"
    # A loop sleeps by a new child again and again.
    return Cause("waiting_for_child", summary, lines, "low" if view.polls else "high")


def never_started(view: View) -> Cause | None:
    """Nothing was ever written, and no evidence shows why."""
    growth = view.evidence.growth
    silent = growth.first_write_s is None and not growth.bytes_written
    if growth.kind != "never_started" and (not silent or growth.kind in ("never_ready", "unwatched")):
        return None
    first, *_ = doings = _doings(view)
    return Cause("never_started", f"{first}; it never wrote a byte", doings, "medium" if view.alive else "low")


def never_ready(view: View) -> Cause | None:
    """The server finished writing and was never ready, and no other evidence shows why."""
    growth = view.evidence.growth
    if growth.kind != "never_ready":
        return None
    silent = f"the server was silent for {format_duration(round(growth.pause_s))} and never became ready"
    summary = f"{silent}: {shown(growth.unready or 'it did not answer', 300)}"
    return Cause("never_ready", summary, _doings(view), "medium")


def unknown(view: View) -> Cause:
    """No rule fits; says what each process does."""
    return Cause("unknown", f"{_doings(view)[0]}; the cause is not known", _doings(view), "low")


def blocked_on_io(view: View) -> Cause | None:
    """A thread waits for a disk or a network file system in the kernel."""
    wait = view.leaf(WaitKind.DISK)
    busy = (view.read_bytes_per_s or 0) * view.window_s + (view.written_bytes or 0) >= 1 << 20
    if wait is None or (busy and wait.thread.state != "D"):
        return None
    call = wait.thread.syscall or "a kernel call"
    call += f" on {shown(wait.target)}" if wait.target else ""
    summary = f"{who(wait.process)} waits in the kernel for storage ({call})"
    sure: Confidence = "low" if busy else "high" if wait.thread.state == "D" else "medium"
    return Cause("blocked_on_io", summary, _in_the_kernel(wait, call), sure)


def _in_the_kernel(wait: Wait, call: str) -> tuple[str, ...]:
    thread = wait.thread
    line = f"thread {thread.tid}: state {thread.state}, {call}, in {thread.wait_channel or 'the kernel'}"
    return (line, *(f"kernel: {frame}" for frame in thread.kernel_stack[:6]))


def _doings(view: View) -> tuple[str, ...]:
    """What each process does, at most ten."""
    doings = tuple(map(_doing, (view.leaves or view.waits)[:10]))
    return doings or ("no process of the generator is left",)


def _doing(wait: Wait) -> str:
    words = {WaitKind.SLEEP: "sleeps", WaitKind.RUNNING: "runs"}
    text = f"{who(wait.process)} {words.get(wait.kind, 'waits (' + wait.kind.value.replace('_', ' ') + ')')}"
    text += f" in {wait.call}" if wait.call else ""
    text += f" on {shown(wait.target)}" if wait.target else ""
    # Next to the cause, the place of the sleep is the best clue: a loop that waits for something sleeps in it.
    frames = hot_stack(wait.process)
    return f"{text}, at {shown(frames[0], 60)}" if frames else text


def _python_line(wait: Wait) -> str:
    frames = hot_stack(wait.process)
    return f"python: {' < '.join(shown(frame, 60) for frame in frames[:4])}" if frames else ""
