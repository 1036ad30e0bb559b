"""The pages: listed for readers and for the site, links that lead somewhere, a reference that is what the code says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.reference import MARK, generated

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
LINKED = [*(f"docs/{page}" for page in PAGES), *(path.name for path in ROOT.glob("*.md"))]


def text_of(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)


def anchors(page: str) -> set[str]:
    """What a link to a heading of the page may name."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_first_page_and_the_site_have_every_page():
    listed = re.findall(r"^- \[[^\]]+\]\(([^)#]+\.md)\): \S", (DOCS / "index.md").read_text(), re.M)
    assert sorted(listed) == [page for page in PAGES if page != "index.md"]
    navigated = re.findall(r'= "(\w[\w-]*\.md)" \}', (ROOT / "zensical.toml").read_text())
    assert navigated[1:] == listed


def test_a_link_within_the_repository_leads_somewhere():
    broken = []
    for page in LINKED:
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", text_of(page)):
            place = (ROOT / page).parent / target if target else ROOT / page
            if not place.exists() or (
                anchor and anchor not in anchors(place.resolve().relative_to(ROOT.resolve()).as_posix())
            ):
                broken.append((page, target, anchor))
    assert broken == []


def test_the_reference_says_what_the_code_says():
    page = DOCS / "reference.md"
    head = page.read_text().partition(MARK)[0]
    if os.environ.get("GOLDEN") == "write":
        page.write_text(head + generated())
    assert page.read_text() == head + generated(), "GOLDEN=write pytest tests/engine/test_docs_index.py writes it anew"


def test_the_architecture_names_files_that_there_are():
    named = re.findall(r"(?<![\w/])[a-z]+/\w+\.py\b", (DOCS / "architecture.md").read_text())
    assert len(named) > 10
    places = (ROOT, ROOT / "src" / "prefect_cachewatch")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_target_of_the_makefile_says_what_it_does():
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M).group(1).split()
    described = re.findall(r"^([a-z-]+):.* ## [A-Z].*[.\]]$", text, re.M)
    assert sorted(described) == sorted(phony)
