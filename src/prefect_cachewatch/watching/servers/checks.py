"""Checks whether a server is ready: one look at an address, a port, a marker file, or a search in its output.

Each look is bounded in time. `serving` decides when to look, and what follows.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

from prefect_cachewatch.common.http_address import HttpAddress, describe_failure
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.within import within
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.watching.matcher import WINDOW, OutputLines, PatternMatcher

if TYPE_CHECKING:
    from prefect_cachewatch.config import ReadyOnFile, ReadyOnHttp, ReadyOnLog, ReadyOnTcp, ReadyServer

# Seconds that one look may take.
LOOK_S = 5.0
_BEGIN_S = 10.0
_SHOWN_MAX = 200


class ReadyCheck:
    """Looks whether something is ready.

    Attributes:
        what: the thing waited for, safe for a terminal and without secrets.
        never: a verb phrase that says that it has not come.
        remains: whether its sign is still there after the end of the process that gave it.
        problem: why output was not searched to its end; None if all was, or none is searched.
    """

    what: str
    never: str
    remains = False
    problem: str | None = None

    def begin(self) -> None:
        """Look before the start; raises InputError if there is something ready already."""
        if self.look() is None:
            raise InputError(
                f"{self.what} is ready before the generator was started, so another server is running there: stop it "
                "(cachewatch stop --list shows those that were handed over), or give this one another port"
            )

    def feed(self, data: bytes | memoryview) -> bool:
        """Take in output; returns whether it has just become ready."""
        return False

    def look(self) -> str | None:
        """Look once; None when it is ready, else what was seen instead, in a few words."""
        raise NotImplementedError

    def close(self) -> None:
        """Release all resources."""


class HttpCheck(ReadyCheck):
    """Asks an HTTP address; a redirect is an answer and is not followed.

    Args:
        ready: the address.
        timeout_s: limit of one look, in seconds.

    Example:
        >>> from prefect_cachewatch.config import ReadyOnHttp
        >>> HttpCheck(ReadyOnHttp(url="http://127.0.0.1:9/")).look()
        'connection refused'
    """

    never = "never answered 200"

    def __init__(self, ready: ReadyOnHttp, timeout_s: float = LOOK_S) -> None:
        self.what = for_terminal(redact(ready.url), _SHOWN_MAX)
        self._timeout_s = timeout_s
        self._address = HttpAddress(ready.url)

    def look(self) -> str | None:
        """Ask once."""
        return self._address.ask(self._timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._address.close()


class TcpCheck(ReadyCheck):
    """Connects to a port.

    Args:
        ready: host and port.

    Example:
        >>> from prefect_cachewatch.config import ReadyOnTcp
        >>> check = TcpCheck(ReadyOnTcp(port=9))
        >>> check.what, check.look()
        ('127.0.0.1:9', 'connection refused')
    """

    never = "never took a connection"

    def __init__(self, ready: ReadyOnTcp) -> None:
        host = f"[{ready.host}]" if ":" in ready.host else ready.host
        self.what = for_terminal(f"{host}:{ready.port}", _SHOWN_MAX)
        self._ready = ready

    def look(self) -> str | None:
        """Connect once."""
        try:
            with socket.create_connection((self._ready.host, self._ready.port), LOOK_S) as link:
                # The kernel may give a free port to the very connection that asks for it.
                return "connection refused" if link.getsockname() == link.getpeername() else None
        except (OSError, UnicodeError) as error:
            return describe_failure(error)


class FileCheck(ReadyCheck):
    """Looks for a marker file; one that existed at `begin` counts only once it has changed.

    Args:
        ready: the marker.
        first_dir: a relative marker lies in it.
        timeout_s: limit of one look, in seconds.
    """

    never = "was never written"
    remains = True

    def __init__(self, ready: ReadyOnFile, first_dir: str, timeout_s: float = LOOK_S) -> None:
        self.what = f"marker {for_terminal(str(ready.path), _SHOWN_MAX)}"
        self._path, self._timeout_s = os.path.join(first_dir, ready.path), timeout_s
        self._before: tuple[int, ...] | None = None
        self._looking = threading.Lock()

    def begin(self) -> None:
        """Note whether it exists before the start; raises InputError if its file system does not answer."""
        try:
            self._before = self._identify(max(self._timeout_s, _BEGIN_S))
        except OSError as error:
            raise InputError(f"the marker file cannot be looked for: {error.strerror}") from error

    def look(self) -> str | None:
        """Look once."""
        try:
            now = self._identify(self._timeout_s)
        except TimeoutError as error:
            return error.strerror
        except OSError as error:
            return f"cannot be looked for: {error.strerror}"
        if now is not None and now != self._before:
            return None
        return "it was there before the start and has not been written again" if self._before else "not there"

    def _identify(self, timeout_s: float) -> tuple[int, ...] | None:
        """What tells the file from one that was written anew; None if there is none."""
        if not self._looking.acquire(timeout=timeout_s):  # one look hangs, and more would hang with it
            raise TimeoutError(0, "its file system does not answer")

        def identify() -> tuple[int, ...] | None:
            try:
                found = os.stat(self._path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            finally:
                self._looking.release()
            return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

        answer: tuple[int, ...] | None = within(timeout_s, identify)
        return answer


class LogCheck(ReadyCheck):
    """Searches a stream of output, in chunks of any size, for a line; of each line its first 4,096 bytes.

    Args:
        ready: a regular expression; ^ and $ are a line's begin and end.

    Example:
        >>> from prefect_cachewatch.config import ReadyOnLog
        >>> check = LogCheck(ReadyOnLog(pattern="startup complete$"))
        >>> check.feed(b"INFO: application start"), check.look()
        (False, 'not printed yet')
        >>> check.feed(b"up complete"), check.look()
        (False, None)
    """

    never = "was never printed"
    remains = True

    def __init__(self, ready: ReadyOnLog) -> None:
        self.what = f"a line that matches {for_terminal(redact(ready.pattern), _SHOWN_MAX)!r}"
        self.found = False
        self._matcher = PatternMatcher(ready.pattern)
        self._lines = OutputLines()

    def begin(self) -> None:
        """Do nothing: nothing has been printed yet."""

    def feed(self, data: bytes | memoryview) -> bool:
        """Take in output; costs one search over it, no work per line."""
        before = self.found
        for at in range(0, len(data), WINDOW):
            self._search(self._lines.add(bytes(data[at : at + WINDOW])))
        return self.found and not before

    def look(self) -> str | None:
        """Say whether it has been printed, even in a line that has not ended yet."""
        self._search(self._lines.rest)
        return None if self.found else self.problem or "not printed yet"

    def _search(self, data: bytes) -> None:
        if data and not self.found:
            self.found = self._matcher.search(data)
            self.problem = self._matcher.problem


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
        return FileCheck(ready, first_dir)
    return LogCheck(ready)
