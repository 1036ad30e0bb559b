"""Every block of the pages: its commands and options exist, its Python compiles, its data can be read.

Those of README and first run are run as a reader would (`tests/orchestration/test_readme.py`).
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from tests.reference import commands

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(language, text, id=f"{page.name}-{number}-{language}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, (language, text) in enumerate(BLOCK.findall(page.read_text()), 1)
    if language not in ("text", "ini")  # pictures; unit files, which systemd's own checker reads in test_service_units
]


def typed(text: str) -> Iterator[list[str]]:
    """The words of each `cachewatch` command in a session; what it prints does not begin with `$`."""
    text = text.replace("\\\n", " ")
    for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        if "cachewatch" in words:
            yield words[words.index("cachewatch") + 1 :]


def parse(name: str, words: list[str]) -> None:
    """Refuse an option that the command has not; nothing is run or looked at."""
    command = commands()[name]
    command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_block_holds(language: str, text: str) -> None:
    match language:
        case "python":
            compile(text, "block", "exec")
        case "toml":
            assert tomllib.loads(text)
        case "yaml":
            assert list(yaml.safe_load_all(text)) != [None]
        case "json":
            assert [json.loads(line) for line in text.splitlines()]
        case "console":
            for words in typed(text):
                name = " ".join(words[:2] if words[0] in ("store", "automations") else words[:1])
                known = commands()[name]
                known.make_context(
                    name, words[len(name.split()) :], resilient_parsing=True
                )  # refuses an option that is none
        case _:
            pytest.fail(f"a block of {language}: say here how it is checked")


def test_a_wrong_option_is_seen() -> None:
    (words,) = typed("$ cachewatch exec --no-such-option -- true\n")
    with pytest.raises(click.NoSuchOption):
        parse("exec", words[1:])
