"""Options of a generator that runs in a container, and how they become a `ContainerSpec`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click
from pydantic import ValidationError

from prefect_cachewatch.cli.options.sections import Section, option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import parse_bytes
from prefect_cachewatch.config import ContainerSpec
from prefect_cachewatch.errors import InputError

__all__ = ["CONTAINER_SECTION", "container_from", "environment_from"]

# Name of the parsed option -> the model's field and the option itself, for messages.
_FIELDS = {
    "image": ("image", "--image"),
    "volume": ("mounts", "--volume"),
    "device": ("devices", "--device"),
    "gpus": ("gpus", "--gpus"),
    "shm_size": ("shm_size_bytes", "--shm-size"),
    "ulimit": ("ulimits", "--ulimit"),
    "user": ("user", "--user"),
    "group_add": ("group_add", "--group-add"),
    "network": ("network", "--network"),
    "publish": ("ports", "--publish"),
    "label": ("labels", "--label"),
    "workdir": ("workdir", "--workdir"),
    "entrypoint": ("entrypoint", "--entrypoint"),
    "memory": ("memory_bytes", "--memory"),
    "cpus": ("cpus", "--cpus"),
    "init": ("init", "--init"),
    "pull": ("pull", "--pull"),
    "engine": ("engine", "--engine"),
    "measure_image": ("measure_image", "--measure-image"),
}


class _Bytes(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.2 and later only
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            # docker's own 16g means what 16GiB does.
            text = str(value)
            return parse_bytes(f"{text}iB" if text[-1:] in "kmgtKMGT" else text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


CONTAINER_SECTION = Section("Container", "--image --volume --device", [
    option("--image", metavar="IMAGE", help="Run COMMAND in a container of this image; it inherits no environment."),
    option("--volume", "-v", metavar="SRC:DST[:ro]", multiple=True, help="Directory or named volume in the container."),
    option("--device", metavar="DEV[:DST]", multiple=True, help="Device, such as /dev/tenstorrent."),
    option("--gpus", metavar="all|N|device=...", help="GPUs, as docker run has them."),
    option("--shm-size", type=_Bytes(), help="Size of /dev/shm."),
    option("--ulimit", metavar="NAME=LIMIT", multiple=True, help="Such as memlock=-1."),
    option("--user", metavar="UID[:GID]", help="User in the container."),
    option("--group-add", metavar="GROUP", multiple=True, help="Further group of the user."),
    option("--network", metavar="NAME", help="bridge, none, host, or a network's name."),
    option("--publish", "-p", metavar="[ADDR:]HOST:PORT", multiple=True, help="Port on this host; loopback by default."),
    option("--label", metavar="NAME=VALUE", multiple=True, help="Label of the container."),
    option("--workdir", metavar="DIR", help="Working directory in the container."),
    option("--entrypoint", metavar="PROGRAM", help="In place of the image's own."),
    option("--memory", type=_Bytes(), help="Memory limit of the container."),
    option("--cpus", type=float, help="CPU limit of the container, in cores."),
    option("--init", is_flag=True, help="A small init as process 1, which passes SIGTERM on."),
    option("--pull", type=click.Choice(["missing", "always", "never"]), help="When to pull; default missing."),
    option("--engine", metavar="URL", help="unix:///path or tcp://host:port; default DOCKER_HOST, else found."),
    option("--measure-image", metavar="IMAGE", help="Has python3, to measure a volume that you may not read."),
], shared="--engine --pull")  # fmt: skip


def environment_from(pairs: Sequence[str], *, inherit: bool) -> dict[str, str]:
    """Make an environment from `--env` options.

    Args:
        pairs: NAME=VALUE; with `inherit` also NAME alone, for the value that this process has.
        inherit: whether that is allowed, since the generator inherits nothing by itself.

    Returns:
        Name to value.

    Raises:
        InputError: one is neither.

    Example:
        >>> environment_from(["A=b=c"], inherit=False)
        {'A': 'b=c'}
    """
    env = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if inherit and key and not equals:
            if key not in os.environ:
                raise InputError(
                    f"--env {for_terminal(key, 40)} is not set in this environment: write --env NAME=VALUE"
                )
            value, equals = os.environ[key], "="
        if not equals or not key:
            raise InputError(
                f"--env {for_terminal(pair, 40)!r} is not NAME=VALUE: write it like --env TT_CACHE_PATH=/mnt/cache"
            )
        env[key] = value
    return env


def container_from(options: dict[str, Any]) -> ContainerSpec | None:
    """Make the container from the parsed options.

    Args:
        options: of `CONTAINER_SECTION`, among others.

    Returns:
        It; None where no image is named.

    Raises:
        InputError: an option is malformed, or needs an image.
    """
    given = {name: options[name] for name in _FIELDS if options.get(name) not in (None, (), False)}
    if not given.get("image"):
        if given:
            raise InputError(f"{_FIELDS[min(given)][1]} is for a container: name its image with --image")
        return None
    for name in ("ulimit", "label"):
        if name in given:
            given[name] = dict(_pair(_FIELDS[name][1], text) for text in given[name])
    if "entrypoint" in given:
        given["entrypoint"] = [given["entrypoint"]]
    if "volume" in given:
        given["volume"] = [_absolute_source(text) for text in given["volume"]]
    try:
        return ContainerSpec(**{_FIELDS[name][0]: value for name, value in given.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        option = next((option for name, option in _FIELDS.values() if name == field), "--image")
        what = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{option}: {for_terminal(what[:1].lower() + what[1:], 300)}") from None


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"{option} {for_terminal(text, 40)!r} is not NAME=VALUE")
    return name, value


def _absolute_source(text: str) -> str:
    """Make a relative or home path absolute, as docker run does; a word without a slash is a volume."""
    source, colon, rest = text.partition(":")
    if source.startswith((".", "~")) or ("/" in source and not source.startswith("/")):
        source = os.path.abspath(os.path.expanduser(source))
    return f"{source}{colon}{rest}"
