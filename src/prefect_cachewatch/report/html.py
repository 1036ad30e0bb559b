"""Writes what is told of an attempt as one self-contained page; it opens from disk and loads nothing.

Every text is escaped by `for_html`, here and nowhere else. The content security policy allows what carries the page's random
number, one style sheet, that of the chart and one script, and images from `data:` only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from prefect_cachewatch.common.text import for_html
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.report.report import Listing, ListingEntry
from prefect_cachewatch.report.sections import Chart, Facts, Lines, Part, Section, Verdict

# Read with this module: later its directory may be on a file system that hangs.
STYLE, SCRIPT = (Path(__file__).with_name(name).read_text("utf-8") for name in ("page.css", "page.js"))
_WIDE = 40
_TABLE = (
    '<p class="controls"><label>Filter <input id="filter" type="search" autocomplete="off" placeholder="part of a path or a '
    'flag"></label> <output id="matches"></output> A click on a column\'s head sorts.</p>'
    '<div class="scroll"><table id="files"><thead><tr><th scope="col" class="path">File</th><th scope="col">Flags</th>'
    '<th scope="col" class="number">Age</th><th scope="col" class="number">Size</th><th scope="col" class="number">On disk</th>'
    "</tr></thead><tbody>{}</tbody></table></div>"
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
    nonce = os.urandom(16).hex()
    ours = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'"
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; {ours}"
    title = f"{for_html(verdict.name)}: {for_html(verdict.tags[min(1, len(verdict.tags) - 1)])}"
    body = "".join(
        f"<section><h2>{for_html(section.title)}</h2>{''.join(map(_write, section.parts))}</section>"
        for section in told
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title><style>{STYLE}</style></head>'
        f"<body><main>{_verdict(verdict)}{body}<footer>{for_html(footer, 1000)}</footer></main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )
    # Texts from outside are escaped by now: these are ours.
    return page.replace("<style>", f'<style nonce="{nonce}">').replace("<script>", f'<script nonce="{nonce}">')


def _verdict(verdict: Verdict) -> str:
    kinds = ("tag bad", "tag", *["tag quiet"] * len(verdict.tags))
    tags = (f'<span class="{kind}">{for_html(tag)}</span>' for kind, tag in zip(kinds, verdict.tags, strict=False))
    lines = []
    for label, text in verdict.rows:
        kind = "cause" if label.startswith("Cause") else "message" if label == "What" else "next"
        lead = f"<strong>{label}.</strong> " if kind == "next" else ""
        lines.append(f'<p class="{kind}">{lead}{for_html(text, 1000)}</p>')
    name = for_html(verdict.name) + (f", {verdict.attempt}" if verdict.attempt else "")
    return f'<header><p class="tags">{" ".join(tags)}</p><h1>{name}</h1>{"".join(lines)}</header>'


def _write(part: Part) -> str:
    match part:
        case str():
            return f"<p>{for_html(part, 1000)}</p>"
        case Chart():
            return f'<figure class="chart">{part.svg}</figure>'
        case Facts():
            rows = (
                f"<div{' class=wide' * (len(value) > _WIDE)}><dt>{for_html(label)}</dt><dd>{for_html(value, 600)}</dd></div>"
                for label, value in part.rows
            )
            return f'<dl class="numbers">{"".join(rows)}</dl>'
        case Listing():
            return _TABLE.format("".join(map(_row, part.entries)))
        case Lines(kind="list"):
            return f'<ul class="lines">{"".join(f"<li>{for_html(line, 500)}</li>" for line in part.lines)}</ul>'
        case Lines(kind="command"):
            return _COPIED.format(for_html(part.lines[0], 5000))
        case Lines():
            text = "\n".join(for_html(line, 2000) for line in part.lines)
            pre = f'<pre tabindex="0">{text}</pre>'
            return f"<details><summary>{for_html(part.title, 1000)}</summary>{pre}</details>" if part.title else pre


def _row(file: ListingEntry) -> str:
    flags = " ".join(f'<span class="tag quiet">{flag}</span>' for flag in file.flags)
    numbers = (
        (file.age_s, format_duration(max(0.0, file.age_s))),
        (file.size_bytes, format_bytes(file.size_bytes)),
        (file.allocated_bytes, format_bytes(file.allocated_bytes)),
    )
    cells = (f'<td class="number"><span data-value="{value}">{shown}</span></td>' for value, shown in numbers)
    return f'<tr><td class="path"><bdi>{for_html(file.path, 1000)}</bdi></td><td>{flags}</td>{"".join(cells)}</tr>'
