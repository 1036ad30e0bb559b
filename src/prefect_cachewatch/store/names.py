"""Names of caches and builds, and the key that decides whether two builds are the same cache.

Pure: reads no clock, no random source and no file.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from prefect_cachewatch.common.directories import CACHE_DIR_PLACEHOLDER
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError

PLACEHOLDER = CACHE_DIR_PLACEHOLDER
BUILD_ID = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")
_MAX_NAME_BYTES = 200


def check_cache_name(name: str) -> str:
    """Refuse a cache name that is not one directory name below the store's root.

    Args:
        name: the cache's name, for example `llama-3-70b-n300`.

    Returns:
        The same name.

    Raises:
        StoreError: the name is empty, too long, hidden, or would lead out of the root.

    Example:
        >>> check_cache_name("llama-3-70b-n300")
        'llama-3-70b-n300'
    """
    shown = for_terminal(name, 80)
    if not name:
        raise StoreError("the cache's name is empty: give one such as llama-3-70b-n300")
    if "/" in name or name in (".", ".."):
        raise StoreError(
            f"the cache name {shown!r} is not a single directory name and could lead out of the store: "
            f"write it without slashes, such as {for_terminal(name.strip('./').replace('/', '-') or 'cache', 80)!r}"
        )
    if name.startswith((".", "-")):
        raise StoreError(f"the cache name {shown!r} starts with {name[0]!r}: begin it with a letter or a digit")
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in name):
        raise StoreError(f"the cache name '{shown}' has a control character in it: leave it out")
    if len(name.encode("utf-8", "surrogateescape")) > _MAX_NAME_BYTES:
        raise StoreError(f"the cache name '{shown}' is longer than {_MAX_NAME_BYTES} bytes: shorten it")
    return name


def make_build_id(now_s: float, entropy: bytes) -> str:
    """Name a build by the millisecond it began and four random bytes, so that names sort by age.

    Args:
        now_s: wall time, seconds since 1970.
        entropy: at least four random bytes.

    Returns:
        For example `20260131T235959123Z-0a1b2c3d`.

    Example:
        >>> make_build_id(0, bytes([1, 2, 3, 4]))
        '19700101T000000000Z-01020304'
    """
    milliseconds = int(now_s * 1000)
    began = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{began:%Y%m%dT%H%M%S}{milliseconds % 1000:03d}Z-{entropy[:4].hex()}"


def check_build_id(build_id: str) -> str:
    """Refuse a text that is not a build id, before it becomes part of a path.

    Args:
        build_id: as `cachewatch store list` prints it.

    Returns:
        The same id.

    Raises:
        StoreError: it does not look like one.

    Example:
        >>> check_build_id("19700101T000000000Z-01020304")
        '19700101T000000000Z-01020304'
    """
    if not BUILD_ID.fullmatch(build_id):
        raise StoreError(
            f"'{for_terminal(build_id, 80)}' is not a build id: take one that cachewatch store list shows, "
            "such as 20260131T235959123Z-0a1b2c3d"
        )
    return build_id


def cache_key_digest(values: Mapping[str, str], argv: Sequence[str]) -> str:
    """Digest what a cache depends on; two builds with the same key are the same cache.

    Args:
        values: what the cache depends on, such as model revision, device mesh and dtype.
        argv: the generator's command with `{cache_dir}` still in it, since that path differs each time.

    Returns:
        64 hexadecimal digits (SHA-256 of the canonical JSON of both).

    Example:
        >>> cache_key_digest({"dtype": "bf16"}, ["gen", "{cache_dir}"])[:12]
        'cb3e2a8ce027'
    """
    body = {"argv": list(argv), "values": dict(values), "version": 1}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def expand_placeholder(words: Iterable[str], cache_dir: str) -> list[str]:
    """Replace `{cache_dir}` by the cache directory; other braces stay.

    Example:
        >>> expand_placeholder(["gen", "--out={cache_dir}", "{other}"], "/s/b")
        ['gen', '--out=/s/b', '{other}']
    """
    return [word.replace(PLACEHOLDER, cache_dir) for word in words]


def matches_any(path: str, globs: Iterable[str]) -> bool:
    """Say whether a path relative to the cache matches one of several globs.

    Args:
        path: relative, with `/`.
        globs: case-sensitive shell patterns; one with a slash is matched against the whole path, any other against the
            name.

    Returns:
        True at the first match.

    Example:
        >>> matches_any("a/b.tmp.12", ["*.tmp.*"]), matches_any("a/b", ["c/*"])
        (True, False)
    """
    name = path.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(path, glob.removeprefix("/")) if "/" in glob else fnmatch.fnmatchcase(name, glob)
        for glob in globs
    )
