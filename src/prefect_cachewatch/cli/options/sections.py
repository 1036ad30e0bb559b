"""Options in sections: `--help` shows the common ones on one screen, `--help-all` every one with all its words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

__all__ = ["Section", "SectionedCommand", "option"]

_ALL = "prefect_cachewatch.help_all"
# What follows the first clause of an option's help; not what stands in brackets behind it.
_FURTHER_WORDS = re.compile(r"(?:\.|[.;] \S.*?)(?=$|  \[)", re.S)


@dataclass(frozen=True)
class Section:
    """Options under one title.

    Args:
        title: what they have in common.
        common: names of those that `--help` shows, separated by blanks.
        options: all of them.
    """

    title: str
    common: str
    options: Sequence[click.Option]


def option(*declarations: str, **settings: Any) -> click.Option:
    """Make an option; as the decorator of click, for a section."""
    return click.Option(declarations, **settings)


class SectionedCommand(click.Command):
    """A command whose options stand in sections.

    Args:
        sections: of its options.
        needed: option -> when it is required, for the help.
        examples: lines that people may copy.
        arguments: as `click.Command` has them.
    """

    def __init__(
        self, *arguments: Any, sections: Sequence[Section], needed: dict[str, str], examples: Sequence[str], **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.needed, self.examples = needed, examples
        help_all = option(
            "--help-all",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show every option; --help shows the common ones.",
        )
        self.sections = [*sections, Section("Help", "", [help_all])]
        self.params += [each for section in self.sections for each in section.options]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; those that are rare only if all were asked for."""
        for section in self.sections:
            named = {name: each for each in section.options for name in each.opts}
            common = [named[name] for name in section.common.split() if name in named]
            shown = section.options if ctx.meta.get(_ALL) else common
            if shown:
                with formatter.section(section.title):
                    formatter.write_dl([self._record(ctx, each) for each in shown])

    def _record(self, ctx: click.Context, each: click.Option) -> tuple[str, str]:
        name, text = each.get_help_record(ctx) or ("", "")
        if not ctx.meta.get(_ALL):
            text = _FURTHER_WORDS.sub("", text).replace("  [default: ", " [")
        needed = self.needed.get(each.opts[0])
        return name, f"{text} [{needed}]" if needed else text

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and where the rest is."""
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in self.examples))
        if not ctx.meta.get(_ALL):
            formatter.write_paragraph()
            formatter.write_text(f"{ctx.command_path} --help-all shows every option.")
        super().format_epilog(ctx, formatter)


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
