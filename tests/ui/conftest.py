from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("ui_browser", HERE / "browser.py")
assert _spec and _spec.loader
browser_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(browser_module)


@pytest.fixture(scope="session")
def browser():
    executable = browser_module.find_chromium()
    if executable is None:
        pytest.fail("no Chromium: install Debian's package chromium, or set CHROMIUM")
    opened = browser_module.Browser(executable)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def pictures():
    """Where screenshots are left; `make test-ui` names a directory."""
    path = Path(os.environ.get("CACHEWATCH_SCREENSHOTS", "build/screenshots")).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path
