"""`--profile`: a profile on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from prefect_cachewatch.cli.options.sections import option
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect_cachewatch.config.profiles.settings import ProfileSettings


def complete_profile(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """List the profiles whose names begin with a text, for shell completion."""
    from prefect_cachewatch.config.profiles.known import known_profiles  # noqa: PLC0415 - most runs have none

    return [name for name in known_profiles() if name.startswith(incomplete)]


PROFILE_OPTIONS = [
    option(
        "--profile",
        metavar="NAME[,K=V...]",
        shell_complete=complete_profile,
        help="Settings of a known generator; directories, environment and windows: see cachewatch profiles. "
        "exec finds it by the command where neither this nor --cache-dir is given; none turns that off.",
    ),
]


def profile_from(options: dict[str, Any]) -> ProfileSettings | None:
    """Return the job settings of the profile in `--profile`; None if none is named.

    Args:
        options: parsed; a command without this option has no profile. `found_profile` has one that the command
            line led to.

    Returns:
        The settings.

    Raises:
        InputError: the profile or a parameter is not known or not valid.
    """
    if (found := options.get("found_profile")) is not None:
        return cast("ProfileSettings", found)
    if options.get("profile") in (None, "none"):
        return None
    from prefect_cachewatch.config.profiles.known import make_profile  # noqa: PLC0415 - most runs have none

    return make_profile(*split_profile(options["profile"])).settings


def split_profile(profile: str) -> tuple[str, dict[str, str]]:
    """Split a profile as it is written.

    Args:
        profile: NAME, or NAME,KEY=VALUE,...; `-` in a key stands for `_`.

    Returns:
        The name, and values by key.

    Raises:
        InputError: one is not a parameter, or a key comes twice.

    Example:
        >>> split_profile("vllm,model=x,host-volume=/mnt/a=b")
        ('vllm', {'model': 'x', 'host_volume': '/mnt/a=b'})
    """
    name, _, rest = profile.partition(",")
    found: dict[str, str] = {}
    for pair in rest.split(",") if rest else ():
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(
                f"{for_terminal(pair, 60)!r} is no parameter of a profile: write it like model=Llama-3.1-8B-Instruct"
            )
        if key in found:
            raise InputError(f"the profile's parameter {for_terminal(key, 60)} is given twice: leave one out")
        found[key] = value
    return name, found
