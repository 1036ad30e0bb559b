"""Options in sections: `--help` shows the common ones on one screen, `--help-all` all of them with their full text.

Options that the command line does not set come from the environment and a file (`settings`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from prefect_cachewatch.cli.options.settings import key_of, read_config, variable_of
from prefect_cachewatch.cli.saying import keep_secret

F = TypeVar("F", bound=Callable[..., Any])
_ALL = "prefect_cachewatch.help_all"


@dataclass(frozen=True)
class Section:
    """Options under one title.

    Args:
        title: title of the section.
        common: names of the options that `--help` shows, separated by blanks.
        options: all of them.
    """

    title: str
    common: str
    options: Sequence[click.Option]


def option(*declarations: str, **settings: Any) -> click.Option:
    """Make an option for a section, in the form of click's decorator."""
    return click.Option(declarations, **settings)


def json_option(text: str = "One JSON object.") -> Callable[[F], F]:
    """Make the option `--json` of a command, in the form of click's decorator.

    Args:
        text: what is printed.
    """
    return click.option("--json", "as_json", is_flag=True, help=text)


def verbose_option(text: str) -> click.Option:
    """Make the option `--verbose`.

    Args:
        text: what it shows.
    """
    return option("-v", "--verbose", is_flag=True, help=text)


def complete_directory(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a directory."""
    return [CompletionItem(incomplete, type="dir")]


class SectionedCommand(click.Command):
    """A command whose options stand in sections.

    Args:
        sections: sections of its options.
        needed: option -> when it is required, for the help.
        examples: lines that users may copy.
        arguments: those of `click.Command`.
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
        config = option(
            "--config",
            metavar="FILE",
            envvar="CACHEWATCH_CONFIG",
            is_eager=True,
            expose_value=False,
            callback=_take_config,
            help="TOML file with values of options.",
        )
        self.sections = [*sections, Section("Help", "", [config, help_all])]
        self.params += [each for section in self.sections for each in section.options]
        for key, each in self.settable().items():
            each.envvar = variable_of(key)

    def settable(self) -> dict[str, click.Option]:
        """List the options that environment and files may set, by their keys."""
        found = [each for section in self.sections for each in section.options]
        return {key: each for each in found if (key := key_of(each)) is not None}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an error about a value names its source."""
        if not ctx.resilient_parsing:
            self._refuse_swallowed(args)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if error.param is not None:
                cast("Any", error).message += _source_of(ctx, error.param)  # a constant to type checkers
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it says has no secret of the generator's environment."""
        pairs = (pair.partition("=") for pair in ctx.params.get("env") or ())
        keep_secret(os.environ, {name: value for name, _, value in pairs})
        return super().invoke(ctx)

    def _refuse_swallowed(self, args: Sequence[str]) -> None:
        """Refuse an option that would take the next one, or the -- before the command, for its value."""
        by_name = {name: each for each in self.params if isinstance(each, click.Option) for name in each.opts}
        words = iter(args)
        for word in words:
            each = by_name.get(word)
            if word == "--" or not word.startswith("-"):
                return
            if each is None or each.is_flag:
                continue
            value = next(words, None)
            if value == "--" or value in by_name:
                raise click.BadOptionUsage(word, f"Option {word!r} requires an argument, and {value!r} follows it")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; rare options only if all were asked for."""
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
            words, *brackets = text.split("  [")
            default = [f" [{each.removeprefix('default: ')}" for each in brackets if each.startswith("default: ")]
            text = re.split(r"[.;](?: |$)", words)[0] + "".join(default)
        needed = self.needed.get(each.opts[0])
        return name, f"{text} [{needed}]" if needed else text

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and how to see the other options."""
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in self.examples))
        if not ctx.meta.get(_ALL):
            formatter.write_paragraph()
            formatter.write_text(f"{ctx.command_path} --help-all shows every option.")
        super().format_epilog(ctx, formatter)


def _take_config(ctx: click.Context, parameter: click.Parameter, path: str | None) -> None:
    command = ctx.command
    if path is not None and not ctx.resilient_parsing and isinstance(command, SectionedCommand):
        ctx.default_map = read_config(path, str(command.name), command.settable())


def _source_of(ctx: click.Context, parameter: click.Parameter) -> str:
    """Say where a value that was not given on the command line comes from."""
    source = ctx.get_parameter_source(str(parameter.name))
    if source is ParameterSource.ENVIRONMENT:
        return f" (set by {parameter.envvar})"
    return " (set by the file of --config)" if source is ParameterSource.DEFAULT_MAP else ""


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
