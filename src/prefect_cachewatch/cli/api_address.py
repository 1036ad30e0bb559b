"""The address of the Prefect API as it is configured, and whether it can be one; asks nobody."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_EXAMPLE = "http://127.0.0.1:4200/api"


def api_url() -> str:
    """Return the address of the configured API without its secrets; empty for a temporary server."""
    from prefect.settings import PREFECT_API_URL  # noqa: PLC0415 - Prefect is imported when it is used

    return for_terminal(redact(PREFECT_API_URL.value() or ""), 300)


def require_address(url: str) -> None:
    """Refuse an address at which no API can be.

    Args:
        url: as configured; empty for a temporary server.

    Raises:
        InputError: it has no scheme, another one, no host or no port that exists; the sentence names the setting.
    """
    fault, better = fault_of_address(url)
    if fault:
        raise InputError(f"PREFECT_API_URL {url} {fault}: write {better}")


def fault_of_address(url: str) -> tuple[str, str]:
    """Say what is wrong with an address, empty if it may be one; and what to write instead.

    Args:
        url: as configured; empty for a temporary server.

    Example:
        >>> fault_of_address("127.0.0.1:4200")
        ('has no scheme', 'http://127.0.0.1:4200/api')
        >>> fault_of_address("https:/prefect.site/api")
        ('is misspelt', 'https://prefect.site/api')
        >>> fault_of_address("http://:4200/api")
        ('names no host', 'http://127.0.0.1:4200/api')
    """
    if url != url.strip():
        return "has a blank at an end", url.strip()
    scheme, separator, _ = url.partition("://")
    if not url or (separator and scheme.lower() in ("http", "https")):
        return _fault_of_place(url), _EXAMPLE
    if found := re.match(r"(?i)(https?)[:/]+([^:/].*)", url):
        return "is misspelt", with_end(f"{found[1].lower()}://{found[2]}")
    if separator:
        return f"begins with {scheme}://, and an API's begins with http:// or https://", _EXAMPLE
    return "has no scheme", with_end(f"http://{url.lstrip('/')}")


def _fault_of_place(url: str) -> str:
    try:
        place = urlsplit(url)
        return "names no host" if url and not place.hostname else "" if place.port != 0 else "has no port that exists"
    except ValueError:
        return "has no port that exists"


def with_end(url: str) -> str:
    """Return an address with the `/api` that it lacks, else as it is."""
    path = url.partition("://")[2] or url
    return url if path.rstrip("/").endswith("/api") or "/api/" in path else f"{url.rstrip('/')}/api"
