"""What docs/causes.md promises is what there is: files, pictures."""

from __future__ import annotations

import re
from pathlib import Path

from prefect_cachewatch.report.bundle import BUNDLE_FILES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "causes.md").read_text()


def test_every_file_of_a_bundle_is_described():
    assert [name for name in BUNDLE_FILES if f"`{name}`" not in PAGE] == []


def test_its_pictures_are_there():
    pictures = re.findall(r"\]\((images/[\w.-]+)\)", PAGE)
    assert len(pictures) == 3
    for picture in pictures:
        assert (ROOT / "docs" / picture).read_bytes().startswith(b"\x89PNG")
