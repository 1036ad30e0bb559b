"""Names of files with a meaning: still being written, which is suspect and never published; vouching for others. Pure."""

from __future__ import annotations

import fnmatch
import re

# In lower case; a directory of such a name has only unfinished files. The last are of rsync --partial-dir and --delay-updates,
# of ModelScope, of Python's tempfile and of Rust's.
_UNFINISHED = (
    "*.tmp", "*.tmp.*", "*.tmp-*", "*.temp", "*.partial", "*.incomplete", "*.part", "*.filepart", "*.unfinished",
    "*.inprogress", "*.download", "*.downloading", "*.crdownload", "*.opdownload", "*.aria2", "*.!qb", "*_.gstmp", "*~",
    ".rsync-partial", ".~tmp~", "._____temp", "tmp" + 8 * "[a-z0-9_]", ".tmp" + 6 * "[a-z0-9]",
)  # fmt: skip
_IS_UNFINISHED = re.compile("|".join(map(fnmatch.translate, _UNFINISHED)))
# Of rsync, `.model.bin.Ab3dEf`, and of the AWS CLI, `model.bin.6D1c9aE2`: random endings, of both cases to be told from others.
_RANDOM = re.compile(
    r"\.[^/]+\.(?=[^A-Z]*[A-Z])[A-Za-z0-9]{6}|[^/]+\.[^/]+\.(?=[^A-F]*[A-F])(?=[^a-f]*[a-f])[0-9A-Fa-f]{8}", re.DOTALL
)
# Written when the cache around them was whole: of tt-metal (a suffix says which build variant) and of tt-inference-server.
MARKERS = (".weights_complete", ".weights_complete.*", "TT_METAL_CACHE_COMPLETED")


def is_temporary(path: str) -> bool:
    """Say whether a file is an unfinished one by its name, or by that of a directory in which it is.

    Args:
        path: relative to the cache.

    Example:
        >>> [is_temporary(path) for path in ("a/b.bin.incomplete", "engine.tmp/rank0.engine", "a/b.bin")]
        [True, True, False]
    """
    return any(_IS_UNFINISHED.match(part) for part in path.lower().split("/")) or bool(
        _RANDOM.fullmatch(path.rpartition("/")[2])
    )


def is_absent(path: str) -> bool:
    """Say whether a file is a hub cache's note that its repository has no file of that name; it is empty.

    Example:
        >>> is_absent("models--a--b/.no_exist/0123/adapter_config.json"), is_absent("a/b.json")
        (True, False)
    """
    return "/.no_exist/" in f"/{path}"
