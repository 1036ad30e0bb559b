"""The generators' environments, built once; a missing interpreter fails the tests that need it, it never skips them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.generators import environments


def _python(name: str) -> str:
    try:
        return str(environments.build(environments.ENVIRONMENTS[name]))
    except environments.BrokenEnvironment as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def ttnn_python() -> str:
    return _python("ttnn")


@pytest.fixture(scope="session")
def arrays_python() -> str:
    return _python("arrays")


@pytest.fixture(scope="session")
def torch_python() -> str:
    return _python("torch")


@pytest.fixture(scope="session")
def openvino_python() -> str:
    return _python("openvino")


@pytest.fixture(scope="session")
def hub_python() -> str:
    return _python("hub")


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"
