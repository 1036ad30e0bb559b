"""The scan process's client: a request gets an answer or a `ScanTimeout` by its deadline; it never hangs.

A scan process that is stuck in the kernel is left alone, and no second one is started meanwhile.
"""

from __future__ import annotations

import json
import math
import select
import socket
import subprocess
import time
from typing import Any

from prefect_cachewatch.errors import ScanError, ScanTimeout
from prefect_cachewatch.supervise.helper_client import spawn_helper
from prefect_cachewatch.supervise.tending import Tended

MIN_DEADLINE_S = 10.0
DEADLINE_FACTOR = 5.0
_TEND_EVERY_S = 0.5


class DirectoryScanner:
    """One scan process and the connection to it; not thread-safe, one owner.

    Args:
        deadline_s: the shortest time after which a scan counts as not answering.

    Example:
        >>> scanner = DirectoryScanner()
        >>> scanner.request("check", path="/nonexistent/x", create=False)["error"][:15]
        'cache directory'
        >>> scanner.close()
    """

    def __init__(self, deadline_s: float = MIN_DEADLINE_S) -> None:
        self._least_deadline_s = deadline_s
        self.last_scan_s = 0.0
        self.pending = False
        self._buffer = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._tended: Tended | None = None

    @property
    def deadline_s(self) -> float:
        """How long a scan may take: max(10 s, 5 x the last one)."""
        return max(self._least_deadline_s, DEADLINE_FACTOR * self.last_scan_s)

    @property
    def pid(self) -> int | None:
        """The scan process's pid, None before the first request."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process if it is not running yet; does not wait for it."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = spawn_helper(
                "prefect_cachewatch.measure.scan_process",
                theirs.fileno(),
                [theirs.fileno()],
                "cachewatch-scanner",
            )
        self._tended = Tended(self._process.pid)
        self._socket, self._buffer, self.pending = ours, b"", False

    def send(self, operation: str, **arguments: Any) -> None:
        """Send a request without waiting; allowed only when none is pending."""
        self.start()
        assert self._socket is not None
        if self.pending:
            raise ScanTimeout("the scan process has not answered the last request yet")
        data = json.dumps({"op": operation, **arguments}).encode() + b"\n"
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ScanError(f"the scan process ended: {error.strerror}") from error
        self.pending = True

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the answer to the pending request.

        Args:
            timeout_s: the longest wait.

        Returns:
            The answer.

        Raises:
            ScanTimeout: no answer in time; the request stays pending and its answer may still come.
            ScanError: the process ended, or reported a failure.
        """
        assert self._socket is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            # Read the socket before the clock: after a pause of this very process both may be due.
            left = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._socket], [], [], min(left, _TEND_EVERY_S))
            if not readable and left > _TEND_EVERY_S:
                if self._tended is not None:  # another process may have stopped it; the file system is not to blame
                    self._tended.look(math.inf)
                continue
            if not readable:
                raise ScanTimeout(f"the cache directory did not answer within {timeout_s:.1f} s")
            try:
                chunk = self._socket.recv(1 << 18)
            except OSError:
                chunk = b""
            if not chunk:
                self.pending = False
                raise ScanError("the scan process ended unexpectedly")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.pending = False
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise ScanError(str(answer["failure"]), errno=answer.get("errno"))
        if "scan_s" in answer:
            self.last_scan_s = float(answer["scan_s"])
        return answer

    def request(self, operation: str, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Args:
            operation: what to do: begin, scan, listing, rewriting, check, overlap, identify, remember, sight, clean.
            timeout_s: the longest wait; default `deadline_s`.
            arguments: of the operation.

        Returns:
            The answer.

        Raises:
            ScanTimeout: no answer in time, or the last request is still unanswered.
            ScanError: the process ended or failed.
        """
        least_s = self.deadline_s if timeout_s is None else timeout_s
        if self.pending:
            self.receive(least_s)  # of a scan that was cut short: nobody waits for its answer any more
        self.send(operation, **arguments)
        return self.receive(least_s)

    def close(self) -> None:
        """Let the process end; one that is stuck in the kernel ends when the kernel allows it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        try:
            process.wait(0.05 if self.pending else 1.0)
        except subprocess.TimeoutExpired:
            # In the kernel's D state SIGKILL takes effect only when the file system answers. By design there is no wait
            # for it.
            process.returncode = -9
