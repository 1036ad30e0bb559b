"""What a command says beside its output: sentences on standard error, without the secrets of its generator."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping

_environments: list[Mapping[str, str]] = []


def keep_secret(*environments: Mapping[str, str]) -> None:
    """Name the environments whose secrets must not be said: this process's own, and those of its generators.

    Args:
        environments: values by variable.
    """
    _environments[:] = environments
    _secrets.cache_clear()


def without_secrets(text: str) -> str:
    """Return a text with `***` in place of each secret, such as one that is part of a path."""
    if not (secrets := _secrets()):
        return text
    from prefect_cachewatch.common.secrets import hide  # noqa: PLC0415 - most commands have none

    return hide(text, secrets)


@functools.cache
def _secrets() -> tuple[str, ...]:
    if not _environments:
        return ()
    from prefect_cachewatch.common.secrets import secret_values  # noqa: PLC0415 - most commands have none

    return tuple({value for each in _environments for value in secret_values(each)})


def say(sentence: str, *, flush: bool = False) -> None:
    """Print a sentence on standard error.

    Args:
        sentence: harmless for a terminal.
        flush: whether to wait until it is written, as long as a reader who is slow is waited for.
    """
    print(f"cachewatch: {without_secrets(sentence)}", file=sys.stderr, flush=flush)
