"""Options for publishing with `generate`, and the policy made from them."""

from __future__ import annotations

import os
from typing import Any

from prefect_cachewatch.cli.options.fields import Fields, build_model, split_command
from prefect_cachewatch.cli.options.sections import Section
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.store.policy import PublishPolicy

_FIELDS = Fields(
    PublishPolicy,
    "store DIR, cache_key --key K=V, key_files --key-file FILE, "
    "force, check_command --check COMMAND, expected_files --expect-file GLOB, "
    "on_broken_content --broken-content, on_failed_writes --failed-writes, "
    "allow_sparse --allow-sparse GLOB, allow_empty_files --allow-empty-file GLOB, keep, activate --no-activate =false",
    store={"type": str},
    key_files={"type": str},
    check_command={"multiple": False},
    expected_files={"multiple": True, "type": str, "help": "Must be there; repeatable."},
    activate={"help": "Publish, and leave the current build as it is."},
)  # fmt: skip
PUBLISH_SECTION = Section("Publishing", "--store --key --check", _FIELDS.options())


def policy_from(options: dict[str, Any]) -> PublishPolicy | None:
    """Make the policy from the parsed options.

    Args:
        options: those of `PUBLISH_SECTION`, among others.

    Returns:
        The policy, or None if nothing is to be published.

    Raises:
        InputError: an option is malformed, or given without --store.
    """
    given = _FIELDS.given(options)
    if "store" not in given:
        if given:
            raise InputError(
                f"{_FIELDS[next(iter(given))].opts[0]} needs --store DIR: nothing is published without one"
            )
        return None
    if given["store"] == "":
        raise InputError("--store is empty: name the store's directory, such as /mnt/caches")
    given["store"] = os.path.abspath(os.path.expanduser(given["store"]))
    if "key_files" in given:
        given["key_files"] = [os.path.abspath(os.path.expanduser(path)) for path in given["key_files"]]
    if "check_command" in given:
        given["check_command"] = split_command("--check", given["check_command"], "python3 check.py {cache_dir}")
    return build_model(PublishPolicy, **given)
