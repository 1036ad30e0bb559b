"""What may import what, and what a module may export; read from the source, so that a lazy import counts too."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "prefect_cachewatch"
TREES = {PACKAGE: ROOT / "src" / PACKAGE, f"{PACKAGE}.flows": ROOT / "flows", f"{PACKAGE}.tasks": ROOT / "tasks"}
# Rules that are functions of values: no clock, no files, no processes in them.
PURE = [
    "run.trace.replay",
    "run.trace.rows",
    "run.trace.runs",
    "watching.sections",
    "config",
    "config.attach",
    "config.container",
    "config.forms",
    "config.job",
    "config.outputs",
    "config.policies",
    "config.quantities",
    "config.ready",
    "errors",
    "run.followup",
    "common.units",
    "common.svg",
    "common.text",
    "common.private_keys",
    "common.temporary",
    "common.secrets",
    "watching.learned",
    "watching.refusal",
    "watching.stall",
    "watching.suspicion",
    "watching.servers.warmup",
    "watching.headline",
    "watching.outcomes",
    "measure.folder",
    "measure.growth",
    "measure.ledger",
    "measure.numbers",
    "measure.rewriting",
    "common.tuples",
    "metrics.destination",
    "metrics.settings",
    "postmortem.listing",
    "postmortem.where",
]
IMPURE_LIBRARIES = {"os", "socket", "subprocess", "threading", "time", "select", "shutil", "multiprocessing", "asyncio"}
# Helper processes start with `python -I -S`: there is no site-packages for them.
HELPERS = ["supervise.guard", "measure.scan_process", "containers.warden", "watching.servers.match_process"]
# What every room may import, helper processes too: nothing of the package outside it.
COMMON = [
    "errors",
    "common.bounded",
    "common.inputs",
    "common.lazy",
    "common.locks",
    "common.proc_locks",
    "common.statedir",
    "common.temporary",
    "common.svg",
    "common.text",
    "common.units",
    "common.yamlfile",
    "common",
    "common.aside",
    "common.closing",
    "common.console",
    "common.users",
    "common.directories",
    "common.files",
    "common.mounts",
    "common.parked",
    "common.pinned",
    "common.private_keys",
    "common.removal",
    "common.secrets",
    "common.sources",
    "common.tuples",
]
# Of these, what people write is read with pydantic and pyyaml, which no helper process has.
NOT_FOR_HELPERS = {"common.inputs", "common.yamlfile"}
# Commands that put the engine on Prefect; the others start without it.
NO_PREFECT_COMMANDS = [
    "cli.main",
    "cli.exec",
    "cli.exec_command",
    "cli.history",
    "cli.measure",
    "cli.options.guard",
    "cli.progress",
    "cli.replay",
    "cli.profiles",
    "cli.watching",
    "cli.templates",
]


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package, directory in TREES.items():
        for path in sorted(directory.rglob("*.py")):
            parts = path.relative_to(directory).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name] = path
    return found


def engine() -> list[str]:
    apart = tuple(f"{PACKAGE}.{part}" for part in ("flows", "tasks", "cli"))
    # The package itself names what is public of all of them, and imports none of it: tests/engine/test_public_api.py.
    return [name for name in modules() if name != PACKAGE and not name.startswith(apart)]


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that this one imports, wherever in it; `from package import module` is that module."""
    path, found = modules()[module], set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import in line {node.lineno}"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else str(node.module))
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


def top(name: str) -> str:
    return name.partition(".")[0]


def test_the_modules_are_found():
    assert {f"{PACKAGE}.{name}" for name in [*PURE, *HELPERS, *COMMON, *NO_PREFECT_COMMANDS]} <= set(modules())


@pytest.mark.parametrize("module", engine())
def test_the_engine_knows_no_prefect_and_nothing_above_it(module):
    assert {name for name in imports(module) if top(name) == "prefect"} == set()
    assert {name for name in own(module) if name not in engine()} == set()


@pytest.mark.parametrize("module", [f"{PACKAGE}.{name}" for name in NO_PREFECT_COMMANDS])
def test_the_plain_commands_know_no_prefect(module):
    assert {name for name in closure(module) for name in imports(name) if top(name) == "prefect"} == set()
    assert {name for name in closure(module) if name.startswith((f"{PACKAGE}.flows", f"{PACKAGE}.tasks"))} == set()


def test_tasks_do_not_know_the_flows_and_neither_knows_the_command():
    for module in modules():
        if module.startswith(f"{PACKAGE}.tasks"):
            assert not any(name.startswith((f"{PACKAGE}.flows", f"{PACKAGE}.cli")) for name in own(module)), module
        if module.startswith(f"{PACKAGE}.flows"):
            assert not any(name.startswith(f"{PACKAGE}.cli") for name in own(module)), module


def test_no_import_goes_in_a_circle():
    state: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert state.get(module) != 1, " -> ".join((*path, module))
        if module in state:
            return
        state[module] = 1
        for name in own(module):
            visit(name, (*path, module))
        state[module] = 2

    for module in modules():
        visit(module, ())


@pytest.mark.parametrize("name", PURE)
def test_a_pure_rule_has_no_clock_no_files_and_no_processes(name):
    module = f"{PACKAGE}.{name}"
    assert imports(module) & IMPURE_LIBRARIES == set()
    # The one exception is a type: what the ledger is fed comes from the scan.
    pure = {f"{PACKAGE}.{other}" for other in PURE} | {f"{PACKAGE}.measure.snapshot"}
    assert own(module) <= pure


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith(f"{PACKAGE}.common")])
def test_what_every_room_imports_is_listed_and_knows_none_of_them(name):
    assert name.removeprefix(f"{PACKAGE}.") in COMMON
    assert own(name) <= {f"{PACKAGE}.{other}" for other in COMMON}


@pytest.mark.parametrize("name", [*HELPERS, *(name for name in COMMON if name not in NOT_FOR_HELPERS)])
def test_a_helper_process_needs_the_standard_library_alone(name):
    for module in closure(f"{PACKAGE}.{name}"):
        foreign = {top(i) for i in imports(module)} - sys.stdlib_module_names - {PACKAGE, "__future__"}
        assert foreign == set(), module


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_process_starts_without_site_packages(name):
    code = f"import sys; sys.path.append({str(TREES[PACKAGE].parent)!r}); import {PACKAGE}.{name}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


@pytest.mark.parametrize("module", [n for n in modules() if n.startswith((f"{PACKAGE}.flows", f"{PACKAGE}.tasks"))])
def test_what_runs_in_a_process_of_its_own_does_not_bring_prefect_there(module):
    tree = ast.parse(modules()[module].read_text())
    own_functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if re.search(r"(\bfiles\.(run|open|consult)|^look_ahead)$", ast.unparse(call.func)):
            # It is found there by its module's name, and that import takes seconds of its deadline.
            assert not own_functions & {ast.unparse(argument) for argument in call.args}, ast.unparse(call)


def test_exec_loads_no_prefect():
    code = (
        "import sys, prefect_cachewatch.cli.exec; print([m for m in sys.modules if m.partition('.')[0] == 'prefect'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_runs_exec_is_the_standard_library_alone():
    code = "import sys, prefect_cachewatch.cli.exec; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path.append({str(TREES[PACKAGE].parent)!r}); {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    foreign = set(ast.literal_eval(done.stdout)) - sys.stdlib_module_names - {PACKAGE, "__main__", "sitecustomize"}
    assert foreign == set()


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, the rest; each by the alphabet (as ruff's RUF022)."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


@pytest.mark.parametrize("module", sorted(modules()))
def test_every_module_says_in_order_what_it_exports(module):
    tree = ast.parse(modules()[module].read_text())
    lists = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
    if not lists and (not public or module.endswith(".__main__")):
        return
    assert len(lists) == 1
    names = lists[0]
    assert names == sorted(names, key=_order)
    # `import package.tasks.supervise as t` would bind the function; `main` is an entry point that nobody imports so.
    assert module.rpartition(".")[2] not in names or module == f"{PACKAGE}.cli.main"
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("module", engine())
def test_what_a_module_exports_is_there(module):
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        if f"{module}.{name}" in modules():
            importlib.import_module(f"{module}.{name}")
        assert hasattr(loaded, name), name


def test_what_a_process_that_hangs_may_not_answer_is_read_where_it_has_a_deadline():
    # Each of these reads them within `read_each`, or in a function that says that it may block.
    allowed = {
        "supervise/proc.py",
        "supervise/pinned_process.py",
        "supervise/client.py",
        "postmortem/proctree.py",
        "postmortem/procdetails.py",
        "postmortem/evidence.py",
        "postmortem/stacks.py",
        "postmortem/standstill_around.py",
        "watching/finding.py",
    }
    blocking = re.compile(
        r"/proc/\{[^}]+\}(?:/task/\{[^}]+\})?/(stat|io|cmdline|environ|s?maps|mem|syscall|stack|wchan|cwd|exe|root|ns)\b"
        r"|\bnamespace_of\((?!\"self\")"
    )
    assert {
        str(path.relative_to(TREES[PACKAGE]))
        for path in TREES[PACKAGE].rglob("*.py")
        if blocking.search(path.read_text())
    } == allowed
