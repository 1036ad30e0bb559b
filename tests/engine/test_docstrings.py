"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import prefect_cachewatch

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def engine_modules() -> list[str]:
    apart = ("prefect_cachewatch.flows", "prefect_cachewatch.tasks")
    found = pkgutil.walk_packages(prefect_cachewatch.__path__, "prefect_cachewatch.")
    return [module.name for module in found if not module.name.startswith(apart)]


@pytest.mark.parametrize("name", engine_modules())
def test_the_examples_of_a_module_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a walk leaves its process in /
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    count = sum(len(t.examples) for n in engine_modules() for t in finder.find(importlib.import_module(n)))
    assert count >= 25
