"""The report: its path is checked ahead, and each field of it is documented."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.report.report import Report, check_report_path
from prefect_cachewatch.run.delivery import Publication


@pytest.mark.parametrize(
    ("name", "why"), [("missing/r.json", "does not exist; create it first"), ("", "is a directory")]
)
def test_a_report_path_is_checked_before_the_start(tmp_path, name, why):
    with pytest.raises(InputError, match=why):
        check_report_path(tmp_path / name)
    check_report_path(tmp_path / "r.json")


def test_the_schema_is_documented_field_by_field():
    docs = Path(__file__).parents[3] / "docs"
    spans = " ".join(re.findall(r"`[^`]+`", (docs / "report.md").read_text() + (docs / "post-mortem.md").read_text()))
    words = set(re.findall(r"\w+", spans))
    seen, queue = set(), [Report]
    while queue:
        model = queue.pop()
        if model in seen:
            continue
        seen.add(model)
        for field in dataclasses.fields(model):
            assert field.name in words, f"{model.__name__}.{field.name} is not in docs/report.md"
        for hint in typing.get_type_hints(model, localns={"Publication": Publication}).values():
            queue.extend(a for a in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(a))
    assert len(seen) >= 9
