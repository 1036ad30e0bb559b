"""docs/causes.md has the table of causes, whole and in order; GOLDEN=write writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from prefect_cachewatch.evidence.causes import CAUSES, Known
from prefect_cachewatch.evidence.crash_table import CRASH_RULES
from prefect_cachewatch.evidence.rules import RULES

PAGE = Path(__file__).parents[3] / "docs" / "causes.md"
HEAD = "| cause | what was seen | what to do | again |\n|---|---|---|---|\n"


def seen(category: str) -> str:
    """What a rule looks for, by its own words; of a crash what a line of the log says."""
    rules = {rule.__name__: (rule.__doc__ or "").partition("\n")[0].rstrip(".") for rule in RULES}
    said = dict.fromkeys(rule.what for rule in CRASH_RULES if rule.category == category)
    looked_for = rules.get(category, "No rule fits; says what each process does and where it sleeps")
    return "; ".join(["log: " + " or ".join(said)] if said and category not in rules else [looked_for])


def again(known: Known) -> str:
    pause = {None: "", 0: ", at once"}.get(known.pause_s, f", after {known.pause_s} s")
    return f"yes{pause}{', outside' if known.outside else ''}" if known.again else f"no: {known.lasts}"


def table() -> str:
    rows = [f"| `{name}` | {seen(name)} | {one.next_step} | {again(one)} |\n" for name, one in CAUSES.items()]
    return HEAD + "".join(rows)


def test_the_page_has_the_table_of_causes() -> None:
    text = PAGE.read_text()
    if os.environ.get("GOLDEN") == "write":
        PAGE.write_text(re.sub(r"\| cause \|.*\|\n", lambda _: table(), text, flags=re.DOTALL))
    assert table() in PAGE.read_text()
