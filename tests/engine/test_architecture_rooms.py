"""The rooms of the package: which imports which, that no arrow points up, and that docs/architecture.md says the same."""

from __future__ import annotations

import re
from pathlib import Path

from tests.engine.test_architecture import PACKAGE, ROOT, TREES, modules, own

PAGE = ROOT / "docs" / "architecture.md"
# From bottom to top; a room imports rooms that stand before it.
ARROWS = {
    "errors": "",
    "common": "errors",
    "supervise": "errors common",
    "measure": "errors common supervise",
    "config": "errors common measure",
    "containers": "errors common supervise measure config",
    "publish": "errors common supervise measure config",
    "watching": "errors common supervise measure config containers",
    "postmortem": "errors common supervise measure watching",
    "metrics": "errors common config watching postmortem",
    "run": "errors common supervise measure config containers publish watching postmortem metrics",
    "capacity": "errors common config",
    "fleet": "errors common measure config publish watching metrics run",
    "tasks": "errors common measure config publish watching postmortem metrics run capacity fleet",
    "flows": "errors common supervise config publish watching postmortem metrics run capacity fleet tasks",
    "cli": "errors common supervise measure config containers publish watching postmortem metrics run capacity fleet tasks flows",
}  # fmt: skip


def room(module: str) -> str:
    return module.split(".")[1]


def folders(directory: Path) -> set[str]:
    return {path.parent.name for path in directory.glob("*/*.py")}


def test_every_module_is_in_a_room():
    assert {room(name) for name in modules() if name != PACKAGE} == set(ARROWS)
    assert folders(TREES[PACKAGE]) | {"errors", "flows", "tasks"} == set(ARROWS)


def test_a_room_imports_what_the_table_says_and_nothing_else():
    found: dict[str, set[str]] = {name: set() for name in ARROWS}
    for module in modules():
        if module != PACKAGE:
            found[room(module)] |= {room(name) for name in own(module)} - {room(module)}
    assert found == {name: set(imported.split()) for name, imported in ARROWS.items()}


def test_no_arrow_points_up():
    below: set[str] = set()
    for name, imported in ARROWS.items():
        assert set(imported.split()) <= below, name
        below.add(name)


def test_the_page_has_the_same_table():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.M)
    table = {name: set(re.findall(r"`(\w+)`", imported)) for name, imported in rows}
    assert list(table) == list(reversed(ARROWS))
    assert table == {name: set(imported.split()) for name, imported in ARROWS.items()}


def test_the_page_names_paths_that_there_are():
    text = PAGE.read_text()
    for path in re.findall(r"[`>]((?:\w+/)+\w+\.py)[`\"]", text):
        assert (ROOT / path).exists() or (TREES[PACKAGE] / path).exists(), path
    tree = re.search(r"```text\n(.*?)```", text, re.S)
    assert tree
    named = set(re.findall(r"(\w+)(?:/|\.py) ", tree[1]))
    assert set(ARROWS) <= named
    for inner in re.findall(r"\bin (\w+)/", tree[1]):
        assert any((tree / inner).is_dir() for base in TREES.values() for tree in [base, *base.iterdir()]), inner


def test_the_engine_s_tests_have_the_same_rooms():
    here = Path(__file__).parent
    assert folders(here) <= set(ARROWS)
    for path in here.rglob("*.py"):
        assert (TREES[PACKAGE] / path.parent.relative_to(here)).is_dir(), path
