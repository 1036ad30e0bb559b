"""The `cachewatch` command: a table of sub-commands, each imported only when it is used.

Every error that the engine raises becomes one sentence on stderr and an exit status;
a traceback is a defect.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from typing import Any, NoReturn

import click

from prefect_cachewatch import __version__

__all__ = ["cli", "main"]

USAGE_ERROR = 125

# name -> (module:attribute, one line for --help); a module is imported when its command runs.
COMMANDS: dict[str, tuple[str, str]] = {
    "exec": ("prefect_cachewatch.cli.exec:command", "Run a command under guard; no Prefect, like timeout(1) for progress."),
    "generate": ("prefect_cachewatch.cli.generate:command", "The same through the Prefect flow, with retries."),
    "janitor": ("prefect_cachewatch.cli.janitor:command", "Stop what runs whose guards have died left behind."),
    "measure": ("prefect_cachewatch.cli.measure:command", "Measure a directory once, as the watch does."),
    "store": ("prefect_cachewatch.cli.store:command", "List, verify, activate, roll back and clean up published caches."),
    "report": ("prefect_cachewatch.cli.report:command", "Show the post-mortem of a stalled generation."),
    "replay": ("prefect_cachewatch.cli.replay:command", "What a stall policy would have done on a recorded run."),
    "probe": ("prefect_cachewatch.cli.probe:command", "Measure a storage, or a codec on a sample, for the planner."),
    "demo": ("prefect_cachewatch.cli.demo:command", "A healthy generation and one that freezes, in about a minute."),
    "plan": ("prefect_cachewatch.cli.plan:command", "How many jobs at once a storage carries, and why not more."),
}  # fmt: skip


class _Table(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cachewatch")
def cli() -> None:
    """Generate tensor caches under guard: stalls are seen by the bytes, stopped and explained."""


def fail(message: str, exit_code: int = USAGE_ERROR) -> NoReturn:
    """Say one sentence on stderr and end the command.

    Args:
        message: what happened, to which path or field, and what to do next.
        exit_code: the exit status.

    Raises:
        SystemExit: always.
    """
    print(f"cachewatch: {message}", file=sys.stderr)
    raise SystemExit(exit_code)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; the entry point of the `cachewatch` script.

    Args:
        argv: arguments after the program's name; default `sys.argv[1:]`.

    Raises:
        SystemExit: with the exit status.
    """
    from prefect_cachewatch.errors import CachewatchError  # noqa: PLC0415 - after --help and --version
    from prefect_cachewatch.text import for_terminal  # noqa: PLC0415

    _fill_standard_streams()
    if sys.platform != "linux":
        fail(f"this is {sys.platform}, and the guard needs Linux 5.3 or newer (pidfd); run it in a Linux container")
    try:
        result: Any = cli.main(args=argv, prog_name="cachewatch", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        raise SystemExit(exit_.exit_code) from None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(USAGE_ERROR) from None
    except click.Abort:
        raise SystemExit(130) from None
    except click.ClickException as error:
        hint = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        fail(" ".join(error.format_message().split()) + hint)
    except CachewatchError as error:
        fail(error.message, error.exit_code)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output left; a second error while Python flushes stdout would say so again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(141) from None
    except OSError as error:
        where = f": {for_terminal(str(error.filename))}" if error.filename else ""
        fail(f"the system refused: {error.strerror or error}{where}")
    except Exception as error:  # noqa: BLE001 - our own failure is 125 too, for whoever acts on the exit status
        traceback.print_exc()
        fail(f"internal error, please report it with the lines above: {type(error).__name__}: {error}")
    raise SystemExit(result if isinstance(result, int) else 0)


def _fill_standard_streams() -> None:
    """Open /dev/null where a standard stream is closed, or a control socket would get its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


if __name__ == "__main__":
    main()
