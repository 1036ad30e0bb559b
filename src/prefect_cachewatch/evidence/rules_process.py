"""Rules for causes that lie in the processes: stopped, locked, waiting, computing, killed; pure.

Each takes the view of an evidence and returns the cause, or None where it does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.evidence.causes import Cause, Confidence
from prefect_cachewatch.evidence.model import ProcessFacts
from prefect_cachewatch.evidence.view import View, describe_holder, hot_stack, quoted, shown, who
from prefect_cachewatch.evidence.waits import Wait, WaitKind
from prefect_cachewatch.supervise.lockfiles import YOUNG, LockFile, has_lock_name

_IDLE_CORES = 0.02
# /proc counts CPU in hundredths of a second: a process that wakes up as one ends is charged all of it.
_UNTOLD_CPU_S = 0.025
_BUSY_CORES = 0.5
_SIGKILL = 9
_SURE = ("high", "medium", "low")
# Names that lock by being there; an empty *.lock may as well be what a lock by flock(2) left behind.
_BATONS = ("lock", ".lock", "baton")
_LOCK_BYTES = 4096  # a lock holds nothing, or who made it


def oom_killed(view: View) -> Cause | None:
    """The kernel killed a process of the tree because memory ran out."""
    evidence = view.evidence
    delta = evidence.oom_kills_in_window
    groups = [group for group in evidence.cgroups if group.oom_kills is not None]
    ours = sum(group.oom_kills or 0 for group in groups)
    killed = evidence.exit_signal == _SIGKILL or evidence.exit_code == 128 + _SIGKILL
    # A machine-wide count may include other programs; the control group's count is of this generator.
    counted = bool(ours) if groups else bool(delta) and killed
    if not evidence.out_of_memory and (delta == 0 or not counted):
        return None
    lines = [f"the container went beyond {evidence.out_of_memory}"] if evidence.out_of_memory else []
    lines += [f"{delta} OOM kills on this machine since the earlier sample"] if delta else []
    lines += [
        f"{group.path}: {group.oom_kills} OOM kills, limit "
        f"{format_bytes(group.limit_bytes) if group.limit_bytes else 'none'}"
        for group in groups
        if group.oom_kills
    ]
    if killed:
        lines.append("the generator was ended by SIGKILL")
    waits = ", and the rest waits for it" if view.alive else ""
    return Cause(
        "oom_killed",
        "the kernel killed the generator because memory ran out"
        if killed
        else f"the kernel killed a process of the generator because memory ran out{waits}",
        tuple(lines),
        "high" if evidence.out_of_memory or (delta and (killed or ours)) else "medium",
    )


def stopped_by_signal(view: View) -> Cause | None:
    """A process was stopped (SIGSTOP, Ctrl-Z, a background read from the terminal, a debugger)."""
    wait = view.leaf(WaitKind.STOPPED)
    if wait is None:
        return None
    process = wait.process
    stopped = [p for p in view.alive if p.state in "Tt"]
    if process.tracer_pid:
        return Cause(
            "stopped_by_signal",
            f"{who(process)} is held by a debugger (pid {process.tracer_pid})",
            (f"state {process.state}, TracerPid {process.tracer_pid}",),
        )
    return Cause(
        "stopped_by_signal",
        f"{who(process)} was stopped by a signal (state T) and never continued",
        (
            f"{len(stopped)} of {len(view.alive)} processes stopped",
            *([f"it last was in {wait.thread.syscall}"] if wait.thread.syscall else []),
            *_python_line(wait),
        ),
    )


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
        whose = "which nobody alive holds" + (
            f"; pid {lock.pid}, which is in it, has ended" if lock.pid is not None else ""
        )
    elif lock.holder:
        whose = f"held by {shown(lock.holder, 200)}"
    elif lock.why_held == YOUNG:
        whose = f"and nobody alive is seen to hold it ({YOUNG})"
    else:
        whose = lock.why_held
    return Cause(
        category,
        f"it waits for the lock {kind} {path}, made {format_duration(float(round(lock.age_s)))} ago, {whose}",
        (
            f"{path}: written {format_duration(lock.age_s)} ago, {lock.why_held or 'open in no process'}"
            + (f", pid {lock.pid} in it" if lock.pid is not None else ", nothing in it" if not lock.size_bytes else ""),
            f"python: {frame}" if frame else "",
            "" if lock.in_log else "it wakes up again and again and does nothing else, as one does that polls a file",
        ),
        sure,
        quoted(view.log_line(re.compile(re.escape(name)))) if lock.in_log else (),
    )


def _how_sure(view: View, lock: LockFile, has_frame: bool) -> Confidence | None:
    """How sure it is that the tree waits for a lock file; None if nothing says so."""
    name = lock.path.rsplit("/", 1)[-1]
    if lock.in_log and not has_lock_name(lock.path):  # the line may speak of a file of data as well
        return "high" if lock.size_bytes <= _LOCK_BYTES and not _may_be_its_own(view, lock) else None
    if lock.in_log or (lock.in_use and lock.holder and (view.polls or view.leaf(WaitKind.SLEEP))):
        return "high"
    if has_frame or (lock.pid is not None and lock.stale and view.leaf(WaitKind.SLEEP)):
        return "medium"
    if not view.polls or lock.in_use:  # its own file
        return None
    if not lock.holder and lock.pid is None and _may_be_its_own(view, lock):
        return None
    if lock.holder or lock.pid is not None or name in _BATONS or name.endswith(".lck"):
        return "medium" if view.names_cache(lock.path) else "low"
    # The kernel's locks leave files of such names behind, too, and no directories.
    return "medium" if lock.is_directory or view.evidence.growth.kind == "never_started" else "low"


def _may_be_its_own(view: View, lock: LockFile) -> bool:
    """Whether a process of the tree may have made a lock and hold it still: it is younger, and none of them died."""
    died = any(one.status != 0 for one in view.evidence.ended)
    return not died and lock.age_s < max((process.age_s for process in view.alive), default=0.0)


def waiting_for_lock(view: View) -> Cause | None:
    """A process waits for a file lock that another one holds."""
    for lock in view.evidence.locks:
        waiter = next((p for p in view.alive if p.pid == lock.waiter_pid), None)
        if waiter is None:
            continue
        place = shown(lock.path) if lock.path else "a file"
        since = f", since {lock.holder_since}" if lock.holder_since else ""
        holder = (
            f"pid {lock.holder_pid} ({shown(lock.holder_name, 40)}{since})"
            if lock.holder_pid > 0
            else "a process that is not visible from here (another container or host)"
        )
        also = ", itself one of the generator's" if lock.holder_in_tree else ""
        return Cause(
            "waiting_for_lock",
            f"{who(waiter)} waits for a lock on {place}, held by {holder}{also}",
            (
                f"/proc/locks: {lock.kind}, waiter {lock.waiter_pid}, holder {lock.holder_pid or 'not visible'}",
                *([f"holder: {describe_holder(lock)}"] if lock.holder_command else []),
            ),
        )
    held = _waits_for_file("waiting_for_lock", view, [lock for lock in view.evidence.lock_files if not lock.stale])
    wait = view.leaf(WaitKind.LOCK)
    if held is not None and wait is None:
        return held
    if wait:
        return Cause(
            "waiting_for_lock",
            f"{who(wait.process)} waits for a lock on {shown(wait.target) or 'a file'}, held by a process not seen here",
            (wait.told,),
        )
    process, frame = _lock_frame(view)
    if process is None:
        return None
    tries = f"{who(process)} tries again and again for a lock file (filelock)"
    return Cause("waiting_for_lock", tries, (f"python: {frame}",), "medium")


def _lock_frame(view: View) -> tuple[ProcessFacts | None, str]:
    """The process and frame of a Python thread that tries again and again for a lock file."""
    for process in view.alive:
        frames = [frame for thread in process.python_threads for frame in thread.frames[:6]]
        frame = next((f for f in frames if "filelock" in f and "acquire" in f.split(" ", 1)[0]), "")
        if frame:
            return process, frame
    return None, ""


def memory_pressure(view: View) -> Cause | None:
    """Memory is so short that the processes mostly wait for pages."""
    faults = view.major_faults_per_s
    pressure = next((p for p in view.evidence.pressure if p.resource == "memory"), None)
    full_group = next(
        (g for g in view.evidence.cgroups if g.limit_bytes and (g.current_bytes or 0) > 0.9 * g.limit_bytes),
        None,
    )
    swapped = sum(process.swap_bytes or 0 for process in view.alive)
    resident = sum(process.resident_bytes or 0 for process in view.alive)
    if faults is None or faults < 20:
        return None
    pressed = pressure is not None and pressure.some_avg10 >= 5
    if not pressed and not (pressure is None and full_group and faults >= 100) and swapped <= resident:
        return None
    lines = [
        f"{faults:.0f} page faults a second needed the disk",
        f"{format_bytes(resident)} resident, {format_bytes(swapped)} swapped out",
    ]
    if pressure:
        lines.append(
            f"/proc/pressure/memory: some {pressure.some_avg10:.0f} %, full {pressure.full_avg10:.0f} % over 10 s"
        )
    if full_group:
        lines.append(
            f"{full_group.path}: {format_bytes(full_group.current_bytes or 0)} of {format_bytes(full_group.limit_bytes or 0)}"
        )
    return Cause(
        "memory_pressure",
        f"memory is too short: the generator waits for pages {faults:.0f} times a second",
        tuple(lines),
        "high" if pressed and (full_group or swapped) else "medium",
    )


def waiting_for_device(view: View) -> Cause | None:
    """A thread waits for a character device, in ioctl, read or poll, or in state D with one open."""
    wait = view.leaf(WaitKind.DEVICE)
    confidence: Confidence = "high"
    # In state D the call need not name the device: an open one is suspected, if the thread does not wait for a file.
    for leaf in view.leaves if wait is None else ():
        devices = [file for file in leaf.process.files if file.kind == "device"]
        if leaf.kind is WaitKind.DISK and devices and not leaf.target:
            wait, confidence = replace(leaf, target=devices[0].target), "medium"
            break
    if wait is None:
        return None
    thread = wait.thread
    return Cause(
        "waiting_for_device",
        f"{who(wait.process)} waits for the device {shown(wait.target)} ({thread.syscall or 'in the kernel'})",
        (
            f"thread {thread.tid}: state {thread.state}, {thread.syscall or '?'} on {shown(wait.target)}, "
            f"in {thread.wait_channel or 'the kernel'}",
            *(f"kernel: {frame}" for frame in thread.kernel_stack[:6]),
        ),
        confidence,
    )


def blocked_on_output_pipe(view: View) -> Cause | None:
    """A process writes to a pipe that no process reads."""
    wait = view.leaf(WaitKind.PIPE_WRITE)
    if wait is None:
        return None
    inode = wait.file.inode if wait.file else None
    readers = [
        process
        for process in view.alive
        if process.pid != wait.process.pid
        for file in process.files
        if file.kind == "pipe" and inode is not None and file.inode == inode and "r" in file.access
    ]
    fd = wait.file.fd if wait.file else None
    stream = {1: "its standard output", 2: "its standard error"}.get(fd if fd is not None else -1, f"descriptor {fd}")
    reader = f"; the reader is {who(readers[0])}" if readers else ""
    kinds = {w.kind for w in view.waits if readers and w.process.pid == readers[0].pid}
    return Cause(
        "blocked_on_output_pipe",
        f"{who(wait.process)} cannot go on writing to {stream}: the pipe is full and nobody reads it{reader}",
        (f"{wait.told} on {shown(wait.target)}",),
        "high" if not readers or kinds <= {WaitKind.SLEEP, WaitKind.UNKNOWN, WaitKind.CHILD} else "medium",
    )


def waiting_for_input(view: View) -> Cause | None:
    """A process reads its standard input or a terminal, and no input comes."""
    wait = view.leaf(WaitKind.INPUT)
    if wait is None:
        piped = (w for w in view.leaves if w.kind is WaitKind.PIPE_READ and w.file is not None and w.file.fd == 0)
        wait = next(piped, None)
    if wait is None:
        return None
    source = shown(wait.target) or "standard input"
    fd = wait.file.fd if wait.file else "?"
    lines = (f"{wait.told} on descriptor {fd} ({source})", *_python_line(wait))
    return Cause("waiting_for_input", f"{who(wait.process)} waits for input from {source}", lines)


def waiting_for_network(view: View) -> Cause | None:
    """A thread waits for a peer over a socket."""
    wait = view.leaf(WaitKind.SOCKET)
    if wait is None:
        return None
    socket = wait.socket
    if socket is None:
        lines = (f"{wait.told} on {shown(wait.target) or 'a socket'}", *_python_line(wait))
        return Cause("waiting_for_network", f"{who(wait.process)} waits on a socket ({wait.call})", lines, "medium")
    if socket.state == "LISTEN":
        what = f"waits for somebody to connect to {shown(socket.local)}"
    elif socket.family == "unix":
        what = f"waits for the process at the other end of the socket {shown(socket.local) or '(unnamed)'}"
    else:
        what = f"waits for {shown(socket.remote)} ({socket.state})"
    line = (
        f"{wait.told}: {socket.family} {shown(socket.local)} -> {shown(socket.remote) or '(none)'}, {socket.state}, "
        f"{socket.receive_queue_bytes} bytes to read, {socket.send_queue_bytes} to send"
    )
    sure = socket.family != "unix" and socket.state != "LISTEN"
    lines = (line, *_python_line(wait))
    return Cause("waiting_for_network", f"{who(wait.process)} {what}", lines, "high" if sure else "medium")


def compute_bound(view: View) -> Cause | None:
    """The generator computes and writes nothing."""
    cores, wanted = view.cpu_cores, view.wanted_cores
    if cores is None or max(cores, wanted or 0.0) < _BUSY_CORES:
        return None
    hottest = max(view.alive, key=lambda process: process.runnable_in_window_s or process.cpu_in_window_s or 0)
    starved = wanted is not None and cores < 0.5 * wanted
    stack = hot_stack(hottest)
    place = f" in {shown(stack[0])}" if stack else ""
    return Cause(
        "compute_bound",
        f"{who(hottest)} computes{place}: {cores:.1f} cores busy for {format_duration(view.window_s)}, nothing written",
        (
            f"{hottest.cpu_in_window_s or 0:.1f} s of CPU in {view.window_s:.1f} s"
            + (
                f"; it waited for a CPU for {hottest.runnable_in_window_s or 0:.1f} s: the machine is busy"
                if starved
                else ""
            ),
            *(f"python: {shown(frame)}" for frame in stack[:8]),
        ),
        "high" if stack else "medium",
    )


def deadlocked(view: View) -> Cause | None:
    """Every thread waits for another one of the same generator, and no CPU is used."""
    kinds = {wait.kind for wait in view.leaves}
    if not view.waits or not kinds <= {WaitKind.FUTEX, WaitKind.PIPE_READ}:
        return None
    if view.cpu_cores is not None and view.cpu_cores * view.window_s > max(_IDLE_CORES * view.window_s, _UNTOLD_CPU_S):
        return None
    futexes = [wait for wait in view.leaves if wait.kind is WaitKind.FUTEX]
    if not futexes and view.leaves:
        return None  # a pipe from outside the tree
    first = (futexes or view.waits)[0]
    threads = [thread for wait in futexes or view.waits for thread in wait.process.threads]
    all_wait = all(thread.syscall in ("futex", "") or "futex" in thread.wait_channel for thread in threads)
    timed = any(wait.timed for wait in futexes)
    what = (
        f"{who(first.process)} waits for a lock that nobody is left to release"
        if len(threads) == 1 and len(futexes) == 1
        else f"all {len(threads)} threads of {who(first.process)} wait for one another"
        if futexes and all_wait
        else f"the threads of {who(first.process)} wait for one another"
        if futexes
        else f"the {len(view.waits)} processes wait for one another"
    )
    python = [line for wait in futexes[:2] for line in _python_line(wait)]
    return Cause(
        "deadlocked",
        f"{what}{'' if len(threads) == 1 else ' and use no CPU'}: a deadlock",
        (
            f"{format_count(len(threads), 'thread')} in "
            f"{format_count(len(futexes) or len(view.waits), 'process', 'processes')}, "
            f"{sum('futex' in (t.syscall + t.wait_channel) for t in threads)} of them in futex",
            f"CPU: {view.cpu_cores:.3f} cores in {view.window_s:.1f} s"
            if view.cpu_cores is not None
            else "CPU: unknown",
            *(f"{who(wait.process)} reads {shown(wait.target)}" for wait in view.waits[:5] if not futexes),
            *python,
        ),
        "high" if futexes and all_wait and not timed and view.cpu_cores is not None else "medium",
    )


def waiting_for_child(view: View) -> Cause | None:
    """A process waits for its child, and the child neither computes nor shows what it waits for."""
    if any(wait.kind not in (WaitKind.SLEEP, WaitKind.UNKNOWN, WaitKind.CHILD) for wait in view.leaves):
        return None
    by_pid = {process.pid: process for process in view.alive}
    waiting = {wait.process.pid for wait in view.waits if wait.kind in (WaitKind.CHILD, WaitKind.PIPE_READ)}
    for leaf in view.leaves:
        above = _ancestors(leaf.process, by_pid)
        if not above or above[0].pid not in waiting:
            continue
        child = leaf.process
        argv = shown(" ".join(child.argv), 160) or shown(child.name)
        through = "".join(f", through {who(process)}" for process in above[:-1])
        sleeps = f"which sleeps ({leaf.thread.syscall or leaf.kind.value})"
        lines = (
            f"child: {argv}, alive for {format_duration(child.age_s)}",
            f"CPU of the child in the window: {child.cpu_in_window_s or 0:.1f} s",
            *_python_line(leaf),
        )
        summary = f"{who(above[-1])} waits for its child {who(child)}{through}, {sleeps}"
        # A loop sleeps by a new child again and again.
        return Cause("waiting_for_child", summary, lines, "low" if view.polls else "high")
    return None


def _ancestors(process: ProcessFacts, by_pid: Mapping[int, ProcessFacts]) -> list[ProcessFacts]:
    found: list[ProcessFacts] = []
    # A pid is never its own ancestor, but evidence is no proof of that.
    while (parent := by_pid.get(process.parent_pid)) is not None and parent not in found and parent is not process:
        found.append(parent)
        process = parent
    return found


def never_started(view: View) -> Cause | None:
    """Nothing was ever written, and no evidence shows why."""
    growth = view.evidence.growth
    if growth.kind in ("never_ready", "unwatched"):
        return None
    if growth.kind != "never_started" and (growth.first_write_s is not None or growth.bytes_written):
        return None
    return Cause(
        "never_started",
        f"{_doings(view)}; it never wrote a byte",
        _what_each_does(view),
        "medium" if view.alive else "low",
    )


def never_ready(view: View) -> Cause | None:
    """The server finished writing and was never ready, and no other evidence shows why."""
    growth = view.evidence.growth
    if growth.kind != "never_ready":
        return None
    return Cause(
        "never_ready",
        f"the server was silent for {format_duration(round(growth.pause_s))} and never became ready: "
        f"{shown(growth.unready or 'it did not answer', 300)}",
        _what_each_does(view),
        "medium",
    )


def unknown(view: View) -> Cause:
    """No rule fits; says what each process does."""
    return Cause("unknown", f"{_doings(view)}; the cause is not known", _what_each_does(view), "low")


def _what_each_does(view: View) -> tuple[str, ...]:
    return tuple(map(_doing, (view.leaves or view.waits)[:10]))


def _doings(view: View) -> str:
    return (*_what_each_does(view), "no process of the generator is left")[0]


def _doing(wait: Wait) -> str:
    words = {WaitKind.SLEEP: "sleeps", WaitKind.RUNNING: "runs"}
    text = f"{who(wait.process)} {words.get(wait.kind, 'waits (' + wait.kind.value.replace('_', ' ') + ')')}"
    call = wait.thread.syscall or wait.thread.wait_channel
    if call:
        text += f" in {call}"
    if wait.target:
        text += f" on {shown(wait.target)}"
    # Next to the cause, the place of the sleep is the best clue: a loop that waits for something sleeps in it.
    frames = hot_stack(wait.process)
    return f"{text}, at {shown(frames[0], 60)}" if frames else text


def _python_line(wait: Wait) -> list[str]:
    frames = hot_stack(wait.process)
    return [f"python: {' < '.join(shown(frame, 60) for frame in frames[:4])}"] if frames else []
