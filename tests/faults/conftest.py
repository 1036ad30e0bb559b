"""Fixtures of the fault suite, and the table it leaves: build/faults.md."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import HERE, NOBODY, Results, Row, Sandbox, in_namespace, summarise
from tests.prefect_server import Proxy, Server
from tests.support import unavailable

_results = pytest.StashKey[Results]()
Fault = Callable[..., Row]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_results] = Results()


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
def who(request: pytest.FixtureRequest) -> str:
    """`root` or `unprivileged`, for the table."""
    if "user" in request.fixturenames:
        return str(request.node.callspec.params["user"])
    return "root" if os.geteuid() == 0 else "unprivileged"


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


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """`fault(section, case, injected, promised)` opens a row; `row.measured.append((label, value))` fills it."""

    def open_row(section: str, case: str, injected: str, promised: str) -> Row:
        row = request.config.stash[_results].row(section, case, injected, promised)
        row.first = min(row.first, request.session.items.index(request.node))
        request.node.stash[_row] = row
        return row

    return open_row


_row = pytest.StashKey[Row]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    row = item.stash.get(_row, None)
    if row is not None and report.failed:
        row.failed = True
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("FAULTS_TABLE")
    results = session.config.stash[_results]
    if hasattr(session.config, "workeroutput"):  # one of several (pytest -n): the first process writes what all have
        session.config.workeroutput["reliability"] = results.dump()
    elif target and results.rows:
        Path(target).write_text(_table(results))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over the rows of one of several processes (pytest -n)."""
    node.config.stash[_results].merge(getattr(node, "workeroutput", {}).get("reliability", []))


def _table(results: Results) -> str:
    lines = [
        "# Faults that were injected, what is promised, and what was measured",
        "",
        f"Machine: {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}.",
        "",
    ]
    rows = results.in_order()
    for section in sorted({row.section for row in rows}, key=lambda name: (int(name.split()[0]), name)):
        lines += [
            f"## {section}",
            "",
            "| case | what is injected | what is promised | what was measured |",
            "|---|---|---|---|",
        ]
        for row in rows:
            if row.section == section:
                measured = "**promise broken**" if row.failed else summarise(row.measured) or "held"
                cells = [row.case, row.injected, row.promised, measured]
                lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
