"""Bad input of a command: one sentence, exit status 125, and nothing is started or waited for."""

from __future__ import annotations

import os

import pytest

from tests.contract.harness import Place


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "--config", "FIFO", "--cache-dir", "cache", "--", "touch", "ran"),
        ("fleet", "FIFO"),
        ("replay", "FIFO"),
        ("plan", "FIFO"),
        ("report", "FIFO"),
        ("automations", "apply", "FIFO", "--dry-run"),
        ("probe", "--fio", "FIFO"),
    ],
    ids=lambda words: words[0],
)
def test_a_fifo_that_nobody_writes_to_is_one_sentence(place: Place, words: tuple[str, ...]) -> None:
    fifo = place.root / "fifo"
    os.mkfifo(fifo)
    ran = place.run(*(str(fifo) if word == "FIFO" else word for word in words))
    assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1), ran.stderr
    assert str(fifo) in ran.stderr and "no regular file" in ran.stderr
    assert [path.name for path in place.root.iterdir() if path.name in ("cache", "ran")] == []


@pytest.mark.parametrize(
    "words",
    [("--failed-writes", "refuse"), ("--allow-sparse", "*.db"), ("--allow-empty-file", "*.x"), ("--no-activate",)],
    ids=lambda words: words[0],
)
def test_an_option_of_publishing_needs_a_store(place: Place, words: tuple[str, ...]) -> None:
    ran = place.run("generate", "--cache-dir", "cache", *words, "--", "touch", "ran")
    assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1), ran.stderr
    assert f"{words[0]} needs --store" in ran.stderr
    assert [path.name for path in place.root.iterdir() if path.name in ("cache", "ran")] == []
