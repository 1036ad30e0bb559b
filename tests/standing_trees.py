"""Process trees that stand still for good, and trees that look so and go on: Python programs, each a case.

A program prints `ready PID` for the process at the top of its tree when the scene is set; what comes after it is the
wait. A process that only that scene needs (an outside holder, a tracer) is the program itself, the tree is its child.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

from prefect_cachewatch.postmortem.standstill_look import look_for_standstill
from prefect_cachewatch.watching.proving import Seen

__all__ = ["DEAD", "LIVE", "PASSING", "REASONS", "look_twice", "source_of", "standing"]

_HEAD = """
import ctypes, fcntl, mmap, os, select, signal, socket, struct, subprocess, sys, threading, time
class Later:  # most cases need none, and it takes long
    def __getattr__(self, name):
        import multiprocessing
        return getattr(multiprocessing.get_context('fork'), name)
mp = Later()
libc = ctypes.CDLL(None)
here = sys.argv[1]
def ready(pid=0): os.write(1, b'ready %d\\n' % (pid or os.getpid()))
def child(code):
    return subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
"""
_LOCK_TWICE = "l = threading.Lock(); l.acquire(); ready(); l.acquire()"

DEAD = {
    "two locks": """
        a, b = threading.Lock(), threading.Lock()
        def f(x, y): x.acquire(); time.sleep(.2); y.acquire()
        threading.Thread(target=f, args=(a, b)).start(); ready(); f(b, a)""",
    "a join of a thread that waits for a lock": """
        l = threading.Lock(); l.acquire(); t = threading.Thread(target=l.acquire); t.start(); ready(); t.join()""",
    "a full pipe and wait()": """
        p = subprocess.Popen([sys.executable, '-c', 'print("x" * 10**6)'], stdout=subprocess.PIPE); ready(); p.wait()""",
    "a queue's feeder and join()": """
        def w(q): q.put(b'x' * 10**6)
        q = mp.Queue(); p = mp.Process(target=w, args=(q,)); p.start(); ready(); p.join()""",
    "a fork while a thread had the lock": """
        l = threading.Lock()
        def h():
            with l: time.sleep(.5)
        threading.Thread(target=h).start(); time.sleep(.1); pid = os.fork()
        if pid == 0: l.acquire(); os._exit(0)
        ready(); os.waitpid(pid, 0)""",
    "a lock that a dead worker had": """
        l = mp.Lock()
        def w(): l.acquire(); os._exit(1)
        p = mp.Process(target=w); p.start(); p.join(); ready(); l.acquire()""",
    "two file locks": """
        one, two = here + '/l1', here + '/l2'
        for each in (one, two): open(each, 'w').close()
        pid = os.fork()
        mine, other = (one, two) if pid else (two, one)
        f = open(mine); fcntl.flock(f, 2); time.sleep(.3); g = open(other)
        if pid: ready()
        fcntl.flock(g, 2)""",
    "a record lock that the parent has": """
        f = open(here + '/r', 'w'); fcntl.lockf(f, 2); p = child(f'import fcntl; fcntl.lockf(open({here!r} + "/r", "w"), 2)')
        ready(); p.wait()""",
    "an event that is never set": "ready(); threading.Event().wait()",
    "an executor that waits for itself": """
        import concurrent.futures as c
        e = c.ThreadPoolExecutor(1)
        def outer(): return e.submit(int).result()
        ready(); e.submit(outer).result()""",
    "an asyncio future that is never set": """
        import asyncio
        async def m(): ready(); await asyncio.get_running_loop().create_future()
        asyncio.run(m())""",
    "a pipe to itself": "r, w = os.pipe(); ready(); os.read(r, 1)",
    "two that wait for each other's message": """
        a, b = mp.Pipe(); p = mp.Process(target=b.recv); p.start(); ready(); a.recv()""",
    "a select on a pipe of its own": "r, w = os.pipe(); ready(); select.select([r], [], [])",
    "a poll of pipes of its own": """
        r, w = os.pipe(); p = select.poll(); p.register(r, 1); ready(); p.poll()""",
    "an eventfd of its own": "e = os.eventfd(0); ready(); os.eventfd_read(e)",
    "a pidfd of a child that waits": """
        r, w = os.pipe(); p = mp.Process(target=os.read, args=(r, 1)); p.start(); q = select.poll()
        q.register(os.pidfd_open(p.pid), 1); ready(); q.poll()""",
    "a barrier that lacks one": """
        b = mp.Barrier(3); [mp.Process(target=b.wait).start() for _ in range(2)]; ready()""",
    "a shell's pipe": """
        p = subprocess.Popen(['sh', '-c', sys.executable + ' -c "import threading; threading.Event().wait()" | cat'],
                             stdout=subprocess.DEVNULL); ready(p.pid); time.sleep(99)""",
    "workers on an empty queue": """
        import queue
        q = queue.Queue(); ts = [threading.Thread(target=q.get) for _ in range(8)]; [t.start() for t in ts]; ready(); ts[0].join()""",
    "a lock, with a handler for SIGTERM": "signal.signal(signal.SIGTERM, lambda *a: sys.exit(1)); " + _LOCK_TWICE,
    "a main thread that has ended": """
        l = threading.Lock(); l.acquire(); threading.Thread(target=l.acquire).start(); time.sleep(.2); ready()
        libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)""",
    "a wait for a child that a lock stops": f"p = child({'import threading; l = threading.Lock(); l.acquire(); l.acquire()'!r}); ready(); p.wait()",
}

LIVE = {
    "a sleep": "ready(); time.sleep(99)",
    "a computation": "ready()\nwhile True: pass",
    "a lock with a time limit": "l = threading.Lock(); l.acquire(); ready(); l.acquire(timeout=99)",
    "a deadlock beside a ticker": """
        def t():
            while True: time.sleep(1)
        threading.Thread(target=t).start(); ready(); threading.Event().wait()""",
    "a TCP connection": """
        s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); d, _ = s.accept()
        ready(); c.recv(1)""",
    "standard input": "ready(); sys.stdin.read()",
    "an interval timer": """
        signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 30); """
    + _LOCK_TWICE,
    "a listening socket": "s = socket.create_server(('127.0.0.1', 0)); ready(); s.accept()",
    "a listening unix socket": "s = socket.socket(socket.AF_UNIX); s.bind(here + '/s'); s.listen(); ready(); s.accept()",
    "a file lock held outside": "f = open(here + '/held', 'w'); ready(); fcntl.flock(f, 2)",
    "an asyncio sleep": "import asyncio; ready(); asyncio.run(asyncio.sleep(50))",
    "a FIFO": "os.mkfifo(here + '/ff'); ready(); open(here + '/ff')",
    "a FIFO that is open": "os.mkfifo(here + '/fi'); f = os.open(here + '/fi', os.O_RDWR); ready(); os.read(f, 1)",
    "a signal": "signal.signal(signal.SIGUSR1, lambda *a: None); ready(); signal.pause()",
    "any signal": "ready(); signal.pause()",
    "sigwait": "signal.pthread_sigmask(0, [10]); ready(); signal.sigwait([10])",
    "an event that SIGUSR1 sets": """
        e = threading.Event(); signal.signal(signal.SIGUSR1, lambda *a: e.set()); ready(); e.wait()""",
    "an event that SIGHUP sets": """
        e = threading.Event(); signal.signal(signal.SIGHUP, lambda *a: e.set()); ready(); e.wait()""",
    "a poll with a time limit": "r, w = os.pipe(); p = select.poll(); p.register(r, 1); ready(); p.poll(99000)",
    "a select with a time limit": "r, w = os.pipe(); ready(); select.select([r], [], [], 99)",
    "a poll of nothing": "ready(); select.poll().poll()",
    "a socket with a time limit of its own": """
        a, b = socket.socketpair(); a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 60, 0)); ready(); a.recv(1)""",
    "a timer as a descriptor": """
        t = libc.timerfd_create(1, 0); libc.timerfd_settime(t, 0, struct.pack('qqqq', 0, 0, 60, 0), None); """
    + _LOCK_TWICE,
    "a POSIX timer": """
        t = ctypes.c_void_p(); e = struct.pack('Pii48x', 0, 15, 0)
        signal.signal(signal.SIGTERM, lambda *a: None)
        assert libc.timer_create(1, e, ctypes.byref(t)) == 0; """
    + _LOCK_TWICE,
    "inotify": "n = libc.inotify_init(); libc.inotify_add_watch(n, here.encode(), 256); ready(); os.read(n, 64)",
    "a semaphore with a name": """
        import _multiprocessing
        s = _multiprocessing.SemLock(1, 0, 1, '/cw-%d' % os.getpid(), False); ready(); s.acquire()""",
    "a System V semaphore": """
        n = libc.semget(0, 1, 0o600)
        class Op(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('o', ctypes.c_short), ('f', ctypes.c_short)]
        threading.Thread(target=lambda: (time.sleep(30), libc.semctl(n, 0, 0)), daemon=True).start()
        ready(); libc.semop(n, ctypes.byref(Op(0, -1, 0)), 1)""",
    "a stopped process": "ready(); os.kill(os.getpid(), signal.SIGSTOP)",
    "a child that is stopped": "p = child('import os; os.kill(os.getpid(), 19)'); ready(); p.wait()",
    "a child that sleeps": "p = subprocess.Popen(['sleep', '99']); ready(); p.wait()",
    "a child that sleeps, seen through a pipe": "p = subprocess.Popen(['sleep', '99'], stdout=subprocess.PIPE); ready(); p.stdout.read()",
    "output that is not read": "ready(); os.write(1, b'x' * 10**6)",
    "a pipe that is held outside": """
        r, w = os.pipe(); pid = os.fork()
        if pid == 0: os.read(r, 1)
        ready(pid); time.sleep(99)""",
    "a semaphore that is shared outside": """
        s = mp.Semaphore(0); p = mp.Process(target=s.acquire); p.start(); ready(p.pid); time.sleep(99); s.release()""",
    "a socket whose other end is outside": """
        a, b = mp.Pipe(); p = mp.Process(target=b.recv); p.start(); ready(p.pid); time.sleep(99)""",
    "an eventfd that is held outside": """
        e = os.eventfd(0); p = mp.Process(target=os.eventfd_read, args=(e,)); p.start(); ready(p.pid); time.sleep(99)""",
    "a file lock whose descriptor is held outside": """
        f = open(here + '/d', 'w'); fcntl.flock(f, 2); pid = os.fork()
        if pid == 0:
            if os.fork() == 0: fcntl.flock(open(here + '/d'), 2)
            os.wait()
        ready(pid); time.sleep(99)""",
    "a traced process": """
        pid = os.fork()
        if pid == 0: threading.Event().wait()
        time.sleep(.3); libc.ptrace(0x4206, pid, None, None); ready(pid); time.sleep(99)""",
    "a deadlock beside io_uring": """
        p = (ctypes.c_char * 120)(); fd = libc.syscall(425, 4, p); """
    + _LOCK_TWICE,
    "a pipe beside a socket to a process outside": """
        a, b = socket.socketpair(); pid = os.fork()
        if pid == 0: b.close(); r, w = os.pipe(); os.read(r, 1)
        a.close(); ready(pid); time.sleep(99)""",
    "a pipe that a thread outside has for itself": """
        r, w = os.pipe(); threading.Thread(target=lambda: (libc.unshare(1024), time.sleep(99)), daemon=True).start()
        time.sleep(.3); pid = os.fork()
        if pid == 0: os.read(r, 1)
        os.close(r); os.close(w); ready(pid); time.sleep(99)""",
    "a thread with descriptors of its own": """
        r, w = os.pipe(); o, p = os.pipe(); pid = os.fork()
        if pid == 0:
            def t(): libc.unshare(1024); os.dup2(o, r); os.close(o); os.read(r, 1)
            os.close(p); threading.Thread(target=t).start(); time.sleep(.3); os.close(o)
            l = threading.Lock(); l.acquire(); l.acquire()
        os.close(r); os.close(w); os.close(o); ready(pid); time.sleep(99)""",
    "shared memory that is open outside and mapped by nobody there": """
        m = os.memfd_create('m'); os.ftruncate(m, 4096); pid = os.fork()
        if pid == 0:
            v = ctypes.c_int.from_buffer(mmap.mmap(m, 4096))
            libc.syscall({'x86_64': 202}.get(os.uname().machine, 98), ctypes.byref(v), 0, 0, None, None, 0)
        ready(pid); time.sleep(99)""",
    "a tracer of a thread outside": """
        threading.Thread(target=time.sleep, args=(99,)).start(); other = int(os.listdir('/proc/self/task')[1]); pid = os.fork()
        if pid == 0:
            libc.ptrace(0x4206, other, None, None)
            if os.fork() == 0: threading.Event().wait()
            os.waitpid(-1, 0x40000000)
        ready(pid); time.sleep(99)""",
    "a deadlock beside an io_uring without a descriptor": """
        p = (ctypes.c_char * 120)(); fd = libc.syscall(425, 4, p)
        libc.mmap(None, ctypes.c_long(4096), 3, 1, fd, ctypes.c_long(0)); os.close(fd); """
    + _LOCK_TWICE,
}
# As long as one of these stands, nothing on the machine is proven that depends on who has a descriptor.
PASSING = {
    "a pipe whose other end is on its way to a process outside": """
        s = socket.socket(socket.AF_UNIX); s.bind(here + '/way'); s.listen(); pid = os.fork()
        if pid == 0:
            s.close(); r, w = os.pipe(); c = socket.socket(socket.AF_UNIX); c.connect(here + '/way')
            socket.send_fds(c, [b'x'], [w]); c.close(); os.read(r, 1)
        a, _ = s.accept(); s.close(); ready(pid); time.sleep(99)""",
    "a pipe whose other end waits for an accept outside": """
        s = socket.socket(socket.AF_UNIX); s.bind(here + '/acc'); s.listen(); pid = os.fork()
        if pid == 0:
            s.close(); r, w = os.pipe(); c = socket.socket(socket.AF_UNIX); c.connect(here + '/acc')
            socket.send_fds(c, [b'x'], [w]); c.close(); os.read(r, 1)
        ready(pid); time.sleep(99)""",
    "a pipe whose other end is in an empty datagram": """
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); pid = os.fork()
        if pid == 0: a.close(); r, w = os.pipe(); socket.send_fds(b, [b''], [w]); b.close(); os.read(r, 1)
        b.close(); ready(pid); time.sleep(99)""",
}
# Why each of these is not proven, to be found in the reason.
REASONS = {
    "a sleep": "(clock_nanosleep)",
    "a computation": "in state R",
    "a lock with a time limit": "futex with a time limit",
    "a deadlock beside a ticker": "(clock_nanosleep)",
    "a TCP connection": "in recvfrom, but sleeps in",
    "standard input": "outside the tree has open",
    "an interval timer": "a handler for signal 14",
    "a listening socket": "(accept",
    "a listening unix socket": "(accept",
    "a file lock held outside": "a file lock that pid",
    "an asyncio sleep": "with a time limit",
    "a FIFO": "(openat)",
    "a FIFO that is open": "/fi, which something outside may set",
    "a signal": "a handler for signal 10",
    "any signal": "(pause)",
    "sigwait": "(rt_sigtimedwait)",
    "an event that SIGUSR1 sets": "a handler for signal 10",
    "an event that SIGHUP sets": "a handler for signal 1,",
    "a poll with a time limit": "poll with a time limit",
    "a select with a time limit": "with a time limit",
    "a poll of nothing": "polls nothing",
    "a socket with a time limit of its own": "a time limit of its own",
    "a timer as a descriptor": "a timer as a file descriptor",
    "a POSIX timer": "has a timer",
    "inotify": "in read, but sleeps in",
    "a semaphore with a name": "that others can open",
    "a System V semaphore": "(unknown",
    "a stopped process": "in state T",
    "a child that is stopped": "in state T",
    "a child that sleeps": "(clock_nanosleep)",
    "a child that sleeps, seen through a pipe": "(clock_nanosleep)",
    "output that is not read": "outside the tree has open",
    "a pipe that is held outside": "outside the tree has open",
    "a semaphore that is shared outside": "outside the tree has too",
    "a socket whose other end is outside": "outside the tree has open",
    "an eventfd that is held outside": "outside the tree has open",
    "a file lock whose descriptor is held outside": "a file lock that pid",
    "a traced process": "is traced by",
    "a deadlock beside io_uring": "an io_uring",
    "a pipe beside a socket to a process outside": "to a process outside",
    "a pipe that a thread outside has for itself": "outside the tree has open",
    "a thread with descriptors of its own": "has descriptors of its own",
    "shared memory that is open outside and mapped by nobody there": "outside the tree has too",
    "a tracer of a thread outside": "outside is traced by one of the tree",
    "a deadlock beside an io_uring without a descriptor": "an io_uring",
}


@contextlib.contextmanager
def standing(codes: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Start cases; gives the pid at the top of each tree once all scenes are set. All of it is gone at the end."""
    with tempfile.TemporaryDirectory() as top, open(f"{top}/held", "w") as held, contextlib.ExitStack() as stack:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = {name: stack.enter_context(_started(code, top)) for name, code in codes.items()}
        yield {name: _root_of(name, process) for name, process in started.items()}


def source_of(code: str) -> str:
    """Make a program of a case; its argument is a directory of its own."""
    return _HEAD + "\n".join(line[8:] if line.startswith(" " * 8) else line for line in code.splitlines())


@contextlib.contextmanager
def _started(code: str, top: str) -> Iterator[subprocess.Popen[bytes]]:
    here = tempfile.mkdtemp(dir=top)
    os.link(f"{top}/held", f"{here}/held")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", source_of(code), here],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdin and process.stdout
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _root_of(name: str, process: subprocess.Popen[bytes]) -> int:
    assert process.stdout
    words = process.stdout.readline().split()
    assert words[:1] == [b"ready"], f"{name} ended with {process.wait()}"
    return int(words[1])


def look_twice(pid: int, apart_s: float = 0.3) -> Seen:
    """Look at a tree twice, as a watch does."""
    first = look_for_standstill([pid], True, b"")
    if first.why:
        return first
    time.sleep(apart_s)
    return look_for_standstill([pid], True, first.seen)
