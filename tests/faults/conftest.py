"""Fixtures of the fault suite."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.faults.harness import HERE, NOBODY, Sandbox, in_namespace
from tests.prefect_server import Proxy, Server
from tests.support import unavailable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="session")
def nobody_runs() -> bool:
    """Whether an unprivileged user can run this very environment."""
    argv = [*in_namespace(NOBODY), sys.executable, "-c", "import prefect_cachewatch.cli.main"]
    done = subprocess.run(argv, check=False, cwd="/", env={}, capture_output=True)
    return done.returncode == 0


@pytest.fixture(params=["root", "unprivileged"])
def user(request: pytest.FixtureRequest) -> int | None:
    """Each test as root and as somebody else; None for this process's own user."""
    if os.geteuid() != 0:
        if request.param == "root":
            unavailable("needs root")
        return None
    if request.param == "root":
        return None
    if not request.getfixturevalue("nobody_runs"):
        unavailable("the virtual environment cannot be read by an unprivileged user")
    return NOBODY


@pytest.fixture
def sandbox(user: int | None) -> Iterator[Sandbox]:
    box = Sandbox.make(user)
    yield box
    box.close()


@pytest.fixture
def own_sandbox() -> Iterator[Sandbox]:
    """A sandbox of the user who runs the tests."""
    box = Sandbox.make(None)
    yield box
    box.close()


class Front:
    """The server, and the proxy through which the runs see it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.proxy = Proxy(server.port)


@pytest.fixture
def front(server: Server) -> Iterator[Front]:
    found = Front(server)
    yield found
    found.proxy.down()
