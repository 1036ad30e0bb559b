"""Reads a command line in a child process, so that the libraries that check it do not stay in memory for hours.

click and pydantic would be half of a watch's memory. The child of `settings_from` reads the options, checks them and
prints errors as the command itself would; the parent gets plain values and loads the engine meanwhile.
Standard library only.
"""

from __future__ import annotations

import _pickle as pickle  # see common.aside
import contextlib
import errno
import gc
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from prefect_cachewatch.common.console import close_console
from prefect_cachewatch.common.files import write_all

if TYPE_CHECKING:
    from prefect_cachewatch.cli.progress import Mode
    from prefect_cachewatch.config import CacheJob, Outputs, StallPolicy, StopPolicy
    from prefect_cachewatch.metrics.settings import Metrics
    from prefect_cachewatch.run.filled_key import OpenKey

_PATIENCE_S = 60.0
Receive = Callable[["ExecSettings"], int]


@dataclass(frozen=True)
class ExecSettings:
    """The checked options of `cachewatch exec`; models as such, or as `PlainModel` with the same attributes."""

    job: CacheJob
    stall: StallPolicy
    stop: StopPolicy
    outputs: Outputs
    create: bool
    quiet: bool
    progress: Mode | None
    foreground: bool
    verbose: int
    """1 for each step of the guard, 2 for each measurement too."""
    rewrite: dict[int, int]
    metrics: Metrics | None
    note: str | None
    """Remarks on the options, printed before the start."""
    as_json: bool = False
    """Whether the report is printed."""
    opened_key: OpenKey | None = None
    """What the command says of its cache's key, if a profile knows it."""


class PlainModel(SimpleNamespace):
    """The values of a checked pydantic model as read-only attributes; it validates nothing.

    Args:
        values: values of its fields.

    Example:
        >>> PlainModel(grace_s=10.0).grace_s
        10.0
    """

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} cannot be set: the values of a model are frozen")


def settings_from(read: Callable[[Receive], int], meanwhile: Callable[[], object]) -> ExecSettings | int:
    """Read a command line in a child process.

    Call it before any thread is started: the child is a fork.

    Args:
        read: reads it, in the child; passes the options, if they are valid, to the function that it is given,
            and returns or raises SystemExit with the exit status.
        meanwhile: what the parent does until then.

    Returns:
        The options; or the exit status, if there is nothing to run and every message has been printed.

    Raises:
        OSError: the child could not be made, or was killed.
    """
    answer_read, answer_write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(answer_read)
        _read_and_end(read, answer_write)
    os.close(answer_write)
    with open(answer_read, "rb") as answer:
        meanwhile()
        if not select.select([answer], [], [], _PATIENCE_S)[0]:
            os.kill(child, signal.SIGKILL)
            raise OSError(
                errno.ETIMEDOUT,
                f"the command line was not read within {_PATIENCE_S:.0f} s; a file system that an option names may hang",
            )
        data = answer.read()
    with contextlib.suppress(ChildProcessError):  # the caller ignores SIGCHLD: the kernel has reaped it
        os.waitpid(child, 0)
    if not data:
        raise OSError("the process that reads the command line was killed")
    told: ExecSettings | int = pickle.loads(data)
    return told


def _read_and_end(read: Callable[[Receive], int], answer: int) -> NoReturn:
    gc.disable()  # it takes a fifth of the time that follows, and this process ends soon
    told: list[ExecSettings] = []

    def receive(settings: ExecSettings) -> int:
        told.append(settings)
        return 0

    status = 125
    try:
        status = read(receive)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 125
    finally:
        # Never return into the parent's code, whatever was raised; exit handlers are the parent's to run.
        with contextlib.suppress(Exception):
            close_console()
            sys.stdout.flush()
            sys.stderr.flush()
            write_all(answer, _plain_bytes(told[0] if told and status == 0 else status))
        os._exit(0)
    raise AssertionError("unreachable")


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if hasattr(type(obj), "model_fields") and not getattr(type(obj), "stays_a_model", False):
            return _plain_model, (dict(obj),)
        return NotImplemented


def _plain_model(values: Mapping[str, Any]) -> PlainModel:
    return PlainModel(**values)


def _plain_bytes(told: ExecSettings | int) -> bytes:
    buffer = io.BytesIO()
    _PlainPickler(buffer).dump(told)
    return buffer.getvalue()
