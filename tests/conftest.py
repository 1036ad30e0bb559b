"""Settings for all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.spread import kind_of, spread
from tests.support import undo_ignored_signals

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


undo_ignored_signals()
# The size of the terminal that started the tests is not that of theirs.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
