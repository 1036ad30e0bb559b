"""Addresses of the Prefect API: which may be one, and what is said of the others by each command that needs one."""

from __future__ import annotations

import pytest

from prefect_cachewatch.cli.api import fault_of_address, with_end


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:4200/api",
        "http:/h/api",
        "https//h/api",
        "ftp://h/api",
        "http://",
        "http://h:42000000/api",
        " http://h/api",
    ],
)
def test_an_address_that_cannot_be_one_is_named(url: str) -> None:
    assert url in fault_of_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://127.0.0.1:4200/api",
        "HTTP://h/api",
        "http://[::1]:4200/api",
        "https://api.prefect.cloud/api/accounts/a/workspaces/b",
    ],
)
def test_an_address_that_may_be_one_is_left(url: str) -> None:
    assert fault_of_address(url) == ""


def test_an_end_that_is_missing_is_added() -> None:
    assert with_end("http://h:1/") == "http://h:1/api"
    assert with_end("http://h/api/accounts/a") == "http://h/api/accounts/a"
