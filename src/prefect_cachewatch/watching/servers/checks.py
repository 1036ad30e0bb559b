"""Checks whether a server is ready: one look at an address, a port, marker files, or a search in its output.

Each look is bounded in time, and never asks a file system from this process: a helper process looks for a
marker, since its file system may hang. `serving` decides when to look, and what follows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from prefect_cachewatch.common.bounded import HttpAddress, describe_failure
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import ScanError, ScanTimeout
from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.watching.matcher import WINDOW, OutputLines, PatternMatcher

if TYPE_CHECKING:
    from prefect_cachewatch.config import ReadyOnHttp, ReadyOnTcp, ReadyServer

# Seconds that one look may take.
LOOK_S = 5.0
_SHOWN_MAX = 200


class ReadyCheck(Protocol):
    """Looks whether something is ready."""

    def look(self) -> str | None:
        """Look once; None when it is ready, else what was seen instead, in a few words."""

    def close(self) -> None:
        """Release all resources."""


class HttpCheck:
    """Asks an HTTP address; a redirect is an answer and is not followed.

    Args:
        ready: the address.
        timeout_s: limit of one look, in seconds.

    Example:
        >>> from prefect_cachewatch.config import ReadyOnHttp
        >>> HttpCheck(ReadyOnHttp(url="http://127.0.0.1:9/")).look()
        'connection refused'
    """

    def __init__(self, ready: ReadyOnHttp, timeout_s: float = LOOK_S) -> None:
        self._timeout_s = timeout_s
        self._address = HttpAddress(ready.url)

    def look(self) -> str | None:
        """Ask once; None when it is ready."""
        return self._address.ask(self._timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._address.close()


class TcpCheck:
    """Connects to a port.

    Args:
        ready: host and port.

    Example:
        >>> from prefect_cachewatch.config import ReadyOnTcp
        >>> TcpCheck(ReadyOnTcp(port=9)).look()
        'connection refused'
    """

    def __init__(self, ready: ReadyOnTcp) -> None:
        self._ready = ready

    def look(self) -> str | None:
        """Connect once; None when it is ready."""
        try:
            with socket.create_connection((self._ready.host, self._ready.port), LOOK_S) as link:
                # The kernel may give a free port to the very connection that asks for it.
                return "connection refused" if link.getsockname() == link.getpeername() else None
        except (OSError, UnicodeError) as error:
            return describe_failure(error)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class FileCheck:
    """Looks for marker files through a helper process; a file that existed at `begin` counts only once it has changed.

    Args:
        paths: absolute.
        timeout_s: limit of one look, in seconds.
    """

    def __init__(self, paths: Sequence[str], timeout_s: float = LOOK_S) -> None:
        self._paths, self._timeout_s = list(paths), timeout_s
        self._helper = DirectoryScanner()
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Note which files exist before the start.

        Raises:
            ScanError: the file system does not answer.
        """
        self._before = self._helper.request("identify", max(self._timeout_s, 10.0), paths=self._paths)["files"]

    def look(self) -> str | None:
        """Look once; None when the first of the files has been written."""
        written = self.written()
        if isinstance(written, str):
            return written
        if self._paths[0] in written:
            return None
        return (
            "it was there before the start and has not been written again"
            if self._before[self._paths[0]]
            else "not there"
        )

    def written(self) -> set[str] | str:
        """Say which files have been written since `begin`, or why that is not known."""
        try:
            if self._helper.pending:  # never a second request while one hangs
                answer = self._helper.receive(self._timeout_s)
            else:
                answer = self._helper.request("identify", self._timeout_s, paths=self._paths)
        except ScanTimeout:
            return "its file system does not answer"
        except ScanError as error:
            self._helper.close()  # one that has died is started again at the next look
            return f"cannot be looked for: {error.message}"
        now = answer["files"]
        return {path for path in self._paths if now[path] is not None and now[path] != self._before.get(path)}

    def close(self) -> None:
        """End the helper."""
        self._helper.close()


class LogSearch:
    """Searches a stream of output, in chunks of any size, for a line; of each line its first 4,096 bytes.

    Args:
        pattern: a regular expression; ^ and $ are a line's begin and end.
        matcher: matcher of the pattern; default a new one.

    Example:
        >>> search = LogSearch("startup complete$")
        >>> search.feed(b"INFO: application start"), search.look()
        (None, 'not printed yet')
        >>> search.feed(b"up complete"), search.look()
        (None, None)
        >>> search.close()
    """

    def __init__(self, pattern: str, matcher: PatternMatcher | None = None) -> None:
        self.found = False
        self._matcher = matcher or PatternMatcher(pattern)
        self._lines = OutputLines()

    @property
    def problem(self) -> str | None:
        """Why output was not searched to its end; None if all was."""
        return self._matcher.problem

    def begin(self) -> None:
        """Start the process that searches; raises OSError."""
        self._matcher.start()

    def feed(self, data: bytes | memoryview) -> None:
        """Take in output; costs one search over it by another process, no work per line."""
        for at in range(0, len(data), WINDOW):
            if self.found:
                return
            self.found = self._is_in(self._lines.add(bytes(data[at : at + WINDOW])))

    def look(self) -> str | None:
        """Say whether it has been printed, even in a line that has not ended yet."""
        self.found = self.found or self._is_in(self._lines.rest)
        return None if self.found else self.problem or "not printed yet"

    def close(self) -> None:
        """End the process that searches."""
        self._matcher.close()

    def _is_in(self, data: bytes) -> bool:
        return bool(data) and self._matcher.search(data)


def make_check(ready: ReadyServer, first_dir: str) -> ReadyCheck:
    """Make the check for a kind of readiness.

    Args:
        ready: the job's readiness.
        first_dir: first cache directory, resolved; a relative marker lies in it.
    """
    if ready.kind == "http":
        return HttpCheck(ready)
    if ready.kind == "tcp":
        return TcpCheck(ready)
    if ready.kind == "file":
        return FileCheck([os.path.join(first_dir, ready.path)])
    return LogSearch(ready.pattern)


def describe_wanted(ready: ReadyServer) -> tuple[str, str]:
    """Describe what is waited for, and how it looks when it has not come.

    Args:
        ready: the job's readiness.

    Returns:
        The thing, safe for a terminal and without secrets; and a verb phrase that says that it never came.

    Example:
        >>> from prefect_cachewatch.config import ReadyOnTcp
        >>> describe_wanted(ReadyOnTcp(port=8000))
        ('127.0.0.1:8000', 'never took a connection')
    """
    if ready.kind == "http":
        return for_terminal(redact(ready.url), _SHOWN_MAX), "never answered 200"
    if ready.kind == "tcp":
        host = f"[{ready.host}]" if ":" in ready.host else ready.host
        return for_terminal(f"{host}:{ready.port}", _SHOWN_MAX), "never took a connection"
    if ready.kind == "file":
        return f"marker {for_terminal(str(ready.path), _SHOWN_MAX)}", "was never written"
    return f"a line that matches {for_terminal(redact(ready.pattern), _SHOWN_MAX)!r}", "was never printed"
