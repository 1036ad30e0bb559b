"""The contract is judged through the product's doors: the command, the flows and the public names.

No file here imports a module that is not public, nor lets a started program do so: what is imported in a string counts too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import prefect_cachewatch

HERE = Path(__file__).parent
# Packages that people import from; below them all is private.
PUBLIC = {"prefect_cachewatch", "prefect_cachewatch.flows", "prefect_cachewatch.capacity"}
IMPORT = re.compile(
    r"(?:from|import)\s+(prefect_cachewatch(?:\.\w+)*)|-m\s+(prefect_cachewatch(?:\.\w+)*)|import_module\(.(prefect_cachewatch(?:\.\w+)*)"
)


@pytest.mark.parametrize("file", sorted(HERE.glob("*.py")), ids=lambda file: file.name)
def test_only_public_names_are_imported(file: Path):
    source = file.read_text()
    named = {name for found in IMPORT.findall(source) for name in found if name}
    assert named <= PUBLIC
    taken = re.findall(r"from prefect_cachewatch import ([\w, ]+)", source)
    assert {name.strip() for line in taken for name in line.split(",")} <= {
        *prefect_cachewatch.__all__,
        "flows",
        "tasks",
    }
