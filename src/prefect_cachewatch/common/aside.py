"""Access to files that may hang, in child processes that can be abandoned. All file access of this package goes here.

While a generator runs, the supervising process opens, stats, writes and removes nothing itself. A call into a file
system that has stopped answering never returns, and neither a thread nor a signal can interrupt it. So a server is made
before the start, while the process is single-threaded, with everything it needs in memory. Each request gets a fork of
the server, which accesses the file and answers. The caller waits until its deadline and no longer. Standard library
only.
"""

from __future__ import annotations

import _pickle as pickle  # the Python version of pickle would cost a quarter of a megabyte in each of two processes
import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_HEADER = 8
_PIECE = 1 << 16
_LEFT_BEHIND_S = 30.0
_CLOSE_S = 1.0
_NO_ANSWER = "its file system does not answer"


AHEAD_S = 10.0


class Files(Protocol):
    """Runs functions that access files."""

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Run a function and return its result. Raises what the function raises, or TimeoutError at the deadline."""

    def open(self, opener: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Run a function that opens an object with `write` and `close`, and return such an object."""

    def consult(
        self, function: Callable[..., Any], *arguments: Any, answer: Callable[[], object], timeout_s: float
    ) -> Any:
        """As `run`; the function gets a keyword `ask`, which runs `answer` in this process and waits for it."""

    def close(self) -> None:
        """End the server; a call that is still running is abandoned."""


class InPlace:
    """Calls the function in this process, for callers that need no protection: no second process, no deadline.

    Example:
        >>> InPlace().run(os.path.basename, "/a/b", timeout_s=1)
        'b'
    """

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Call the function."""
        return function(*arguments)

    def open(self, opener: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Call the function."""
        return opener(*arguments)

    def consult(
        self, function: Callable[..., Any], *arguments: Any, answer: Callable[[], object], timeout_s: float
    ) -> Any:
        """Call the function."""
        return function(*arguments, ask=answer)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class Aside:
    """Calls each function in a separate process and abandons it at the deadline.

    Args:
        control: a socket connected to a server (`Aside.fork`, `Aside.spawn`).
        process: the server as a pid or a `Popen`, if `close` must wait for it.

    Example:
        >>> aside = Aside.spawn()
        >>> aside.run(os.path.basename, "/a/b", timeout_s=30)
        'b'
        >>> aside.close()
    """

    def __init__(self, control: socket.socket, process: int | subprocess.Popen[bytes]) -> None:
        self._control, self._process = control, process
        self._lock = threading.Lock()

    @classmethod
    def fork(cls) -> Aside:
        """Make the server by forking this process, which must have no other thread.

        Returns:
            Its client.
        """
        ours, theirs = socket.socketpair()
        gc.collect()
        gc.freeze()  # keep these pages shared: a collection would write to all of them
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                _close_all_but(theirs.fileno())
                _serve(theirs)
            finally:
                os._exit(1)
        theirs.close()
        return cls(ours, pid)

    @classmethod
    def spawn(cls) -> Aside:
        """Start the server as a new interpreter, for a process that has threads.

        It imports what this process has imported of the engine, since no file may be readable later: whoever asks for a
        function has its module by now.

        Returns:
            Its client; the server may still be starting.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; "
                f"main({theirs.fileno()}, {_engine_modules()!r})"
            )
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", code, "cachewatch-files"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd="/",
                env={**os.environ, **_absolute_state()},
            )
        return cls(ours, process)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Run a function in a separate process.

        Args:
            function: a module-level function, found there by its name.
            arguments: must be picklable, as must the result.
            timeout_s: the longest wait, in seconds.

        Raises:
            TimeoutError: the function has not returned by then; its process is abandoned.
            OSError: the process cannot be made, or died.
            Exception: whatever the function raises.
        """
        end_s = time.monotonic() + timeout_s
        with self._begin(function, arguments, "run", timeout_s) as connection:
            return _result_of(connection, end_s)

    def consult(
        self, function: Callable[..., Any], *arguments: Any, answer: Callable[[], object], timeout_s: float
    ) -> Any:
        """Run a function that may call back into this process while it runs; see `run`.

        Args:
            function: gets a keyword `ask`, which waits until `answer` has returned.
            arguments: as for `run`.
            answer: called in this thread.
            timeout_s: the longest wait, in seconds.
        """
        end_s = time.monotonic() + timeout_s
        with self._begin(function, arguments, "consult", timeout_s) as connection:
            return _result_of(connection, end_s, answer)

    def open(self, opener: Callable[..., Any], *arguments: Any, timeout_s: float) -> AsideFile:
        """Open an object that is written to over a long time.

        Args:
            opener: a module-level function; returns an object with `write(bytes)` and `close()`.
            arguments: must be picklable.
            timeout_s: the longest wait for the open, in seconds.

        Returns:
            A file that passes everything written on to that object.

        Raises:
            TimeoutError: it could not be opened by then.
            Exception: whatever the opener raises.
        """
        connection = self._begin(opener, arguments, "open", 0.0)
        try:
            _result_of(connection, time.monotonic() + timeout_s)
        except BaseException:
            connection.close()
            raise
        return AsideFile(connection)

    def close(self) -> None:
        """Let the server end; a call that is still running is abandoned."""
        self._control.close()
        for number in (signal.SIGCONT, signal.SIGKILL):  # only the process that stopped it can keep it now
            self._signal(number)
            for nap in range(100):
                if self._is_gone():
                    return
                time.sleep(min(0.01, 0.0005 * (nap + 1)))  # it is gone in a millisecond as a rule

    def _is_gone(self) -> bool:
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll() is not None
        try:
            return os.waitpid(self._process, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def _signal(self, number: signal.Signals) -> None:
        if not self._is_gone():
            try:
                os.kill(self._process if isinstance(self._process, int) else self._process.pid, number)
            except ProcessLookupError:
                return  # it has just ended, and this program ignores SIGCHLD: its status is already gone

    def _hand_over(self, fd: int) -> None:
        """Give the server a connection. A stopped server is continued; a killed one is replaced."""
        self._signal(signal.SIGCONT)
        try:
            socket.send_fds(self._control, [b"r"], [fd])
        except (BrokenPipeError, ConnectionResetError):
            successor = Aside.spawn()
            self._control.close()
            self._control, self._process = successor._control, successor._process
            socket.send_fds(self._control, [b"r"], [fd])

    def _begin(
        self, function: Callable[..., Any], arguments: Sequence[Any], how: str, timeout_s: float
    ) -> socket.socket:
        request = pickle.dumps((how, timeout_s, function, tuple(arguments)))
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            with theirs, self._lock:
                self._hand_over(theirs.fileno())
            _send(ours, request, time.monotonic() + max(timeout_s, 5.0))
        except BaseException:
            ours.close()
            raise
        return ours


class AsideFile:
    """A file that another process writes, in order.

    Args:
        connection: to that process.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview, timeout_s: float = 5.0) -> None:
        """Pass bytes on. Only `close` confirms that they were written.

        Args:
            data: the bytes.
            timeout_s: the longest wait for room in the socket, in seconds.

        Raises:
            TimeoutError: there is no room, since the other process is not writing.
            OSError: bytes passed on earlier could not be written.
        """
        if select.select([self._connection], [], [], 0)[0]:
            _result_of(self._connection, time.monotonic() + 1.0)
        _send_all(self._connection, memoryview(data), time.monotonic() + timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait until everything has been written and the file is closed.

        Args:
            timeout_s: the longest wait, in seconds.

        Raises:
            TimeoutError: the file is not closed by then.
            OSError: some bytes could not be written.
        """
        with self._connection as connection:
            connection.shutdown(socket.SHUT_WR)
            _result_of(connection, time.monotonic() + timeout_s)


def main(control: int, modules: Sequence[str]) -> NoReturn:
    """Run as a spawned server.

    Args:
        control: descriptor of its socket.
        modules: imported before the first request.
    """
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    _serve(socket.socket(fileno=control))


def _engine_modules() -> list[str]:
    # Modules of the other rooms would bring Prefect or click into each call, which takes seconds.
    package = __name__.partition(".")[0]
    others = tuple(f"{package}.{room}" for room in ("flows", "tasks", "cli", "capacity"))
    return [name for name in sys.modules if name.startswith(f"{package}.") and not name.startswith(others)]


def _absolute_state() -> dict[str, str]:
    """Make CACHEWATCH_STATE absolute: it may be relative, and the server runs in another directory."""
    own = os.environ.get("CACHEWATCH_STATE", "")
    try:
        return {"CACHEWATCH_STATE": os.path.abspath(own)} if own else {}
    except FileNotFoundError:  # the working directory has been removed
        return {}


def _close_all_but(control: int) -> None:
    """Close what was inherited, such as the user's own locks and pipes: a fork that is abandoned would hold them.

    In a thread, since the close of a file waits for its file system.
    """

    def close() -> None:
        for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
            if fd > 2 and fd != control:
                with contextlib.suppress(OSError):  # of the list itself
                    os.close(fd)

    closing = threading.Thread(target=close, name="cachewatch-closing", daemon=True)
    with contextlib.suppress(RuntimeError):  # there may be no further thread
        closing.start()
        closing.join(_CLOSE_S)


def _serve(control: socket.socket) -> NoReturn:
    """Fork for each request until the client has gone. Nothing here touches a file system."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # a reader of the command's output must see its end even if a fork is abandoned
        os.dup2(null, fd)
    os.environ.update(_absolute_state())
    os.chdir("/")
    if os.getsid(0) != os.getpid():
        os.setsid()
    # Signals that end a terminal, a worker or every process of a job are meant for the client. The server ends with it.
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD, signal.SIGABRT}
    for number in signal.valid_signals() - kept - {signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    while True:
        try:
            word, fds, _, _ = socket.recv_fds(control, 1, 1)
        except InterruptedError:
            continue
        if not word:
            os._exit(0)
        try:
            pid = os.fork()
        except OSError:
            pid = -1  # the client sees its connection end
        if pid == 0:
            try:
                for number in (signal.SIGCHLD, signal.SIGALRM):  # SIGALRM ends a fork that is abandoned
                    signal.signal(number, signal.SIG_DFL)
                control.close()
                _answer(socket.socket(fileno=fds[0]))
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)


def _answer(connection: socket.socket) -> None:
    request = _receive(connection, None)

    def ask() -> None:
        _send(connection, pickle.dumps(("ask", None)), None)
        _receive(connection, None)

    try:
        how, timeout_s, function, arguments = pickle.loads(request)  # imports the function's module
        if how != "open":  # the client no longer waits, and a process that can be killed need not stay
            signal.setitimer(signal.ITIMER_REAL, timeout_s + _LEFT_BEHIND_S)
        result = function(*arguments, ask=ask) if how == "consult" else function(*arguments)
        if how == "open":
            _send(connection, pickle.dumps(("ok", None)), None)
            _write_on(connection, result)
            return
        reply = pickle.dumps(("ok", result))
    except Exception as error:  # noqa: BLE001 - noqa: BLE001 - passed on to the caller
        reply = _failure(error)
    _send(connection, reply, None)


def _write_on(connection: socket.socket, file: Any) -> None:
    failed = False
    while data := connection.recv(_PIECE):
        if not failed:
            try:
                file.write(data)
            except OSError as error:  # reported once; the rest is read and dropped, so that no writer blocks
                failed = True
                _send(connection, _failure(error), None)
    file.close()
    _send(connection, pickle.dumps(("ok", None)), None)


def _failure(error: Exception) -> bytes:
    try:
        reply = pickle.dumps(("error", error))
        pickle.loads(reply)
    except Exception:  # noqa: BLE001 - noqa: BLE001 - an exception that cannot be pickled
        reply = pickle.dumps(("error", OSError(errno.EIO, f"{type(error).__name__}: {error}")))
    return reply


def _result_of(connection: socket.socket, end_s: float, answer: Callable[[], object] | None = None) -> Any:
    while True:
        kind, value = pickle.loads(_receive(connection, end_s))
        if kind == "ask" and answer is not None:
            answer()
            _send(connection, b"done", end_s)
        elif kind == "error":
            raise value
        else:
            return value


def _send(connection: socket.socket, data: bytes, end_s: float | None) -> None:
    _send_all(connection, memoryview(len(data).to_bytes(_HEADER, "big") + data), end_s)


def _send_all(connection: socket.socket, left: memoryview, end_s: float | None) -> None:
    while left:
        _wait_for([], [connection], end_s)
        try:
            left = left[connection.send(left[:_PIECE]) :]
        except BlockingIOError:
            continue


def _receive(connection: socket.socket, end_s: float | None) -> bytes:
    length = int.from_bytes(_receive_exactly(connection, _HEADER, end_s), "big")
    return bytes(_receive_exactly(connection, length, end_s))


def _receive_exactly(connection: socket.socket, size: int, end_s: float | None) -> bytearray:
    data = bytearray()
    while len(data) < size:
        _wait_for([connection], [], end_s)
        try:
            piece = connection.recv(min(size - len(data), 1 << 20))
        except BlockingIOError:
            continue
        if not piece:
            raise OSError(errno.EPIPE, "the process that was to do it has died")
        data += piece
    return data


def _wait_for(reading: list[socket.socket], writing: list[socket.socket], end_s: float | None) -> None:
    left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
    if not any(select.select(reading, writing, [], left_s)):
        raise TimeoutError(errno.ETIMEDOUT, _NO_ANSWER)


def look_ahead(
    files: Files, what: str, function: Callable[..., Any], *arguments: Any, instead: str = "check the mount"
) -> Any:
    """Look at a path in a process that can be abandoned.

    Args:
        files: runs the function.
        what: the thing looked at, for the message.
        function: looks, and returns or raises.
        arguments: for the function.
        instead: what the user can do if the file system does not answer.

    Raises:
        InputError: its file system does not answer in time.
        Exception: whatever the function raises.
    """
    try:
        return files.run(function, *arguments, timeout_s=AHEAD_S)
    except TimeoutError as error:
        raise InputError(
            f"{for_terminal(what, 4096)} cannot be used: its file system does not answer within {AHEAD_S:.0f} s; {instead}"
        ) from error
