"""Every page is listed: in docs/index.md for readers, in mkdocs.yml for the site; and every link leads somewhere."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LINKED = [*(f"docs/{page}" for page in PAGES), *(path.name for path in ROOT.glob("*.md"))]


def test_the_index_lists_every_page_once_with_a_line():
    listed = re.findall(r"^- \[[^\]]+\]\(([^)#]+\.md)\)\S* *\S", (DOCS / "index.md").read_text(), re.M)
    assert sorted(listed) == [page for page in PAGES if page != "index.md"]


def test_the_site_has_every_page():
    navigated = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(page for page in navigated if not page.isupper() and not (ROOT / page).exists()) == PAGES


def test_a_link_within_the_repository_leads_somewhere():
    broken = []
    for page in LINKED:
        text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
        targets = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)
        broken += [(page, target) for target in targets if not (ROOT / page).parent.joinpath(target).exists()]
    assert broken == []


def test_what_the_api_page_names_can_be_imported():
    names = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.M)
    assert len(names) > 30
    assert [name for name in names if pkgutil.resolve_name(name) is None] == []


def test_every_target_of_the_makefile_says_what_it_does():
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M).group(1).split()
    described = re.findall(r"^([a-z-]+):.* ## [A-Z].*[.\]]$", text, re.M)
    assert sorted(described) == sorted(phony)
