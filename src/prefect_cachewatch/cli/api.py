"""The Prefect API as it is configured: its address, whether it answers, and a temporary server where there is none."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from prefect_cachewatch.common.console import lent_streams
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.common.within import within
from prefect_cachewatch.errors import InputError


def api_url() -> str:
    """Return the address of the configured API without its secrets; empty for a temporary server."""
    from prefect.settings import PREFECT_API_URL  # noqa: PLC0415 - Prefect is imported when it is used

    return for_terminal(redact(PREFECT_API_URL.value() or ""), 300)


def fault_of_address(url: str) -> str:
    """Say why no API can be at an address; empty if one may be. Asks nobody.

    Args:
        url: as configured; empty for a temporary server.

    Example:
        >>> fault_of_address("127.0.0.1:4200")
        'PREFECT_API_URL 127.0.0.1:4200 is no address of an API: write it like http://127.0.0.1:4200/api'
    """
    try:
        place = urlsplit(url)
        may_be = place.scheme in ("http", "https") and place.hostname and place.port != 0 and url == url.strip()
    except ValueError:
        may_be = False
    if may_be or not url:
        return ""
    return f"PREFECT_API_URL {url} is no address of an API: write it like http://127.0.0.1:4200/api"


def with_end(url: str) -> str:
    """Return an address with the `/api` that it lacks, else as it is."""
    path = url.partition("://")[2] or url
    return url if path.rstrip("/").endswith("/api") or "/api/" in path else f"{url.rstrip('/')}/api"


def check_api(patience_s: float, instead: str = ", or unset PREFECT_API_URL to use a temporary server") -> str:
    """Check that the configured Prefect API answers as one; without one, Prefect starts a temporary server.

    Args:
        patience_s: the longest wait.
        instead: what else the user can do, as the end of a sentence.

    Returns:
        The server's version; empty for Prefect Cloud and for a temporary server.

    Raises:
        InputError: it does not answer, or something else answers at its address.
    """
    url = api_url()
    if not url:
        return ""
    if fault := fault_of_address(url):
        raise InputError(fault)
    version: object = None
    try:
        version = within(patience_s, _ask_api)
    except TimeoutError:
        why = f"has not answered within {format_duration(patience_s)}"
    except ValueError:
        why = ""
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"answers {status}" if status is not None else "cannot be reached"
        if status in (401, 403):
            raise InputError(
                f"the Prefect API at {url} {why}: check PREFECT_API_KEY, or PREFECT_API_AUTH_STRING"
            ) from error
    else:
        why = ""
    if why:
        address = f"PREFECT_API_URL ends with /api: write {with_end(url)}; or " if with_end(url) != url else ""
        raise InputError(f"the Prefect API at {url} {why}: {address}start it with `prefect server start`{instead}")
    if not isinstance(version, str):
        raise InputError(
            f"what answers at {url} is no Prefect API (a login page, a proxy?): check PREFECT_API_URL, which ends with /api"
        )
    return version


def _ask_api() -> object:
    from prefect.client.base import ServerType  # noqa: PLC0415 - Prefect is imported when it is used
    from prefect.client.orchestration import get_client  # noqa: PLC0415

    with get_client(sync_client=True) as client:
        if (error := client.api_healthcheck()) is not None:
            raise error
        if client.server_type != ServerType.CLOUD:
            return client.api_version()
        client.read_flows(limit=1)  # Prefect's own clients never ask Cloud for its version: it may have none to tell
        return ""


def prepare_api(patience_s: float) -> None:
    """Check that the Prefect API answers, or prepare for a temporary server, before a flow runs in this process.

    Args:
        patience_s: the longest wait for an API.

    Raises:
        InputError: see `check_api`.
    """
    # A temporary server that sends telemetry delays its start by it, and most clusters have no way out.
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Prefect gives a temporary server 20 s; a busy machine with two cores sometimes needs longer.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    if api_url():
        check_api(patience_s)
    else:
        _start_temporary_server()


def _start_temporary_server() -> None:
    """Start Prefect's temporary server, if there is no API, with its output passed on as cachewatch's own.

    A server that waits for a reader of its output answers no request. The server stays until this process ends.
    """
    import httpx  # noqa: PLC0415 - comes with Prefect, which is imported when it is used
    from prefect.client.orchestration import get_client  # noqa: PLC0415

    try:
        with lent_streams():
            get_client(sync_client=True)
    except (RuntimeError, ValueError, httpx.HTTPError) as error:
        told = for_terminal(" ".join(str(error).split()) or type(error).__name__, 300).rstrip(".")
        raise InputError(
            f"the temporary Prefect server did not start ({told}): try again when this machine is less busy, or start "
            "one of your own (prefect server start) and set PREFECT_API_URL"
        ) from None
