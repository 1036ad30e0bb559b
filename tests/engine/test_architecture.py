"""The rooms of the package: no import points up, the engine knows no Prefect, helper processes the standard library alone.

Read from the source, so that an import inside a function counts too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "prefect_cachewatch"
TREES = {PACKAGE: ROOT / "src" / PACKAGE, f"{PACKAGE}.flows": ROOT / "flows", f"{PACKAGE}.tasks": ROOT / "tasks"}
# From bottom to top: a room imports rooms that stand before it.
ROOMS = (
    "errors", "common", "supervise", "measure", "config", "containers", "store", "evidence", "watching", "engine", "report", "metrics", "run",
    "capacity", "fleet", "tasks", "flows", "cli",
)  # fmt: skip
KNOW_PREFECT = ("tasks", "flows", "cli")
# Helper processes start with `python -I -S`: there is no site-packages for them.
HELPERS = ["supervise.guard", "measure.scan_process", "containers.warden"]


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package, directory in TREES.items():
        for path in sorted(directory.rglob("*.py")):
            parts = path.relative_to(directory).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that this one imports, wherever in it; `from package import module` is that module."""
    found = set()
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import in line {node.lineno}"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if name in modules() else str(node.module) for name in names)
    return frozenset(found)


def own(module: str) -> set[str]:
    return {name for name in imports(module) if name in modules() and name != PACKAGE}


def closure(module: str) -> set[str]:
    seen, queue = set(), [module]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(own(name))
    return seen


def room(module: str) -> str:
    return module.split(".")[1]


def top(name: str) -> str:
    return name.partition(".")[0]


def test_a_room_imports_only_rooms_below_it():
    inner = [name for name in modules() if name != PACKAGE]
    assert {room(name) for name in inner} == set(ROOMS)
    upward = {
        f"{module} imports {name}"
        for module in inner
        for name in own(module)
        if ROOMS.index(room(name)) > ROOMS.index(room(module))
    }
    assert upward == set()


def test_the_engine_knows_no_prefect():
    engine = [name for name in modules() if name != PACKAGE and room(name) not in KNOW_PREFECT]
    assert {module for module in engine if "prefect" in {top(name) for name in imports(module)}} == set()


def test_of_prefect_only_what_is_public_is_imported():
    private = {
        f"{module} imports {name}"
        for module in modules()
        for name in imports(module)
        if name.startswith("prefect.server") or (top(name) == "prefect" and "._" in name)
    }
    assert private == set()


def test_exec_loads_the_standard_library_alone():
    code = f"import sys; sys.path.append({str(TREES[PACKAGE].parent)!r}); import prefect_cachewatch.cli.exec; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    allowed = sys.stdlib_module_names | {PACKAGE, "__main__", "sitecustomize"}
    assert {top(name) for name in done.stdout.split()} - allowed == set()


def test_a_helper_process_needs_the_standard_library_alone():
    allowed = sys.stdlib_module_names | {PACKAGE}
    foreign = {
        f"{module}: {name}"
        for helper in HELPERS
        for module in closure(f"{PACKAGE}.{helper}")
        for name in imports(module)
        if top(name) not in allowed
    }
    assert foreign == set()
    for helper in HELPERS:
        code = f"import sys; sys.path.append({str(TREES[PACKAGE].parent)!r}); import {PACKAGE}.{helper}"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
