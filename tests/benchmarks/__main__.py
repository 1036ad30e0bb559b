"""`make bench`: what cachewatch costs and how fast it is, as ratios against a named peer of the same run.

usage: python -m tests.benchmarks [--quick] [--only NAME,NAME] [--output FILE]

Each module of this package with a function `run(quick)` gives rows; figures are medians of at least
five runs unless the row says otherwise. Nothing here is a test: a target that is missed is marked, and
the exit status stays 0. The rows and the machine's facts go to bench-output/ as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests import benchmarks
from tests.benchmarks.measuring import machine_facts

from prefect_cachewatch import __version__

# In this order; modules that are not named here come after them, by name.
ORDER = ("trees", "startup", "stopping", "decision", "draining", "flow")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks and print the table.

    Args:
        argv: arguments; default the command line's.

    Returns:
        The exit status: 1 if a benchmark could not be run.
    """
    names = _modules()
    parser = argparse.ArgumentParser(prog="make bench", description="cachewatch against its peers, in ratios")
    parser.add_argument("--quick", action="store_true", help="smaller trees and fewer runs: a smoke test")
    parser.add_argument("--only", default="", metavar="NAMES", help=f"some of {','.join(names)}")
    parser.add_argument("--output", type=Path, default=None, metavar="FILE", help="default bench-output/TIME.json")
    args = parser.parse_args(argv)
    wanted = [name for name in args.only.split(",") if name] or names
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}: there are {', '.join(names)}")

    began = datetime.now(UTC)
    facts, rows, failed = machine_facts(), list[dict[str, Any]](), dict[str, str]()
    for name in wanted:
        began_s = time.monotonic()
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        try:
            found = _run(name, args.quick)
        except Exception as error:  # one that cannot be run must not take the others' figures along
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"failed: {failed[name]}", file=sys.stderr)
            continue
        rows += [{"benchmark": name, **each} for each in found]
        print(f"{time.monotonic() - began_s:.0f} s", file=sys.stderr)
    output: Path = args.output or Path("bench-output") / f"{began:%Y%m%dT%H%M%SZ}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "started_at": began.isoformat(timespec="seconds"), "cachewatch_version": __version__,
        "quick": args.quick, "machine": facts, "rows": rows, "failed": failed,
    }  # fmt: skip
    output.write_text(json.dumps(data, indent=1) + "\n")
    _show(rows, facts)
    print(f"written to {output}", file=sys.stderr)
    return 1 if failed else 0


def _modules() -> list[str]:
    found = {module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - {"__main__", "measuring"}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def _run(name: str, quick: bool) -> list[dict[str, Any]]:
    run = importlib.import_module(f"tests.benchmarks.{name}").run
    rows: list[dict[str, Any]] = run(quick=quick) if "quick" in inspect.signature(run).parameters else run()
    return rows


def _show(rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("what", "ours", "peer", "ratio", "target"):
        table.add_column(title, justify="right" if title in ("ours", "ratio") else "left", overflow="fold")
    for each in rows:
        value, ratio, ok = each.get("peer_value"), each.get("ratio"), each.get("ok")
        unit = each.get("unit", "")
        peer = each.get("peer", "") + (f": {_figure(value)} {unit}" if value is not None else "")
        mark = {True: " met", False: " MISSED", None: ""}[ok]
        table.add_row(
            each["name"], f"{_figure(each['ours'])} {unit}", peer,
            "" if ratio is None else f"{ratio:.2f}", f"{each.get('target') or ''}{mark}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(f"{facts['cores']} cores, {facts['cpu']}, Linux {facts['kernel']}, Python {facts['python']}")
    load = facts["load_average"][0]
    if load > facts["cores"]:
        print(
            f"The machine was busy (load {load:.0f} on {facts['cores']} cores): wall times are longer, ratios scatter."
        )


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
