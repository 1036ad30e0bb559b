"""docs/fleet.md: its jobs file is one, and every column of the table is explained."""

from __future__ import annotations

import re
from pathlib import Path

from prefect_cachewatch.fleet.jobsfile import read_jobs_file
from prefect_cachewatch.fleet.outcome import table_rows
from prefect_cachewatch.fleet.rows import JobRow

PAGE = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text()


def test_the_jobs_file_of_the_page_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "jobs.yaml").write_text(block)
    plan = read_jobs_file(tmp_path / "jobs.yaml")
    llama, big, kernels = plan.jobs
    assert (plan.name, llama.priority, big.storage.slots, kernels.publish) == ("nightly", 1, 4, None)
    assert big.stall is not None
    assert (big.stall.stall_after_s, big.stall.first_write_within_s) == (900, 1800)


def test_every_column_of_the_table_is_explained() -> None:
    section = PAGE[PAGE.index("Its columns:") : PAGE.index("It is made once and updated in place")]
    rows = re.findall(r"^\| ([a-z, ]+) \|", section, flags=re.MULTILINE)
    explained = {name.strip() for row in rows for name in row.split(",")} - {"column"}
    assert explained == set(table_rows([JobRow("a", "Cached", "done")])[0])
