"""How much code there is: lines (no docstrings, comments or blanks) and files of each room. `make size` prints it."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "prefect_cachewatch"
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER
}  # fmt: skip


def code_lines(source: str) -> int:
    """Count the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            text = node.body[0]
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def rooms() -> list[str]:
    """The rooms from top to bottom, as the architecture test has them."""
    text = (ROOT / "tests/engine/test_architecture.py").read_text()
    tables = [node.value for node in ast.parse(text).body
              if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS"]  # fmt: skip
    return list(reversed(ast.literal_eval(tables[0])))


def sizes() -> dict[str, tuple[int, int]]:
    """Lines of code and files of each room; the package's own `__init__` is counted with `errors`."""
    found = {}
    for room in rooms():
        folder = ROOT / room if room in ("flows", "tasks") else PACKAGE / room
        files = sorted(folder.rglob("*.py")) if room != "errors" else sorted(PACKAGE.glob("*.py"))
        found[room] = (sum(code_lines(path.read_text()) for path in files), len(files))
    return found


def main() -> None:
    """Print the table."""
    table = sizes()
    table["total"] = (sum(lines for lines, _ in table.values()), sum(files for _, files in table.values()))
    print(f"{'room':<12}{'lines of code':>14}{'files':>8}")
    for room, (lines, files) in table.items():
        print(f"{room:<12}{lines:>14,}{files:>8}")


if __name__ == "__main__":
    main()
