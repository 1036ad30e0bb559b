"""Writes what is told of an attempt as one self-contained page; it opens from disk and loads nothing. Pure.

Every text is escaped by `for_html`, here and nowhere else. The content security policy allows one style sheet and one
script, by their hashes, and images from `data:` only.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.text import for_html
from prefect_cachewatch.report.chart import CHART_STYLE
from prefect_cachewatch.report.sections import Cell, Chart, Facts, Folded, Lines, Part, Pre, Section, Table, Verdict

# Read with this module: later its directory may be on a file system that hangs.
STYLE, SCRIPT = (Path(__file__).with_name(name).read_text("utf-8") for name in ("page.css", "page.js"))
_WIDE = 40
_KINDS = {"File": "path", "Directory": "path"}
_CONTROLS = (
    '<p class="controls"><label>Filter <input id="filter" type="search" autocomplete="off" placeholder="part of a path or a '
    'flag"></label> <output id="matches"></output> A click on a column\'s head sorts.</p>'
)
_COPIED = '<p class="copied"><code id="replay">{}</code> <button id="copy" type="button">Copy</button></p>'


def write_page(verdict: Verdict, told: Iterable[Section], footer: str) -> str:
    """Write the page.

    Args:
        verdict: stands on top.
        told: the sections below it.
        footer: the last line.

    Returns:
        A complete HTML document without any address in it.
    """
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(STYLE)} {_hash(CHART_STYLE)}; script-src {_hash(SCRIPT)}"
    )
    title = f"{for_html(verdict.name)}: {for_html(verdict.tags[min(1, len(verdict.tags) - 1)])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title><style>{STYLE}</style></head>'
        f"<body><main>{_verdict(verdict)}{''.join(map(_section, told))}<footer>{for_html(footer, 1000)}</footer></main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _verdict(verdict: Verdict) -> str:
    kinds = ("tag bad", "tag", *["tag quiet"] * len(verdict.tags))
    tags = " ".join(
        f'<span class="{kind}">{for_html(tag)}</span>' for kind, tag in zip(kinds, verdict.tags, strict=False)
    )
    lines = []
    for label, text in verdict.rows:
        shown = for_html(text, 1000)
        kind = "cause" if label.startswith("Cause") else "message" if label == "What" else "next"
        lines.append(f'<p class="{kind}">{f"<strong>{label}.</strong> " * (kind == "next")}{shown}</p>')
    name = for_html(verdict.name) + (f", {verdict.attempt}" if verdict.attempt else "")
    return f'<header><p class="tags">{tags}</p><h1>{name}</h1>{"".join(lines)}</header>'


def _section(section: Section) -> str:
    return f"<section><h2>{for_html(section.title)}</h2>{''.join(map(_write, section.parts))}</section>"


def _write(part: Part) -> str:
    match part:
        case str():
            return f"<p>{for_html(part, 1000)}</p>"
        case Chart():
            caption = f'<figcaption class="soft">{for_html(part.legend)}</figcaption>' if part.legend else ""
            return f'<figure class="chart">{part.svg}{caption}</figure>'
        case Facts():
            rows = (
                f"<div{' class=wide' * (len(value) > _WIDE)}><dt>{for_html(label)}</dt><dd>{for_html(value, 600)}</dd></div>"
                for label, value in part.rows
            )
            return f'<dl class="numbers">{"".join(rows)}</dl>'
        case Lines():
            return f'<ul class="lines">{"".join(f"<li>{for_html(line, 500)}</li>" for line in part.lines)}</ul>'
        case Pre(command=True):
            return _COPIED.format(for_html(part.lines[0], 5000))
        case Pre():
            text = "\n".join(for_html(line, 2000) for line in part.lines)
            return f'<pre tabindex="0">{text}</pre>'
        case Folded():
            body = "".join(map(_write, part.parts))
            return f"<details{' open' * part.is_open}><summary>{for_html(part.title)}</summary>{body}</details>"
        case Table():
            return _table(part)


def _table(table: Table) -> str:
    kinds = ["number" if head.startswith("#") else _KINDS.get(head, head.lower()) for head in table.heads]
    heads = "".join(
        f'<th scope="col" class="{kind}">{for_html(head.removeprefix("#"))}</th>'
        for kind, head in zip(kinds, table.heads, strict=True)
    )
    rows = "".join(f"<tr>{''.join(map(_cell, row, kinds))}</tr>" for row in table.rows)
    name = f' id="{table.name}"' if table.name else ""
    controls = _CONTROLS if table.name else ""
    return (
        f'{controls}<div class="scroll"><table{name}><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _cell(cell: Cell, kind: str) -> str:
    text = for_html(cell.text, 1000)
    text = f"<bdi>{text}</bdi>" if kind == "path" else text
    text += " ".join(f'<span class="tag quiet">{for_html(tag)}</span>' for tag in cell.tags)
    value = "" if cell.value is None else f' data-value="{cell.value}"'
    return f'<td class="{kind}"><span{value}>{text}</span></td>' if value else f'<td class="{kind}">{text}</td>'


def _find_sha256() -> Any:
    """Python's own one: hashlib loads OpenSSL, half a megabyte in each process that may write a page."""
    for name in ("_sha2", "_sha256", "hashlib"):  # from Python 3.12 on, before, and where it was left out
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).sha256
    raise AssertionError("no Python is without hashlib")


_sha256 = _find_sha256()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(_sha256(text.encode()).digest()).decode()}'"
