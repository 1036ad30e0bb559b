"""Texts of an event as Prefect can encode them."""

from __future__ import annotations

import pytest
from tasks.prefect_api import events


def test_a_file_name_that_is_no_text_does_not_lose_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, object]] = []
    monkeypatch.setattr(events, "emit_event", lambda _, **parts: sent.append(parts["payload"]))
    assert events.emit_generation_event("completed", "c", {"ready": {"files": ("/c/\udcff.bin", "/é")}, "n": 1})
    assert sent == [{"ready": {"files": ["/c/\\udcff.bin", "/é"]}, "n": 1}]
