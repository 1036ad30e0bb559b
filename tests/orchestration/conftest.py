"""Prefect for tests: one harness for the session, and a state directory of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.prefect_database import harness

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a server is of `make test-server`, as far as it is of no other target; one file is of `make test` too."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        flows = "prefect_harness" in fixtures and item.path.name != "test_metrics_flow.py"
        if HERE in item.path.parents and ("server" in fixtures or flows) and not item.get_closest_marker("fleet"):
            item.add_marker(pytest.mark.server)
            item.add_marker(pytest.mark.timeout(900))  # a flow's process takes its time on a busy machine


@pytest.fixture(scope="session", autouse=True)
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Reports and logs of test runs stay out of the user's state directory."""
    path = tmp_path_factory.mktemp("state")
    before = os.environ.get("CACHEWATCH_STATE")
    os.environ["CACHEWATCH_STATE"] = str(path)
    yield path
    if before is None:
        del os.environ["CACHEWATCH_STATE"]
    else:
        os.environ["CACHEWATCH_STATE"] = before


@pytest.fixture(scope="session")
def prefect_harness() -> Iterator[None]:
    """A temporary database and server for flows that run in this process."""
    with harness():
        yield
