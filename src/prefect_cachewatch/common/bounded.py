"""Requests to servers of others that end in time, whatever these do: late ones are cut, or left behind.

For the network only: what asks a file system, or computes, belongs in a process that can be killed.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Bounded", "CutLinks"]

T = TypeVar("T")
_LEFT_BEHIND_MAX = 4


class Bounded:
    """Calls something in a thread of its own and leaves it behind when it is late; never many at once.

    Example:
        >>> Bounded().call(lambda: 1 + 1, 10)
        2
    """

    def __init__(self) -> None:
        self._left_behind: list[threading.Thread] = []

    def call(self, ask: Callable[[], T], timeout_s: float) -> T:
        """Call once.

        Args:
            ask: what is called.
            timeout_s: the longest wait.

        Returns:
            What it returned.

        Raises:
            TimeoutError: it did not in time, or too many before it have not returned yet.
            BaseException: what it raised.
        """
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        if len(self._left_behind) >= _LEFT_BEHIND_MAX:
            raise TimeoutError
        answers: list[T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(ask())
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                failures.append(error)

        thread = threading.Thread(target=run, name="cachewatch-ask", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            self._left_behind.append(thread)
            raise TimeoutError
        if failures:
            raise failures[0]
        return answers[0]


class CutLinks:
    """The connections of an opener of `urllib.request`, which can be cut from another thread."""

    def __init__(self) -> None:
        self._links: list[socket.socket] = []

    def handlers(self) -> list[urllib.request.BaseHandler]:
        """Make the handlers for the opener."""
        return [_Plain(self), _Secure(self)]

    def cut(self) -> None:
        """Cut all connections so far: who reads from one goes on with an error."""
        while self._links:
            with contextlib.suppress(OSError):
                self._links.pop().shutdown(socket.SHUT_RDWR)

    def kept(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        """Keep hold of a connection's socket as soon as it has one.

        Args:
            connection: not connected yet.

        Returns:
            The same.
        """
        connect = connection.connect

        def connect_and_keep() -> None:
            connect()
            self._links[:] = [connection.sock]  # one at a time: a redirect's comes after the one before it

        connection.connect = connect_and_keep  # type: ignore[method-assign]
        return connection


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, links: CutLinks) -> None:
        super().__init__()
        self._kept = links.kept

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            return self._kept(http.client.HTTPConnection(host, **options))

        return self.do_open(connection, req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, links: CutLinks) -> None:
        super().__init__()
        self._kept = links.kept

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            return self._kept(http.client.HTTPSConnection(host, **options))

        return self.do_open(connection, req)
