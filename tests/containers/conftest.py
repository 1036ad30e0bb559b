"""Fixtures of the container tests: one engine a session, and state of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.engine import SHELL_IMAGE, Engine, Service, an_engine
from tests.support import Ran, eventually, run_exec

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.containers)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with an_engine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: Engine) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CACHEWATCH_STATE", raising=False)
    monkeypatch.setenv("DOCKER_HOST", engine.main.url)
    yield
    if not eventually(lambda: not engine.containers(), 20):
        names = engine.containers()
        engine.podman("rm", "--all", "--force", "--time", "0", check=False)
        pytest.fail(f"containers were left behind: {names}")


@pytest.fixture
def service(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service that a test may kill, in the place of the session's own."""
    service = engine.start_service()
    monkeypatch.setenv("DOCKER_HOST", service.url)
    yield service
    if service.process.poll() is None:
        service.process.kill()
        service.process.wait(30)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def contain(cache: Path) -> Callable[..., Ran]:
    """Run a shell script in a container of the tests' image, under guard, to its end."""

    def contain(script: str, *options: object, image: str = SHELL_IMAGE, **more: Any) -> Ran:
        return run_exec(cache, "--image", image, "--poll", "0.2s", *options, command=["sh", "-c", script], **more)

    return contain
