"""`cachewatch completion`: what makes a shell complete this command; the completing itself is click's."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["command"]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what makes a shell complete commands, options, profiles and paths.

    \b
    bash: eval "$(cachewatch completion bash)" in ~/.bashrc (bash 4.4 or newer)
    zsh:  eval "$(cachewatch completion zsh)" in ~/.zshrc, after compinit
    fish: cachewatch completion fish > ~/.config/fish/completions/cachewatch.fish
    """
    completing = get_completion_class(shell)
    assert completing is not None
    root = click.get_current_context().find_root().command
    click.echo(completing(root, {}, "cachewatch", "_CACHEWATCH_COMPLETE").source())
