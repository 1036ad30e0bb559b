"""Writes what is told of an attempt as Markdown for Prefect's UIs; every text is escaped here. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from prefect_cachewatch.common.svg import svg_data_uri
from prefect_cachewatch.common.text import for_markdown, for_terminal, markdown_code
from prefect_cachewatch.report.sections import Chart, Facts, Lines, Part, Pre, Section, Verdict

_MOST_LINES = 30


def write_markdown(verdict: Verdict, told: Iterable[Section]) -> str:
    """Write a verdict and the sections below it.

    Args:
        verdict: begins the text.
        told: the sections; tables are left out, since they make an artifact of their own.

    Returns:
        Markdown; text from outside is escaped.
    """
    attempt = f", {verdict.attempt}" if verdict.attempt else ""
    lines = [f"## {for_markdown(verdict.name, 100)}{attempt}: {verdict.state}", ""]
    sure = f" ({verdict.tags[1]}, {verdict.tags[-1]})" if len(verdict.tags) > 1 else ""
    for index, (label, text) in enumerate(verdict.rows):
        lead = "" if label == "What" else f"**{label}:** "
        lines += [f"{lead}{for_markdown(text, 2000)}{sure if index == 0 else ''}", ""]
    for section in told:
        parts = [line for part in section.parts for line in _write(part)]
        if parts:
            lines += [*([] if section.label == "growth" else [f"{section.title}:", ""]), *parts]
    return "\n".join(lines).rstrip() + "\n"


def _write(part: Part) -> list[str]:
    match part:
        case str():
            return [for_markdown(part, 1000), ""]
        case Chart():  # an image, since both UIs remove raw SVG from Markdown
            return [f"![Bytes written over time]({svg_data_uri(part.svg)})", "", for_markdown(part.legend), ""]
        case Facts():  # no table: the UI at / breaks no line in one, and cuts it off at the edge of a phone
            return [*(f"- {label}: {markdown_code(value, 500)}" for label, value in part.rows), ""]
        case Lines():
            return [*(f"- {for_markdown(line, 500)}" for line in part.lines), ""]
        case Pre(command=True):
            return [markdown_code(part.lines[0], 1000), ""]
        case Pre():
            text = "\n".join(for_terminal(line, 300) for line in part.lines[-_MOST_LINES:])
            fence = "```"
            while fence in text:
                fence += "`"
            return [f"{fence}text", text, fence, ""]
    return []
