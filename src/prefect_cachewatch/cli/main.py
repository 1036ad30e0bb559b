"""The `cachewatch` command: a table of sub-commands, each imported only when it is used.

Every error that the engine raises becomes one sentence on stderr and an exit status;
a traceback is a defect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.errors import CachewatchError

USAGE_ERROR = 125

# name -> (module:attribute, one line for --help); a module is imported when its command runs.
COMMANDS: dict[str, tuple[str, str]] = {
    "exec": ("prefect_cachewatch.cli.exec_command:command", "Run a command under guard; no Prefect, like timeout(1) for progress."),
    "generate": ("prefect_cachewatch.cli.generate:command", "The same through the Prefect flow, with retries."),
    "watch": ("prefect_cachewatch.cli.watching:command", "Watch a process that somebody else started."),
    "profiles": ("prefect_cachewatch.cli.profiles:command", "Known generators: where they write, how long they are silent."),
    "stop": ("prefect_cachewatch.cli.stop:command", "Stop a server that was left running when it was ready, or list them."),
    "fleet": ("prefect_cachewatch.cli.fleet:command", "Many generations as one: jobs.yaml, on this host or over workers."),
    "store": ("prefect_cachewatch.cli.store:command", "List, verify, activate, roll back and clean up published caches."),
    "report": ("prefect_cachewatch.cli.report:command", "Show the post-mortem of a generation that stalled or failed."),
    "replay": ("prefect_cachewatch.cli.replay:command", "What a stall policy would have done on a recorded run."),
    "doctor": ("prefect_cachewatch.cli.doctor:command", "What a run needs: what works here, what is missing, what to do."),
    "probe": ("prefect_cachewatch.cli.probe:command", "Measure a storage for the planner."),
    "automations": ("prefect_cachewatch.cli.automations:command", "React to stalls and dead runs on a Prefect server."),
    "templates": ("prefect_cachewatch.cli.templates:command", "Copy the deployment templates into a directory."),
    "plan": ("prefect_cachewatch.cli.plan:command", "How many jobs to run at once on a storage, and what binds."),
}  # fmt: skip

# Commands that run or watch a generator: their messages must not wait for a reader.
_WATCHING = frozenset({"exec", "generate", "watch", "fleet"})


def fail(message: str, exit_code: int = USAGE_ERROR) -> NoReturn:
    """Say one sentence on stderr and end the command.

    Args:
        message: what happened, to which path or field, and what to do next.
        exit_code: the exit status.

    Raises:
        SystemExit: always.
    """
    say(message)
    raise SystemExit(exit_code)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; the entry point of the `cachewatch` script.

    Args:
        argv: arguments after the program's name; default `sys.argv[1:]`.

    Raises:
        SystemExit: with the exit status.
    """
    _fill_standard_streams()
    if sys.platform != "linux":
        fail(f"this is {sys.platform}, and the guard needs Linux 5.3 or newer (pidfd); run it in a Linux container")
    if argv is None:  # with SIGCHLD ignored the kernel reaps children, and their exit codes are lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_with(lambda: _begin(argv))


def _begin(argv: Sequence[str] | None) -> object:
    command = sys.argv[1] if argv is None and sys.argv[1:] else ""
    if command in _WATCHING:
        from prefect_cachewatch.common.console import install_console  # noqa: PLC0415 - for these alone

        install_console()
    if command == "exec":
        from prefect_cachewatch.cli.signals import hold_back  # noqa: PLC0415 - for exec alone

        hold_back()
    return _run_click(argv)


def _run_click(argv: Sequence[str] | None) -> object:
    import click  # noqa: PLC0415 - what fails here is told by the caller

    from prefect_cachewatch.cli.group import command_group, usage_message  # noqa: PLC0415

    group, args = command_group(COMMANDS), list(sys.argv[1:] if argv is None else argv)
    try:
        return group.main(args=args, prog_name="cachewatch", standalone_mode=False, obj=argv is None)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE_ERROR
    except click.Abort:
        return 130
    except click.ClickException as error:
        fail(usage_message(error, group, args))


def _end_with(action: Callable[[], Any]) -> NoReturn:
    """End with the exit status that an action returns, or with one sentence for an exception."""
    try:
        _end(action)
    finally:
        _close_console()


def _end(action: Callable[[], Any]) -> NoReturn:
    try:
        result = action()
        sys.stdout.flush()
    except CachewatchError as error:
        fail(error.message, error.exit_code)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output has gone; a second error while Python flushes stdout would repeat that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(141) from None
    except OSError as error:
        from prefect_cachewatch.common.text import describe_refusal  # noqa: PLC0415 - seldom

        fail(describe_refusal(error))
    except Exception as error:  # noqa: BLE001 - our own failure is 125 too, for callers that test the status
        if type(error).__name__ == "ValidationError" and str(getattr(error, "title", "")).endswith("Settings"):
            first = cast("Any", error).errors()[0]
            where = ".".join([cast("Any", error).title, *map(str, first["loc"])])
            fail(
                f"Prefect refuses its settings ({where}: {first['msg']}): correct the PREFECT_ variables or the profile"
            )
        import traceback  # noqa: PLC0415 - seldom

        traceback.print_exc()
        fail(f"internal error, please report it with the lines above: {type(error).__name__}: {error}")
    raise SystemExit(result if isinstance(result, int) else 0)


def _close_console() -> None:
    if (console := sys.modules.get("prefect_cachewatch.common.console")) is not None:
        console.close_console()


def _fill_standard_streams() -> None:
    """Open /dev/null if a standard stream is closed, so that a control socket does not get its number."""
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
