"""Options of a generator in a container, and the `ContainerSpec` made from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from prefect_cachewatch.cli.options.fields import Fields, build_model, split_pairs
from prefect_cachewatch.cli.options.sections import Section
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import ContainerSpec
from prefect_cachewatch.errors import InputError

_FIELDS = Fields(
    ContainerSpec,
    "image IMAGE, mounts --volume SRC:DST[:ro], devices --device DEV[:DST], gpus all|N|device=..., "
    "shm_size_bytes, user UID[:GID], network NAME, "
    "ports --publish -p [ADDR:]HOST:PORT",
)
CONTAINER_SECTION = Section("Container", "--image --volume --device", _FIELDS.options())


def environment_from(pairs: Sequence[str], *, inherit: bool) -> dict[str, str]:
    """Make an environment from `--env` options.

    Args:
        pairs: NAME=VALUE; with `inherit` also NAME alone, for the value that this process has.
        inherit: whether NAME alone is allowed; the generator inherits nothing by itself.

    Returns:
        Name to value.

    Raises:
        InputError: a pair is neither.

    Example:
        >>> environment_from(["A=b=c"], inherit=False)
        {'A': 'b=c'}
    """
    env: dict[str, str] = {}
    for pair in pairs:
        if inherit and pair and "=" not in pair:
            if pair not in os.environ:
                raise InputError(
                    f"--env {for_terminal(pair, 40)} is not set in this environment: write --env NAME=VALUE"
                )
            env[pair] = os.environ[pair]
        else:
            env |= split_pairs("--env", [pair], example=": write it like --env TT_CACHE_PATH=/mnt/cache")
    return env


def container_from(options: dict[str, Any]) -> ContainerSpec | None:
    """Make the container from the parsed options.

    Args:
        options: those of `CONTAINER_SECTION`, among others.

    Returns:
        The container; None if no image is named.

    Raises:
        InputError: an option is malformed, or needs an image.
    """
    given = _FIELDS.given(options)
    if not given.get("image"):
        if given:
            raise InputError(f"{_FIELDS[min(given)].opts[0]} is for a container: name its image with --image")
        return None
    if "mounts" in given:
        given["mounts"] = [_absolute_source(text) for text in given["mounts"]]
    return build_model(ContainerSpec, **given)


def _absolute_source(text: str) -> str:
    """Make a relative or home path absolute, as docker run does; a word without a slash is a volume."""
    source, colon, rest = text.partition(":")
    if source.startswith((".", "~")) or ("/" in source and not source.startswith("/")):
        source = os.path.abspath(os.path.expanduser(source))
    return f"{source}{colon}{rest}"
