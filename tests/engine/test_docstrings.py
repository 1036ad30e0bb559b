"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import prefect_cachewatch

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_examples_of_every_module_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a walk leaves its process in /
    apart = ("prefect_cachewatch.flows", "prefect_cachewatch.tasks")
    found = pkgutil.walk_packages(prefect_cachewatch.__path__, "prefect_cachewatch.")
    names = [module.name for module in found if not module.name.startswith(apart)]
    results = {name: doctest.testmod(importlib.import_module(name), optionflags=FLAGS) for name in names}
    assert {name: result.failed for name, result in results.items() if result.failed} == {}
    assert sum(result.attempted for result in results.values()) >= 25
