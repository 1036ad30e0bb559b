"""The table of sub-commands for click; a sub-command is imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

import click
from click.shell_completion import CompletionItem

from prefect_cachewatch import __version__
from prefect_cachewatch.common.text import for_terminal


class _Table(click.Group):
    rows: Mapping[str, tuple[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.rows:
            return None
        module, _, attribute = self.rows[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # click looks for similar names among the commands that a group has loaded, and this one has loaded none.
        if name not in self.rows and not name.startswith("-") and not ctx.resilient_parsing:
            from prefect_cachewatch.common.inputs import nearest  # noqa: PLC0415 - brings pydantic along

            if "did you mean" in (hint := nearest(name, self.rows)):
                ctx.fail(f"No such command {for_terminal(name, 60)!r}{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=line) for name, (_, line) in self.rows.items() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)  # a group's own imports all of them

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.rows.items()])


def command_group(rows: Mapping[str, tuple[str, str]]) -> click.Group:
    """Make the `cachewatch` command.

    Args:
        rows: name of each sub-command -> (module:attribute, one line for --help).

    Returns:
        The group.
    """

    @click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, "-V", "--version", prog_name="cachewatch")
    def cachewatch() -> None:
        """Generate tensor caches under guard: stalls are seen by the bytes, stopped and explained."""

    assert isinstance(cachewatch, _Table)
    cachewatch.rows = rows
    return cachewatch


def usage_message(error: click.ClickException, root: click.Command, args: Sequence[str]) -> str:
    """Say what is wrong and where to look: at `generate` for an option that only it has, such as --attempts.

    Args:
        error: what click raised.
        root: the `cachewatch` command.
        args: its arguments; click does not say which command lacks an option's value.
    """
    said = " ".join(error.format_message().split())
    if isinstance(error, click.BadOptionUsage) and error.ctx is None:
        return f"{said.rstrip('.')} (see {_path_of(root, args)} --help)"
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return said
    table = error.ctx.parent.command if error.ctx.parent else None
    if isinstance(error, click.NoSuchOption) and error.ctx.info_name in ("exec", "watch") and isinstance(table, _Table):
        other = table.get_command(error.ctx, "generate")
        if other is not None and any(error.option_name in parameter.opts for parameter in other.params):
            # click's guesses are names of other options, which only look alike.
            name = f"{error.option_name!r} of {error.ctx.info_name}"
            return f"No such option {name}: cachewatch generate has it (see cachewatch generate --help-all)"
    return f"{said} (see {error.ctx.command_path} --help)"


def _path_of(root: click.Command, args: Sequence[str]) -> str:
    """Return the path of the command that the arguments name."""
    context, command = click.Context(root, info_name="cachewatch"), root
    for word in args:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command, context = found, click.Context(found, info_name=word, parent=context)
    return context.command_path
