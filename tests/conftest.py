"""Settings for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.spread import kind_of, spread
from tests.support import undo_ignored_signals

if TYPE_CHECKING:
    from tests.prefect_server import Server

# No example is timed: the machine that runs them may be busy.
settings.register_profile(
    "cachewatch", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("cachewatch")


@pytest.hookimpl(trylast=True)  # what was deselected is out of it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let several workers begin with what takes long."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = spread(items, lambda item: kind_of(str(item.path), getattr(item, "fixturenames", ())), workers)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real Prefect server that the tests of a session share."""
    from tests.prefect_server import running_server  # a second of CPU, for those who want it

    with running_server(tmp_path_factory.mktemp("prefect")) as running:
        yield running


undo_ignored_signals()
# The size of the terminal that started the tests is not that of theirs.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
