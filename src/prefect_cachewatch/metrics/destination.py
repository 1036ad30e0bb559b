"""The destination of metrics as written: `127.0.0.1:9464`, `:9464-9479`, `file:/var/lib/node-exporter`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_LOOPBACK = "127.0.0.1"
_PORTS_MAX = 256
_ADDRESS = re.compile(
    r"(?:(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[A-Za-z0-9._-]*)):)?(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?"
)
_EXAMPLES = "write it like 127.0.0.1:9464, :9464-9479, or file:DIRECTORY for node-exporter"


@dataclass(frozen=True)
class HttpAddress:
    """An endpoint's host and ports, of which the first free one is taken; port 0 is any free one."""

    host: str
    first_port: int
    last_port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        ports = str(self.first_port) if self.first_port == self.last_port else f"{self.first_port}-{self.last_port}"
        return f"{host}:{ports}"


@dataclass(frozen=True)
class TextfileDirectory:
    """A directory that node-exporter's textfile collector reads."""

    path: str


def parse_destination(text: str) -> HttpAddress | TextfileDirectory:
    """Read a destination of metrics.

    Args:
        text: `HOST:PORT`, `[IPV6]:PORT`, `:PORT` or `PORT` (loopback), a range of ports `FIRST-LAST`, or
            `file:DIRECTORY`. Another interface than loopback is used only if it is named, as in `0.0.0.0:9464`.

    Returns:
        The destination; it has not been checked.

    Raises:
        InputError: it is none of these.

    Example:
        >>> parse_destination(":9464"), parse_destination("file:/var/lib/metrics")
        (HttpAddress(host='127.0.0.1', first_port=9464, last_port=9464), TextfileDirectory(path='/var/lib/metrics'))
    """
    given, shown = text.strip(), for_terminal(text, 80)
    if given.startswith("file:"):
        path = given.removeprefix("file:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path or "\0" in path:
            raise InputError(f"metrics destination {shown!r} names no directory: {_EXAMPLES}")
        return TextfileDirectory(path)
    found = _ADDRESS.fullmatch(given)
    if found is None:
        raise InputError(f"metrics destination {shown!r} is no address: {_EXAMPLES}")
    first = int(found["first"])
    last = int(found["last"]) if found["last"] else first
    if max(first, last) > 65535:
        raise InputError(f"metrics destination {shown!r} has a port above 65535: {_EXAMPLES}")
    if last < first or (first == 0 and last > 0) or last - first >= _PORTS_MAX:
        raise InputError(
            f"metrics destination {shown!r} is no range of ports: give at most {_PORTS_MAX}, the lower one first, as in :9464-9479"
        )
    return HttpAddress(found["six"] or found["host"] or _LOOPBACK, first, last)
