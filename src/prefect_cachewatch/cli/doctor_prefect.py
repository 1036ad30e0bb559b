"""What `cachewatch doctor` finds out about Prefect: the API's address, whether it answers in time, its version."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect_cachewatch.cli.api_address import api_url, fault_of_address, with_end
from prefect_cachewatch.cli.api_patience import check_api
from prefect_cachewatch.cli.doctor_checks import Check
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_COSTS = "generate, fleet and deployed flows (exec and watch do without)"


def check_prefect(home: str, patience_s: float) -> Check:
    """Check that the configured Prefect API answers, and compare its version with the client's.

    Args:
        home: of Prefect, which answers.
        patience_s: the longest wait for each request.
    """
    with _home_left_alone(home):
        try:
            url = api_url()
            return _check_address(url, patience_s)
        except Exception as error:  # noqa: BLE001 - Prefect refuses its settings, in one of many ways
            said = for_terminal(redact(" ".join(str(error).split())), 200)
    return Check("Prefect", "missing", f"refuses its settings: {said}", _COSTS, "correct the PREFECT_ variables")


def _check_address(url: str, patience_s: float) -> Check:
    import prefect  # noqa: PLC0415 - takes seconds, and is loaded when its home is known to answer

    facts: dict[str, Any] = {"url": url, "client": prefect.__version__}
    if not url:
        said = f"{prefect.__version__}, no PREFECT_API_URL: a temporary server is started"
        return Check("Prefect", "ok", said, facts=facts)
    fault, better = fault_of_address(url)
    if fault:
        return Check("Prefect", "missing", f"PREFECT_API_URL {url} {fault}", _COSTS, f"set it to {better}", facts)
    try:
        server = check_api(patience_s)
    except InputError as error:
        advice = f"an address ends with /api: try {with_end(url)}" if with_end(url) != url else ""
        return Check("Prefect", "missing", error.message, _COSTS, advice, facts)
    facts["server"] = server
    return compare_versions(prefect.__version__, server, facts)


def compare_versions(client: str, server: str, facts: Mapping[str, Any]) -> Check:
    """Compare versions of Prefect.

    Args:
        client: of this installation.
        server: of the API; empty for Prefect Cloud, which takes every client.
        facts: with the address of the API as `url`.

    Example:
        >>> compare_versions("3.8.8", "3.7.5", {"url": "http://h/api"}).state
        'warning'
    """
    ours, theirs = _numbers(client), _numbers(server)
    said = f"{client}, {facts['url']} answers" + (f" with {server}" if server else "")
    if not server or not theirs or theirs == ours:
        return Check("Prefect", "ok", said, facts=facts)
    if theirs[0] != ours[0]:
        return Check(
            "Prefect", "missing", said, _COSTS, f"install Prefect {theirs[0]} here, or upgrade the server", facts
        )
    if theirs < ours:
        costs = "what is newer in the client, perhaps: the server is older"
        return Check("Prefect", "warning", said, costs, f"upgrade the server to {client}", facts)
    return Check("Prefect", "ok", said, facts=facts)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


@contextlib.contextmanager
def _home_left_alone(home: str) -> Iterator[None]:
    """Let Prefect make no home: where there is none, it gets a place where none can be made while it is asked."""
    if Path(home).exists():
        yield
        return
    before = os.environ.get("PREFECT_HOME")
    os.environ["PREFECT_HOME"] = f"{os.devnull}/none"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Prefect's, that it could not make its home
            yield
    finally:
        os.environ.pop("PREFECT_HOME")
        if before is not None:
            os.environ["PREFECT_HOME"] = before
