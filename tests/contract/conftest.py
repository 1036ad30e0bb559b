"""Each test has a place of its own: a state directory, a Prefect home, a working directory."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.harness import Place

# Quick enough for `make test`; the other files are `make test-contract`'s.
IN_EVERY_RUN = {"test_bad_input.py", "test_doors.py", "test_exit_statuses.py"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def root() -> Iterator[Path]:
    """A store in memory where there is some: hundreds of calls to fsync cost nothing there."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cachewatch-store-", dir=memory) as path:
        yield Path(path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what `make test` would deselect: to read it all costs each of its workers seconds."""
    apart = collection_path.name.startswith("test_") and collection_path.name not in IN_EVERY_RUN
    return True if apart and str(config.option.markexpr).startswith("not (contract ") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test that runs whole flows time on a busy machine; the command's own limit ends what hangs."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # Flows beside each other on a server take longer than a command.
            slow = "prefect" in item.path.name or "server" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.timeout(1500 if slow else 600))
            if item.path.name not in IN_EVERY_RUN and item.get_closest_marker("campaign") is None:
                item.add_marker(pytest.mark.contract)
