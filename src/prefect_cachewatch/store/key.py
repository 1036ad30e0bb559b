"""What a cache depends on beside its command: values, variables and files that the user names.

Nothing is guessed. What is not named does not count.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping

from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_FILE_MAX_BYTES = 64 << 20


def read_variables(names: list[str], env: Mapping[str, str], hidden: Mapping[str, str]) -> dict[str, str]:
    """Read the variables that count in the key; one that is not set is left out, which is another key than an empty one.

    Args:
        names: of the variables.
        env: the generator's environment.
        hidden: variables whose values are secrets.

    Raises:
        InputError: a value is a secret; the key is written into the manifest.

    Example:
        >>> read_variables(["MESH_DEVICE", "X"], {"MESH_DEVICE": "N300"}, {})
        {'MESH_DEVICE': 'N300'}
    """
    found = {name: env[name] for name in names if name in env}
    for name, value in found.items():
        word = f"{name}={value}"
        if name in hidden or redact_argv([word]) != [word]:
            raise InputError(
                f"the variable {name} is a secret, and the key of a cache is written into its manifest: name another one"
            )
    return found


def read_files(paths: list[str]) -> dict[str, str]:
    """Digest the files that count in the key; reads may hang with the file system.

    Raises:
        InputError: one cannot be read, is no regular file, or is larger than 64 MiB.
    """
    return {path: f"sha256:{_digest(path)}" for path in paths}


def _digest(path: str) -> str:
    shown = for_terminal(path, 1000)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_MAX_BYTES:
                raise InputError(
                    f"key file {shown} is no regular file of at most 64 MiB: name one that changes with the cache"
                )
            return hashlib.sha256(file.read(_FILE_MAX_BYTES)).hexdigest()
    except OSError as error:
        raise InputError(f"key file {shown} cannot be read: {os.strerror(error.errno or 0)}") from None
