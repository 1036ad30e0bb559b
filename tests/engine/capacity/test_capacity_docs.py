"""What the planner's docstrings and its page in docs/ show can be run."""

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
from prefect_cachewatch.capacity.planfile import read_plan

ROOM = "prefect_cachewatch.capacity."
MODULES = sorted(module.name.removeprefix(ROOM) for module in pkgutil.walk_packages(capacity.__path__, ROOM))
PAGE = Path(__file__).parents[3] / "docs" / "capacity.md"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_say(name: str) -> None:
    module = importlib.import_module(ROOM + name)
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_no_module_exports_its_own_name(name: str) -> None:
    module = importlib.import_module(ROOM + name)
    assert name.rpartition(".")[2] not in module.__all__


def test_the_program_of_the_page_runs() -> None:
    found = re.search(r"## From Python\n\n((?:    .*\n|\n)+)", PAGE.read_text())
    assert found
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(textwrap.dedent(found[1]), {})
    assert "gp3: latency is 10 % up at 2 generations" in told.getvalue()


def test_the_answer_on_the_page_is_the_examples() -> None:
    given = read_plan(PAGE.parents[1] / "examples" / "planner" / "nightly.yaml")
    answer = capacity.plan(given.storage, given.link, given.workloads, given.policy).answer
    assert answer in " ".join(PAGE.read_text().split())


def test_every_field_of_the_inputs_is_explained_on_its_form() -> None:
    for model in (
        capacity.StorageProfile,
        capacity.ServiceCurve,
        capacity.CurvePoint,
        capacity.UslFit,
        capacity.LinkProfile,
        capacity.CodecProfile,
        capacity.WorkloadClass,
        capacity.Policy,
    ):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
