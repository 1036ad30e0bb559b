"""What the site has beyond docs/: the pages at the top of the repository, and links that fit there.

On GitHub a page of docs/ links to ../CHANGELOG.md and ../deployments. On the site the first is a page, and the second
is not there: its link becomes plain text. A link to anything that the repository has not got stays, and fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)|(!\[[^\]]*\])\((?!\w+:)([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the repository."""
    for name in PROJECT_PAGES:
        # index.html is the start page of docs/, so the README needs a name of its own.
        page = File.generated(config, name, content=(ROOT / name).read_text())
        if name == "README.md":
            page.dest_uri = page.url = "readme.html"
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make a page's links into the repository links into the site, or text."""
    here = page.file.src_uri
    folder = "" if here in PROJECT_PAGES else posixpath.join("docs", posixpath.dirname(here))

    def fit(match: re.Match[str]) -> str:
        text, target, anchor, picture, source = match.groups()
        place = posixpath.normpath(posixpath.join(folder, target or source))
        on_site = place.removeprefix("docs/")
        if files.get_file_from_path(on_site) is not None:
            way = posixpath.relpath(on_site, posixpath.dirname(here) or ".")
            return f"{picture}({way})" if picture else f"[{text}]({way}{anchor or ''})"
        only_in_repository = not place.startswith("docs/") and (ROOT / place).exists()
        return text if target and only_in_repository else match.group(0)

    return LINK.sub(fit, markdown)
