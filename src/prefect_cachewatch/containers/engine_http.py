"""The few requests that a helper process makes to a container engine's API; standard library only.

It speaks Docker's API over a unix socket or plain TCP. Each request has its own connection and a deadline: an engine
that hangs delays its caller that long and no longer. Paths carry no API version, and both Docker and podman then answer
with their own. `engine` uses the docker SDK for everything else.
"""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class EngineSilent(Exception):
    """The engine gave no answer: it does not exist, or missed the deadline."""


class EngineRefused(Exception):
    """The engine answered with an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Connection(http.client.HTTPConnection):
    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = urllib.parse.urlsplit(url)
        super().__init__(self._url.hostname or "engine", self._url.port or 2375, timeout=timeout_s)

    def connect(self) -> None:
        if self._url.scheme != "unix":
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._url.path)


class EngineHttp:
    """One engine.

    Args:
        url: `unix:///path` or `tcp://host:port`.

    Example:
        >>> try:
        ...     EngineHttp("unix:///nonexistent/engine.sock").call("GET", "/_ping", 1.0)
        ... except EngineSilent as error:
        ...     print(error)
        No such file or directory
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ping(self, timeout_s: float) -> tuple[str, bool]:
        """Ping the engine; return its version of Docker's API, and whether it is podman."""
        _, headers = self._exchange("GET", "/_ping", timeout_s)
        return headers.get("Api-Version") or "", "Libpod-API-Version" in headers

    def call(self, method: str, path: str, timeout_s: float, **query: str) -> Any:
        """Make one request.

        Args:
            method: of HTTP.
            path: without an API version.
            timeout_s: the longest wait for each part of the answer.
            query: parameters.

        Returns:
            The answer's JSON; None if it has none.

        Raises:
            EngineSilent: no answer.
            EngineRefused: the answer is an error.
        """
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        body, _ = self._exchange(method, target, timeout_s)
        try:
            return json.loads(body) if body.strip() else None
        except ValueError:
            return None

    def _exchange(self, method: str, target: str, timeout_s: float) -> tuple[bytes, Any]:
        connection = _Connection(self.url, timeout_s)
        try:
            connection.request(method, target, headers={"Connection": "close"})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            timed_out = isinstance(error, TimeoutError)
            why = (
                f"no answer within {timeout_s:.0f} s" if timed_out else getattr(error, "strerror", None) or repr(error)
            )
            raise EngineSilent(why) from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise EngineRefused(answer.status, _message_in(body) or answer.reason)
        return body, answer.headers

    def inspect(self, container: str, timeout_s: float) -> dict[str, Any] | None:
        """Inspect a container; None if it does not exist."""
        try:
            found: dict[str, Any] = self.call("GET", f"/containers/{container}/json", timeout_s)
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise
        return found

    def labelled(self, label: str, timeout_s: float) -> list[dict[str, Any]]:
        """List the containers with a label (`name` or `name=value`), running or not."""
        filters = json.dumps({"label": [label]})
        found: list[dict[str, Any]] = self.call("GET", "/containers/json", timeout_s, all="1", filters=filters)
        return found or []

    def send_signal(self, container: str, signal_name: str, timeout_s: float) -> bool:
        """Signal a container's first process; false if the container is not running."""
        try:
            self.call("POST", f"/containers/{container}/kill", timeout_s, signal=signal_name)
        except EngineRefused as error:
            if error.status in (404, 409, 500):  # podman's 500 is "can only kill running containers"
                return False
            raise
        return True

    def unpause(self, container: str, timeout_s: float) -> None:
        """Let a paused container go on; no effect on any other one."""
        try:
            self.call("POST", f"/containers/{container}/unpause", timeout_s)
        except EngineRefused:
            return

    def rename(self, container: str, name: str, timeout_s: float) -> None:
        """Give a container another name."""
        self.call("POST", f"/containers/{container}/rename", timeout_s, name=name)

    def remove(self, container: str, timeout_s: float) -> None:
        """Remove a container with its anonymous volumes; a missing one is no error."""
        try:
            self.call("DELETE", f"/containers/{container}", timeout_s, force="1", v="1")
        except EngineRefused as error:
            if error.status not in (404, 409):  # 409: its removal is already under way
                raise


def _message_in(body: bytes) -> str:
    try:
        content = json.loads(body)
    except ValueError:
        return ""
    return str(content.get("message") or "") if isinstance(content, dict) else ""
