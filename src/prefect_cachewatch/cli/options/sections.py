"""Options in sections: `--help` shows the common ones on one screen, `--help-all` all of them with their full text.

Options that the command line does not set come from the environment and a file (`settings`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from prefect_cachewatch.cli.options.settings import key_of, read_settings, settings_of
from prefect_cachewatch.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])
_ALL, _SOURCES, _PASSED_OVER = (f"prefect_cachewatch.{name}" for name in ("help_all", "sources", "passed_over"))


@dataclass(frozen=True)
class Section:
    """Options under one title.

    Args:
        title: title of the section.
        common: names of the options that `--help` shows, separated by blanks.
        options: all of them.
        shared: names of the options that also apply, from the environment or a file, to commands that a generator runs;
            `*` for all. The others belong to a single run.
    """

    title: str
    common: str
    options: Sequence[click.Option]
    shared: str = ""

    def own(self) -> list[click.Option]:
        """List the options that belong to a single run."""
        return [each for each in self.options if self.shared != "*" and not {*self.shared.split()} & {*each.opts}]


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
    """Make the option `--verbose`, which counts.

    Args:
        text: what each level shows.
    """
    return option("-v", "--verbose", count=True, help=text)


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
            callback=_take_settings,
            help="TOML with values of options; default [tool.cachewatch] of pyproject.toml in the working directory.",
        )
        self.sections = [*sections, Section("Help", "", [config, help_all])]
        self.params += [each for section in self.sections for each in section.options]

    def settable(self) -> dict[str, click.Option]:
        """List the options that environment and files may set, by their keys."""
        found = [each for section in self.sections for each in section.options]
        return {key: each for each in found if (key := key_of(each)) is not None}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an error about a value names its source."""
        if not ctx.resilient_parsing:
            self._refuse_swallowed(args)
        with _sources_named(ctx):
            return super().parse_args(ctx, args)

    def _refuse_swallowed(self, args: Sequence[str]) -> None:
        """Refuse an option that would take the next one, or the -- before the command, for its value."""
        by_name = {name: each for each in self.params if isinstance(each, click.Option) for name in each.opts}
        words = iter(args)
        for word in words:
            each = by_name.get(word)
            if word == "--" or not word.startswith("-"):
                return
            if each is None or each.is_flag or each.count:
                continue
            value = next(words, None)
            if value == "--" or value in by_name:
                raise click.BadOptionUsage(word, f"Option {word!r} requires an argument, and {value!r} follows it")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error about a value names its source."""
        with _sources_named(ctx):
            return super().invoke(ctx)

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


def _take_settings(ctx: click.Context, parameter: click.Parameter, given: str | None) -> None:
    command = ctx.command
    if ctx.resilient_parsing or not isinstance(command, SectionedCommand):
        return
    keys = command.settable()
    own = [key for section in command.sections for each in section.own() if (key := key_of(each))]
    shown, table = read_settings(given, str(command.name), keys, _others(ctx))
    ctx.default_map, ctx.meta[_SOURCES], ctx.meta[_PASSED_OVER] = settings_of(keys, table, shown, own)


def _others(ctx: click.Context) -> dict[str, Callable[[], Container[str]]]:
    """By command with settings, a function that lists their keys: a key in a file may belong to another command."""
    group = ctx.find_root().command

    def keys_of(name: str) -> Container[str]:
        found = group.get_command(ctx, name) if isinstance(group, click.Group) else None
        return found.settable() if isinstance(found, SectionedCommand) else ()

    return {name: functools.partial(keys_of, name) for name in ("exec", "generate", "watch", "fleet")}


@contextlib.contextmanager
def _sources_named(ctx: click.Context) -> Iterator[None]:
    """Add the source of its value to an error that names an option, unless that is the command line."""
    try:
        yield
    except click.BadParameter as error:
        if not (note := _source_of(ctx, error.param.opts if error.param is not None else ())):
            raise
        raise click.BadParameter(error.message + note, error.ctx, error.param, error.param_hint) from None
    except InputError as error:
        error.message += _source_of(ctx, re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", error.message))
        raise


def _source_of(ctx: click.Context, names: Sequence[str]) -> str:
    by_name = {name: str(each.name) for each in ctx.command.params for name in each.opts}
    for name in (by_name[name] for name in names if name in by_name):
        where = ctx.meta.get(_SOURCES, {}).get(name)
        if where and ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
            return f" (set by {where})"
    passed_over = ", ".join(ctx.meta.get(_PASSED_OVER, ()))
    return f" (not used below another cachewatch: {passed_over})" if passed_over else ""


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
