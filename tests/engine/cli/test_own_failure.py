"""An error of cachewatch's own: exit status 125, a traceback, and where to report it."""

from __future__ import annotations

import pytest

from prefect_cachewatch.cli.main import main
from support import undo_ignored_signals


def test_an_error_of_our_own_is_125_and_asks_for_a_report(tmp_path, monkeypatch, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError("x")

    monkeypatch.setattr("prefect_cachewatch.cli.exec.EngineClient", broken)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["exec", "--cache-dir", str(tmp_path / "c"), "--", "true"])
    finally:
        undo_ignored_signals()  # after its last word the command is deaf, and this process goes on
    error = capsys.readouterr().err
    assert (ended.value.code, "Traceback" in error) == (125, True)
    assert error.endswith("cachewatch: internal error, please report it with the lines above: ZeroDivisionError: x\n")
