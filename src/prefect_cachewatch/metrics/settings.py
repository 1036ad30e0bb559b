"""The destination of metrics as users write it: `127.0.0.1:9464`, `:9464`, `file:/var/lib/node-exporter`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config.quantities import Shorthand

_LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[A-Za-z0-9._-]*)):)?(?P<port>\d{1,5})")
_EXAMPLES = "write it like 127.0.0.1:9464, :9464, or file:DIRECTORY for node-exporter"


@dataclass(frozen=True)
class HttpAddress:
    """An endpoint's host and port; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Metrics(Shorthand):
    """Prometheus metrics of a run, on the machine that runs it; in Python and YAML the destination alone is enough."""

    to: str = Field(description="HOST:PORT, :PORT on loopback, or file:DIRECTORY for node-exporter.")

    @property
    def target(self) -> HttpAddress | str:
        """The endpoint, or the directory that node-exporter's textfile collector reads."""
        return parse_destination(self.to)

    @classmethod
    def _read(cls, text: str) -> dict[str, Any]:
        return {"to": text}

    @field_validator("to")
    @classmethod
    def _destination(cls, where: str) -> str:
        parse_destination(where)
        return where


def parse_destination(text: str) -> HttpAddress | str:
    """Read a destination of metrics.

    Args:
        text: `HOST:PORT`, `[IPV6]:PORT`, `:PORT` or `PORT` (loopback), or `file:DIRECTORY`. Another interface than
            loopback is used only if it is named, as in `0.0.0.0:9464`.

    Returns:
        The endpoint, or the directory; neither has been checked.

    Raises:
        ValueError: it is none of these.

    Example:
        >>> parse_destination(":9464"), parse_destination("file:/var/lib/metrics")
        (HttpAddress(host='127.0.0.1', port=9464), '/var/lib/metrics')
    """
    given, shown = text.strip(), for_terminal(text, 80)
    if given.startswith("file:"):
        path = given.removeprefix("file:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path or "\0" in path:
            raise ValueError(f"metrics destination {shown!r} names no directory: {_EXAMPLES}")
        return path
    found = _ADDRESS.fullmatch(given)
    if found is None:
        raise ValueError(f"metrics destination {shown!r} is no address: {_EXAMPLES}")
    port = int(found["port"])
    if port > 65535:
        raise ValueError(f"metrics destination {shown!r} has a port above 65535: {_EXAMPLES}")
    return HttpAddress(found["six"] or found["host"] or _LOOPBACK, port)
