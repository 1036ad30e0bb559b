"""The temporary Prefect server of a command: kept from waiting for whoever reads what it says."""

from __future__ import annotations

from typing import Any

from prefect_cachewatch.cli.api_patience import api_url
from prefect_cachewatch.common.console import lent_streams

__all__ = ["shield_temporary_server"]


def shield_temporary_server() -> None:
    """Have what a temporary server says written as what we say: one that waits for a reader answers no request."""
    if api_url():
        return
    from prefect.server.api.server import SubprocessASGIServer  # noqa: PLC0415 - Prefect is imported when it is used

    server: Any = SubprocessASGIServer()  # the one of this process, which Prefect's clients start
    if (start := getattr(server, "_run_uvicorn_command", None)) is None:
        return

    def start_apart() -> object:
        with lent_streams():
            return start()

    server._run_uvicorn_command = start_apart
