"""The sentence that begins a message: job, verdict, cause, for how long; and that nobody reads it back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.report.sections import how_long, make_headline

ROOT = Path(__file__).parents[3]
LOCK = Cause("waiting_for_lock", "pid 7 (python3) waits for a lock on /c/.build.lock, held by pid 9 (convert.py)")
# Texts of ours, by the names that fields and variables of them have.
OURS = {"message", "headline", "facts", "summary", "sentence", "resolution", "next_step", "told", "cause", "evidence"}
READING = {"partition", "rpartition", "split", "rsplit", "splitlines", "startswith", "endswith", "removeprefix", "removesuffix",
           "find", "rfind", "index", "rindex", "search", "match", "fullmatch", "findall", "finditer"}  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (LOCK, f"llama stalled: {LOCK.summary}. No growth for 6 minutes."),
        (
            Cause("deadlocked", "its threads wait for one another: a deadlock", confidence="medium"),
            "llama stalled, probably: its threads wait for one another: a deadlock. No growth for 6 minutes.",
        ),
        (
            Cause("unknown", "pid 7 (gen) sleeps; the cause is not known", confidence="low"),
            "llama stalled: pid 7 (gen) sleeps; the cause is not known. No growth for 6 minutes.",
        ),
        (None, "llama stalled: no growth for 6 minutes."),
    ],
)
def test_the_cause_stands_before_the_numbers(cause: Cause | None, said: str) -> None:
    assert make_headline("llama", "stalled", cause, how_long("no_growth", 360.4)) == said


def named(node: ast.expr) -> str:
    """What a text is called: a variable, a field, or a key of a mapping."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Name(id="str"), args=[inner]) | ast.BoolOp(values=[inner, *_]):
            return named(inner)
    return ""


def test_no_text_of_ours_is_ever_read_back() -> None:
    found = []
    for room in ("src", "flows", "tasks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READING:
                    texts = {named(one) for one in (node.func.value, *node.args)}
                    found += [f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"] * bool(texts & OURS)
    assert found == []
