"""The HTTP endpoint that Prometheus scrapes: one socket per process, shared by its runs, open while one of them lasts.

It answers GET /metrics, and at / says where that is. It has no TLS and no password: use it on loopback, or in a private network.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError, MetricsPortTaken
from prefect_cachewatch.metrics.destination import HttpAddress
from prefect_cachewatch.metrics.exposition import make_registry, render
from prefect_cachewatch.metrics.run import RunMetrics
from prefect_cachewatch.metrics.server import Answer, PageServer

_ENDED_MAX = 100
_SCRAPERS_MAX = 100
_LOOK_S = 0.2
_INDEX = b"prefect-cachewatch: metrics are at /metrics\n"


_OPEN: dict[HttpAddress, Endpoint] = {}
_SHARING = threading.Lock()


class Endpoint:
    """A listening socket and the runs on its page.

    Args:
        address: where to listen; the first free port is taken.

    Raises:
        MetricsPortTaken: no port is free.
        InputError: it cannot listen on the host.

    Example:
        >>> endpoint = Endpoint(HttpAddress("127.0.0.1", 0, 0))
        >>> endpoint.url.startswith("http://127.0.0.1:")
        True
        >>> endpoint.close()
    """

    def __init__(self, address: HttpAddress) -> None:
        self.users = 0
        self.registry = make_registry(self._listed)
        self._lock = threading.Lock()
        self._runs: dict[str, RunMetrics] = {}
        self._scrapers: set[str] = set()
        self._served: set[str] = set()  # including the values of ended runs that stay
        self._server = _bind(address, self._respond)
        host, port = self._server.address[:2]
        self.url = f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}/metrics"
        self._server.start()

    def add(self, run: RunMetrics) -> None:
        """Put a run on the page; beyond a hundred, the oldest ended runs are removed from it.

        Args:
            run: a later run of the same cache replaces an earlier one, and continues its counters.
        """
        with self._lock:
            earlier = self._runs.pop(run.cache, None)
            if earlier is not None:
                run.count_on(earlier.snapshot())
            self._runs[run.cache] = run
            self._served.clear()
            ended = [cache for cache, listed in self._runs.items() if listed.ended]
            for cache in ended[: max(0, len(ended) - _ENDED_MAX)]:
                del self._runs[cache]

    def scraped(self, scraper: str, final: bool) -> None:
        """Note that a scraper has got the page.

        Args:
            scraper: its address.
            final: whether every run had ended before the page was made.
        """
        with self._lock:
            if len(self._scrapers) < _SCRAPERS_MAX:
                self._scrapers.add(scraper)
            if final and scraper in self._scrapers:
                self._served.add(scraper)

    def linger(self, linger_s: float, interrupted: Callable[[], bool]) -> None:
        """Wait until every scraper of the page has scraped it since the last run ended.

        Args:
            linger_s: the longest wait in seconds.
            interrupted: whether to return at once; asked five times a second.
        """
        end_s = time.monotonic() + linger_s
        while not interrupted() and (left_s := end_s - time.monotonic()) > 0:
            with self._lock:
                if self._scrapers <= self._served:
                    return
            time.sleep(min(_LOOK_S, left_s))

    @property
    def was_scraped(self) -> bool:
        """Whether a scraper has asked for the page."""
        return bool(self._scrapers)

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _respond(self, path: str, headers: Mapping[str, str], client: str) -> Answer:
        if path == "/metrics":
            final = all(run.ended for run in self._listed())
            body, kind = render(self.registry, headers.get("accept", ""))
            return Answer(200, kind, body, sent=lambda: self.scraped(client, final))
        return Answer(200 if path == "/" else 404, "text/plain; charset=utf-8", _INDEX)

    def _listed(self) -> list[RunMetrics]:
        with self._lock:
            return list(self._runs.values())


class EndpointShare:
    """One run's share of this process's endpoint at an address; the first opens it and the last closes it.

    Args:
        address: where to listen.
        run: the run to put on the page.

    Raises:
        MetricsPortTaken: no port of the address is free.
        InputError: it cannot listen on the host.
    """

    problem: str | None = None

    def __init__(self, address: HttpAddress, run: RunMetrics) -> None:
        self._address = address
        with _SHARING:
            self._endpoint = _OPEN.get(address) or _OPEN.setdefault(address, Endpoint(address))
            self._endpoint.users += 1
        self._endpoint.add(run)

    @property
    def where(self) -> str:
        """The URL."""
        return self._endpoint.url

    @property
    def lingers(self) -> bool:
        """Whether it has been scraped, and no other run keeps the endpoint open."""
        return self._endpoint.was_scraped and self._endpoint.users == 1

    def changed(self) -> None:
        """Do nothing: a scrape reads the values."""

    def release(self, linger_s: float, interrupted: Callable[[], bool]) -> None:
        """Leave the endpoint; the last run to leave waits for the scrapers, and closes it.

        Args:
            linger_s: the longest wait in seconds.
            interrupted: whether to return at once.
        """
        endpoint = self._endpoint
        try:
            endpoint.linger(linger_s, lambda: endpoint.users > 1 or interrupted())
        finally:  # also if a cancellation ends the wait
            with _SHARING:
                endpoint.users -= 1
                last = endpoint.users == 0
                if last:
                    del _OPEN[self._address]
            if last:
                endpoint.close()


def _bind(address: HttpAddress, respond: Callable[[str, Mapping[str, str], str], Answer]) -> PageServer:
    shown = for_terminal(str(address))
    refused: OSError | None = None
    for port in range(address.first_port, address.last_port + 1):
        try:
            found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return PageServer(found[0][0], found[0][4], respond)
        except (socket.gaierror, UnicodeError) as error:
            raise InputError(
                f"metrics cannot be served on {shown}: the host is not known; write an address, as in 127.0.0.1:{port}"
            ) from error
        except OSError as error:
            refused = error
            if error.errno != errno.EADDRINUSE:
                break
    assert refused is not None
    if refused.errno == errno.EADDRINUSE:
        what = "the port is" if address.first_port == address.last_port else "all the ports are"
        raise MetricsPortTaken(
            f"metrics cannot be served on {shown}: {what} taken by another process; give a range as in "
            f":{address.first_port}-{min(65535, address.last_port + 15)}, or file:DIRECTORY, where any number of runs fit"
        ) from refused
    if refused.errno == errno.EADDRNOTAVAIL:
        hint = "this machine has no such address; 0.0.0.0 listens on all it has"
    elif refused.errno in (errno.EACCES, errno.EPERM):
        hint = "ports below 1024 are root's; choose a higher one"
    else:
        hint = f"{refused.strerror}; choose another address"
    raise InputError(f"metrics cannot be served on {shown}: {hint}") from refused
