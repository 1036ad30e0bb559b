"""A small HTTP server in one thread, whom no client can keep from the others: every connection has a deadline and a size.

It reads a request of at most 8 KiB, answers once and hangs up. A connection has five seconds for all of it, however its
bytes come; and where there are more than a hundred, the oldest makes room. What is answered is the caller's.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

__all__ = ["Answer", "PageServer"]

_CONNECTION_S = 5.0
_REQUEST_MAX = 8 << 10
_CONNECTIONS_MAX = 100
_NO_DESCRIPTOR_PAUSE_S = 0.1


@dataclass(frozen=True)
class Answer:
    """What a client is answered; `sent` is called when it has been handed to the kernel whole."""

    status: int
    kind: str
    body: bytes
    sent: Callable[[], None] = lambda: None


Respond = Callable[[str, Mapping[str, str], str], Answer]


@dataclass
class _Connection:
    link: socket.socket
    client: str
    ends_s: float
    asked: bytes = b""
    answer: Answer | None = None
    left: memoryview = field(default_factory=lambda: memoryview(b""))
    finished: bool = False


class PageServer:
    """Serves one page after another, from a thread of its own, until it is closed.

    Args:
        family: of the address.
        address: where to listen.
        respond: makes the answer to a GET, from its path, its headers (names in lower case) and the client's address.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, family: socket.AddressFamily, address: Any, respond: Respond) -> None:
        self._respond = respond
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # The port of a run that has just ended; a listening socket is never taken over.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(128)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise
        self.address = self._listener.getsockname()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        # In the order of their deadlines: each is as long as the others.
        self._connections: dict[socket.socket, _Connection] = {}
        self._thread = threading.Thread(target=self._serve, name="cachewatch-metrics", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and hang up on whoever is connected."""
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join(_CONNECTION_S)

    def _serve(self) -> None:
        try:
            while True:
                first = next(iter(self._connections.values()), None)
                wait_s = None if first is None else max(0.0, first.ends_s - time.monotonic())
                for key, _ in self._selector.select(wait_s):
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif (connection := self._connections.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                        self._go_on(connection)
                now_s = time.monotonic()
                for connection in [c for c in self._connections.values() if c.ends_s <= now_s]:
                    self._hang_up(connection)
        finally:
            for connection in list(self._connections.values()):
                self._hang_up(connection)
            self._selector.close()
            self._listener.close()
            self._woken.close()

    def _accept(self) -> None:
        try:
            link, client = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                time.sleep(_NO_DESCRIPTOR_PAUSE_S)
            return
        if len(self._connections) >= _CONNECTIONS_MAX:
            self._hang_up(next(iter(self._connections.values())))
        link.setblocking(False)
        self._connections[link] = _Connection(link, str(client[0]), time.monotonic() + _CONNECTION_S)
        self._selector.register(link, selectors.EVENT_READ)

    def _go_on(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(connection)
            elif not connection.finished:
                self._write(connection)
            elif not connection.link.recv(_REQUEST_MAX):
                self._hang_up(connection)  # the client has all of it
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.link.recv(_REQUEST_MAX)
        connection.asked += data
        head, end, _ = connection.asked.replace(b"\r\n", b"\n").partition(b"\n\n")
        if end:
            connection.answer = self._answer(head, connection.client)
        elif len(connection.asked) >= _REQUEST_MAX:
            connection.answer = _plain(431)
        elif not data:
            self._hang_up(connection)
            return
        else:
            return
        connection.left = memoryview(_format(connection.answer))
        self._selector.modify(connection.link, selectors.EVENT_WRITE)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        while connection.left:
            connection.left = connection.left[connection.link.send(connection.left) :]
        assert connection.answer is not None
        connection.finished = True
        connection.answer.sent()
        # A close with unread bytes would take the answer away again: the client closes first, or its time is up.
        connection.link.shutdown(socket.SHUT_WR)
        self._selector.modify(connection.link, selectors.EVENT_READ)

    def _answer(self, head: bytes, client: str) -> Answer:
        request, *lines = head.decode("latin-1").split("\n")
        words = request.split()
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return _plain(400)
        if words[0] != "GET":
            return _plain(501)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        try:
            return self._respond(words[1].partition("?")[0], headers, client)
        except Exception:  # noqa: BLE001 - whatever it is, the next scrape is to be answered
            return _plain(500)

    def _hang_up(self, connection: _Connection) -> None:
        self._connections.pop(connection.link, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.link)
        connection.link.close()


def _plain(status: int) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{HTTPStatus(status).phrase}\n".encode())


def _format(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.0 {answer.status} {HTTPStatus(answer.status).phrase}\r\nServer: cachewatch\r\n"
        f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
