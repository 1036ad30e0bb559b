"""A small HTTP server in one thread; no client can block it for the others, since each connection is bounded.

It reads a request of at most 8 KiB, answers once and hangs up. A connection has five seconds in all, however slowly
its bytes arrive. Beyond a hundred connections the oldest is closed. The caller makes the answer. The server of
prometheus_client gives each connection a thread for as long as the client likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

_CONNECTION_S = 5.0
_REQUEST_MAX = 8 << 10
_CONNECTIONS_MAX = 100


@dataclass(frozen=True)
class Answer:
    """An answer to a client; `sent` is called when the kernel has taken all of it."""

    status: int
    kind: str
    body: bytes
    sent: Callable[[], None] = lambda: None


Respond = Callable[[str, Mapping[str, str], str], Answer]


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
            # The port of a run that has just ended may be reused; the socket of a listener is never taken over.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(128)
        except BaseException:
            self._listener.close()
            raise
        self.address = self._listener.getsockname()
        # In the order of their deadlines: all have the same length.
        self._connections: dict[asyncio.Task[Any], None] = {}
        self._closing = asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._serve, name="cachewatch-metrics", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        with contextlib.suppress(RuntimeError):  # it was closed before
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_CONNECTION_S)

    def _serve(self) -> None:
        with self._runner:
            self._loop.set_exception_handler(lambda loop, context: None)  # no descriptor left: asyncio tries again
            self._runner.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=_REQUEST_MAX - 1)
        await self._closing.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(_CONNECTION_S):
                await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # closed here, or by the client
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        try:
            while (line := await reader.readline()).strip():
                head += line
                if len(head) >= _REQUEST_MAX:
                    raise ValueError("too long")
            if not line:
                return  # the client has gone
            answer = self._answer(head, str(writer.get_extra_info("peername")[0]))
        except ValueError:
            answer = _plain(431)
        writer.transport.set_write_buffer_limits(0)
        writer.write(_format(answer))
        await writer.drain()
        answer.sent()
        # A close with unread bytes would discard the answer: the client closes first, or its time is up.
        writer.write_eof()
        while await reader.read(_REQUEST_MAX):
            pass

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
        except Exception:  # noqa: BLE001 - the next scrape has to be answered after any error
            return _plain(500)


def _plain(status: int) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{HTTPStatus(status).phrase}\n".encode())


def _format(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.0 {answer.status} {HTTPStatus(answer.status).phrase}\r\nServer: cachewatch\r\n"
        f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
