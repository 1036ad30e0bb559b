"""State files of the tests' runs stay with the tests."""

import pytest


@pytest.fixture(autouse=True)
def _state_of_its_own(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.delenv("CACHEWATCH_STATE", raising=False)
