"""Options that say how `generate` and `deploy` publish a cache, and how they become a policy."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

from prefect_cachewatch.cli.options.guard import build_model
from prefect_cachewatch.cli.options.sections import Section, option
from prefect_cachewatch.cli.options.units import SIZE
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.publish.policy import PublishPolicy

__all__ = ["PUBLISH_SECTION", "policy_from"]

PUBLISH_SECTION = Section("Publishing", "--store --key --check", [
    option("--store", metavar="DIR", help="Publish into this store; {cache_dir} in COMMAND is the build's path."),
    option("--in-place", is_flag=True, help="Publish where it is written: --cache-dir gets a manifest and a marker."),
    option("--key", "keys", multiple=True, metavar="K=V", help="What the cache depends on; repeatable."),
    option("--tool", "tools", multiple=True, metavar="K=V", help="Version of a tool, for key and manifest."),
    option("--cache-dir-env", metavar="NAME", help="Variable that tells COMMAND where to write."),
    option("--force", is_flag=True, help="Generate even where a whole cache of this key is current."),
    option(
        "--verify", type=click.Choice(["quick", "full"]), default="quick", show_default=True, help="Before skipping."
    ),
    option("--check", metavar="COMMAND", help="Reads the finished build, {cache_dir}; exit 0 means good."),
    option("--expect-file", "expect_files", multiple=True, metavar="GLOB", help="Must be there; repeatable."),
    option(
        "--accept", multiple=True, metavar="GLOB",
        help="With --in-place: your own files that are whole, though an unfinished run may have written them; repeatable.",
    ),
    option("--min-bytes", type=SIZE, help="A smaller cache is refused."),
    option(
        "--size-change", type=click.Choice(["warn", "refuse", "ignore"]), default="warn", show_default=True,
        help="Half or twice the last build's size.",
    ),
    option("--keep", type=click.IntRange(min=1), default=3, show_default=True, help="Builds that stay."),
    option("--no-activate", is_flag=True, help="Publish, and leave the current build as it is."),
])  # fmt: skip


def policy_from(options: dict[str, Any]) -> PublishPolicy | None:
    """Take the publish options out of the parsed ones and make the policy.

    Args:
        options: as parsed; those of `PUBLISH_SECTION` are removed.

    Returns:
        The policy, or None where nothing is to be published.

    Raises:
        InputError: an option is malformed, or given without --store or --in-place.
    """
    taken = {name: options.pop(name) for name in _NAMES}
    store, in_place = taken["store"], taken["in_place"]
    if store is not None and in_place:
        raise InputError("--store and --in-place exclude each other: a cache in place has no staging")
    if store is None and not in_place:
        for name, option in (
            ("keys", "--key"),
            ("force", "--force"),
            ("check", "--check"),
            ("cache_dir_env", "--cache-dir-env"),
        ):
            if taken[name]:
                raise InputError(f"{option} needs --store DIR (or --in-place): nothing is published without one")
        return None
    if store == "":
        raise InputError("--store is empty: name the store's directory, such as /mnt/caches")
    return build_model(
        PublishPolicy,
        store=os.path.abspath(os.path.expanduser(store)) if store else None,
        mode="in_place" if in_place else "staged",
        cache_dir_env=taken["cache_dir_env"],
        cache_key=_pairs("--key", taken["keys"]),
        tool_versions=_pairs("--tool", taken["tools"]),
        force=taken["force"],
        verify=taken["verify"],
        check_command=_words(taken["check"]),
        expected_files=list(taken["expect_files"]) or None,
        accept=list(taken["accept"]),
        min_bytes=1 if taken["min_bytes"] is None else taken["min_bytes"],
        on_size_change=taken["size_change"],
        keep=taken["keep"],
        activate=not taken["no_activate"],
    )


_NAMES = (
    "store", "in_place", "keys", "tools", "cache_dir_env", "force", "verify", "check", "expect_files", "accept", "min_bytes",
    "size_change", "keep", "no_activate",
)  # fmt: skip


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"{option} {for_terminal(pair, 40)!r} is not K=V: write it like {option} dtype=bf16")
        if name in pairs and pairs[name] != value:
            raise InputError(f"{option} {for_terminal(name, 40)} is given twice with different values: give it once")
        pairs[name] = value
    return pairs


def _words(command: str | None) -> list[str] | None:
    if command is None:
        return None
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--check cannot be read as a command ({error}): quote it like a shell would") from None
    if not words:
        raise InputError("--check is empty: give a command such as --check 'python3 check.py {cache_dir}'")
    return words
