"""An HTTP address that is asked with a firm deadline: a late request is cut off."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.within import within

_SLACK_S = 0.5


class HttpAddress:
    """An HTTP address that is polled. A redirect counts as the answer and is not followed.

    Args:
        url: http or https.

    Example:
        >>> HttpAddress("http://127.0.0.1:9/").ask(1)
        'connection refused'
    """

    def __init__(self, url: str) -> None:
        self._request = urllib.request.Request(url, headers={"User-Agent": "cachewatch"})  # noqa: S310 - http and https only
        self._links = _Links()
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), _Plain(self._links), _Secure(self._links)]
        if _is_loopback(urllib.parse.urlsplit(url).hostname or ""):
            # A proxy named by the environment would connect to its own loopback interface.
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, timeout_s: float) -> str | None:
        """Send one request.

        Args:
            timeout_s: for the whole request, in seconds.

        Returns:
            None if it answered 200; else in a few words what it answered, or why it did not.
        """
        try:
            # The socket's own timeout bounds each read. Only this deadline bounds headers that arrive a byte at a time.
            answer: str | None = within(timeout_s + _SLACK_S, self._ask, timeout_s)
        except TimeoutError:
            self._links.cut()
            return "no answer in time"
        return answer

    def close(self) -> None:
        """Cut the connections; a thread that reads from one continues with an error."""
        self._links.cut()

    def _ask(self, timeout_s: float) -> str | None:
        try:
            with self._opener.open(self._request, timeout=timeout_s) as answer:
                return None if answer.status == HTTPStatus.OK else f"answered {answer.status}"
        except urllib.error.HTTPError as error:
            with error:
                return f"answered {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return describe_failure(error)


def describe_failure(error: BaseException) -> str:
    """Say in a few words why a connection or an answer failed.

    Example:
        >>> describe_failure(ConnectionRefusedError())
        'connection refused'
    """
    inner = getattr(error, "reason", None)
    cause = inner if isinstance(inner, BaseException) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(cause, socket.gaierror):
        return "its host name is not known"
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return for_terminal(text[:1].lower() + text[1:] if text else type(cause).__name__, 120)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        """Follow no redirect: a login page that answers 200 does not mean that the server is ready."""


class _Links:
    """The connection of a `urllib.request` opener, which another thread can cut."""

    def __init__(self) -> None:
        self._links: list[socket.socket] = []

    def cut(self) -> None:
        while self._links:
            with contextlib.suppress(OSError):
                self._links.pop().shutdown(socket.SHUT_RDWR)

    def kept(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        """Keep a reference to a connection's socket as soon as it has one."""
        connect = connection.connect

        def connect_and_keep() -> None:
            connect()
            self._links[:] = [connection.sock]

        connection.connect = connect_and_keep  # type: ignore[method-assign]
        return connection


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, links: _Links) -> None:
        super().__init__()
        self._kept = links.kept

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            return self._kept(http.client.HTTPConnection(host, **options))

        return self.do_open(connection, req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, links: _Links) -> None:
        super().__init__()
        self._kept = links.kept

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            return self._kept(http.client.HTTPSConnection(host, **options))

        return self.do_open(connection, req)
