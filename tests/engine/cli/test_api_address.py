"""Addresses of the Prefect API: which may be one, and what is said of the others by each command that needs one."""

from __future__ import annotations

import pytest

from prefect_cachewatch.cli.api_address import fault_of_address, with_end

EXAMPLE = "http://127.0.0.1:4200/api"
OTHER = "begins with {}://, and an API's begins with http:// or https://"


@pytest.mark.parametrize(
    ("url", "fault", "better"),
    [
        ("127.0.0.1:4200/api", "has no scheme", EXAMPLE),
        ("http:/127.0.0.1:4200/api", "is misspelt", EXAMPLE),
        ("https//h/api", "is misspelt", "https://h/api"),
        ("ftp://h/api", OTHER.format("ftp"), EXAMPLE),
        ("http://", "names no host", EXAMPLE),
        ("http://h:42000000/api", "has no port that exists", EXAMPLE),
        (" http://h/api", "has a blank at an end", "http://h/api"),
    ],
)
def test_an_address_that_cannot_be_one_is_named_with_a_better_one(url: str, fault: str, better: str) -> None:
    assert fault_of_address(url) == (fault, better)
    assert fault_of_address(better)[0] == ""


@pytest.mark.parametrize(
    "url",
    ["", EXAMPLE, "HTTP://h/api", "http://[::1]:4200/api", "https://api.prefect.cloud/api/accounts/a/workspaces/b"],
)
def test_an_address_that_may_be_one_is_left(url: str) -> None:
    assert fault_of_address(url)[0] == ""


def test_an_end_that_is_missing_is_added() -> None:
    assert with_end("http://h:1/") == "http://h:1/api"
    assert with_end("http://h/api/accounts/a") == "http://h/api/accounts/a"
