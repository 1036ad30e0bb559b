"""What docs/readiness.md promises is what there is: its example runs, and its options, kinds and names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from prefect_cachewatch.cli.exec_command import command as exec_command
from prefect_cachewatch.cli.stop import command as stop_command
from prefect_cachewatch.config import CacheJob, ReadyWhen, StallPolicy
from prefect_cachewatch.watching.servers.warmup import WHOLE_SHARE

TEXT = (Path(__file__).parents[4] / "docs" / "readiness.md").read_text()


def test_its_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "docs/readiness.md", "exec"), names)
    assert isinstance(names["job"], CacheJob)
    assert names["stall"] == StallPolicy()


def test_every_option_that_it_names_exists():
    known = {name for each in (exec_command, stop_command) for option in each.params for name in option.opts}
    named = set(re.findall(r"--[a-z][a-z-]+", TEXT))
    assert named - known == {"--store", "--model"}  # of generate, and of the example's own command


@pytest.mark.parametrize(
    "kind", [get_args(each.model_fields["kind"].annotation)[0] for each in get_args(get_args(ReadyWhen)[0])]
)
def test_every_kind_stands_in_its_table(kind: str):
    assert re.search(rf"\| `{kind}` \| ready when|\| `{kind}` \|", TEXT)


def test_its_figures_are_those_of_the_rule():
    assert f"{WHOLE_SHARE:.0%}".replace("%", " %") in TEXT
    assert StallPolicy().warmup_within_s == 30 * 60
    assert "`--warmup-within` (`warmup_within_s`, 30 min)" in TEXT
