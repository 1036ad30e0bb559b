"""What the planner's docstrings, its page and its examples show can be run."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import textwrap
from pathlib import Path

import pytest

import prefect_cachewatch.capacity as capacity
from prefect_cachewatch.capacity import inputs
from prefect_cachewatch.capacity.planfile import read_plan
from prefect_cachewatch.capacity.wording import answer_lines

ROOM = "prefect_cachewatch.capacity."
MODULES = sorted(module.name.removeprefix(ROOM) for module in pkgutil.walk_packages(capacity.__path__, ROOM))
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "capacity.md"
EXAMPLES = sorted((ROOT / "examples" / "planner").glob("*.yaml"))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_say(name: str) -> None:
    assert doctest.testmod(importlib.import_module(ROOM + name)).failed == 0


def test_the_program_of_the_page_runs() -> None:
    found = re.search(r"## From Python\n\n((?:    .*\n|\n)+)", PAGE.read_text())
    assert found
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(textwrap.dedent(found[1]), {})
    assert re.match(r"\d+ storage\n$", told.getvalue())


def test_the_answer_on_the_page_is_that_of_its_example() -> None:
    given = read_plan(ROOT / "examples" / "planner" / "nightly.yaml")
    answer = capacity.plan(given)
    shown = "\n".join(f"    {line}" for line in answer_lines(answer, answer.answers[0]))
    assert shown in PAGE.read_text(), shown


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text().split()) <= 1500


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_plan_with_an_answer(path: Path) -> None:
    assert capacity.plan(read_plan(path)).answers[0].n >= 1


def test_every_field_of_the_inputs_is_explained_on_its_form() -> None:
    for name, model in vars(inputs).items():
        for field, info in getattr(model, "model_fields", {}).items():
            assert info.description, f"{name}.{field}"
