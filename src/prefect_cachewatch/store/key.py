"""The key of a cache: the command, and the values, variables and files that the user names. What is not named does not count."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.directories import CACHE_DIR_PLACEHOLDER
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

PLACEHOLDER = CACHE_DIR_PLACEHOLDER
_FILE_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class BuildRecipe:
    """The inputs of a build; `argv` still contains `{cache_dir}`, since that path differs each time."""

    argv: tuple[str, ...]
    cache_key: Mapping[str, str]

    @property
    def key(self) -> str:
        """The digest of all inputs: two builds with the same key are the same cache.

        Example:
            >>> BuildRecipe(("gen", "{cache_dir}"), {"dtype": "bf16"}).key[:12]
            'cb3e2a8ce027'
        """
        body = {"argv": list(self.argv), "values": dict(self.cache_key), "version": 1}
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def expand_placeholder(words: Iterable[str], cache_dir: str) -> list[str]:
    """Replace `{cache_dir}` by the cache directory; other braces stay.

    Example:
        >>> expand_placeholder(["gen", "--out={cache_dir}", "{other}"], "/s/b")
        ['gen', '--out=/s/b', '{other}']
    """
    return [word.replace(PLACEHOLDER, cache_dir) for word in words]


def read_variables(names: Sequence[str], env: Mapping[str, str], hidden: Mapping[str, str]) -> dict[str, str]:
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


def read_files(paths: Sequence[str]) -> dict[str, str]:
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
