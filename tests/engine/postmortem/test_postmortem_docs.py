"""What docs/post-mortem.md promises is what there is: categories, files, pictures."""

from __future__ import annotations

import re
from pathlib import Path

from prefect_cachewatch.postmortem.bundle import BUNDLE_FILES
from prefect_cachewatch.postmortem.crash_table import CRASH_CATEGORIES
from prefect_cachewatch.postmortem.diagnosis import STALL_CATEGORIES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "post-mortem.md").read_text()


def _categories(text):
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


def test_the_tables_name_every_category_of_stalls_in_order_of_precedence_and_every_one_of_crashes():
    stalls, crashes = PAGE.split("## Causes of crashes")
    assert _categories(stalls) == list(STALL_CATEGORIES)
    assert set(_categories(crashes)) == set(CRASH_CATEGORIES)
    assert len(_categories(crashes)) == len(CRASH_CATEGORIES)


def test_every_file_of_a_bundle_is_described():
    assert [name for name in BUNDLE_FILES if f"`{name}`" not in PAGE] == []


def test_its_pictures_are_there():
    pictures = re.findall(r"\]\((images/[\w.-]+)\)", PAGE)
    assert len(pictures) == 3
    for picture in pictures:
        assert (ROOT / "docs" / picture).read_bytes().startswith(b"\x89PNG")
