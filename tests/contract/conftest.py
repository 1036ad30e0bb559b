"""Each test has a place of its own: a state directory, a Prefect home, a working directory."""

from pathlib import Path

import pytest

from tests.contract.harness import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
