"""The path of a report is checked ahead."""

from __future__ import annotations

import pytest

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.report.report import check_report_path


@pytest.mark.parametrize(
    ("name", "why"), [("missing/r.json", "does not exist; create it first"), ("", "is a directory")]
)
def test_a_report_path_is_checked_before_the_start(tmp_path, name, why):
    with pytest.raises(InputError, match=why):
        check_report_path(tmp_path / name)
    check_report_path(tmp_path / "r.json")
