"""Finds what a cache's own lists and numbers name and what is not there: a set is whole only with all its files.

Read are the index of a checkpoint in parts (`*.safetensors.index.json`, `pytorch_model.bin.index.json`), the external data
of an ONNX model, and numbers in names (`model-00001-of-00003.gguf`). `.weights_complete` is read by `formats`. Standard
library only; it may hang with the file system.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from prefect_cachewatch.common.temporary import is_absent, is_temporary
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count
from prefect_cachewatch.store.names import matches_any
from prefect_cachewatch.store.onnx import CutOff, NotRead, external_files
from prefect_cachewatch.store.tree import BuildTree

_NAMED = 3
_INDEX_MAX_BYTES = 32 << 20
_LISTED_MAX = 100_000
# `model.safetensors.index.json`, and with a variant before or after `index`, as diffusers names it.
_INDEX = re.compile(r"(?P<stem>.+)\.index(\.[\w-]+)?\.json", re.IGNORECASE | re.DOTALL)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".tensorbin", ".npz")
_NUMBERED = re.compile(r"(?P<head>.*)(?<!\d)(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?!\d)(?P<tail>.*)", re.DOTALL)
# Of these the numbers are a promise, however they are written; of others where they look like these.
_NUMBERED_FORMATS, _NUMBER_DIGITS, _COUNT_MAX = (".safetensors", ".gguf"), 5, 100_000


# Other weights than those of an index are a model of their own only from this share of its size on: less is the state of
# a trainer, or an adapter; quantised weights have an eighth.
_LEAST_SHARE = 1 / 20


@dataclass(frozen=True)
class Part:
    """What a file names and what is not there as it says; the message is a sentence without its subject, the file."""

    path: str
    message: str
    #: `incomplete_set` may refuse the cache. `unused_index` describes other files than those that are used, and `wrong_total`
    #: a sum that loaders do not compare: both only warn.
    category: Literal["incomplete_set", "unused_index", "wrong_total"] = "incomplete_set"


def find_missing(build_fd: int, tree: BuildTree, ignore: Iterable[str] = (), *, outward: bool = False) -> list[Part]:
    """Compare what the lists and numbers of a cache name with what is there.

    Args:
        build_fd: descriptor of the cache's directory.
        tree: what is in it, from `tree.scan_build`.
        ignore: globs of files that are not part of the cache.
        outward: whether what lies outside of the directory counts as there, since nothing will be moved.

    Returns:
        What is missing, in order of path.

    Raises:
        OSError: the directory cannot be read.
    """
    globs = list(ignore)
    there = _There(build_fd, tree, outward)
    names = [path for path in there.names if not (is_absent(path) or matches_any(path, globs))]
    found: list[Part] = []
    for path in names:
        index = _INDEX.fullmatch(posixpath.basename(path))
        if index is None and not path.lower().endswith(".onnx"):
            continue
        with contextlib.suppress(OSError), there.open(path) as file:  # what cannot be read is reported elsewhere
            found += _judge_index(there, path, index["stem"], file) if index else _judge_onnx(there, path, file)
    gaps = find_gaps(names, there.size_of)
    found += [Part(gap.path, gap.message) for gap in gaps if not there.listed.issuperset(gap.missing)]
    return sorted(found, key=lambda part: part.path)


class _There:
    """What is in a cache, by relative path; a link counts as what it leads to."""

    def __init__(self, build_fd: int, tree: BuildTree, outward: bool) -> None:
        self._root = os.path.realpath(f"/proc/self/fd/{build_fd}")
        self._sizes = {file.path: file.size_bytes for file in tree.files}
        self._outward = outward
        links = [path for path, _ in tree.links] + (tree.escapes if outward else [])
        self.names = sorted([*self._sizes, *(path for path in links if self.size_of(path) is not None)])
        """Files, and links to files."""
        self.weights: dict[str, int] = {}
        """Bytes of the files of weights in each directory."""
        for path in self.names:
            if path.lower().endswith(_WEIGHTS):
                above = posixpath.dirname(path)
                self.weights[above] = self.weights.get(above, 0) + (self.size_of(path) or 0)
        self.listed: set[str] = set()
        """What was looked for since a file names it."""

    def beside(self, path: str, names: Iterable[str]) -> dict[str, int | None]:
        """Look for what a file names, relative to its own directory; returns the size of each, None if it is not there."""
        above = posixpath.dirname(path)
        full = {name: posixpath.join(above, name) for name in names}
        self.listed.update(map(posixpath.normpath, full.values()))
        return {name: self.size_of(where) for name, where in full.items()}

    def size_of(self, path: str) -> int | None:
        """Return the size of a file; None if it is not there, or lies outside where that does not count."""
        if (known := self._sizes.get(posixpath.normpath(path))) is not None:
            return known
        if "\0" in path:
            return None
        real = os.path.realpath(os.path.join(self._root, path))
        if not (self._outward or real.startswith(self._root + "/")):
            return None
        try:
            status = os.stat(real)
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file, or what a link leads to; a pipe is not waited for."""
        fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "no regular file")
            yield file


def _judge_index(there: _There, path: str, stem: str, file: BinaryIO) -> list[Part]:
    is_own = stem.lower().endswith(_WEIGHTS)
    raw = file.read(_INDEX_MAX_BYTES + 1)
    if len(raw) > _INDEX_MAX_BYTES:
        return (
            [Part(path, "is too large to be read: whether its files are there is not known", "unused_index")]
            if is_own
            else []
        )
    found: Any = None
    try:
        found = json.loads(raw)
        listed: Any = found["weight_map"]
    except (ValueError, RecursionError):
        return [Part(path, "is cut off or no JSON, and should name the files of the checkpoint")] if is_own else []
    except (KeyError, TypeError):
        listed = None
    if not isinstance(listed, dict):
        return [Part(path, "has no weight_map, and should name the files of the checkpoint")] if is_own else []
    if not all(isinstance(name, str) for name in listed.values()):
        return [Part(path, "names a file by what is no text")]
    names = list(dict.fromkeys(listed.values()))
    if len(names) > _LISTED_MAX:
        return [Part(path, f"names {len(names):,} files, more than are looked for here", "unused_index")]
    sizes = there.beside(path, names)
    if message := _missing(sizes):
        # The index of another format than the one that was fetched, or of the files from which these were made.
        single = any(there.beside(path, [stem]).values())
        weights = there.weights.get(posixpath.dirname(path), 0)
        others = not any(sizes.values()) and weights > _total(found) * _LEAST_SHARE
        return [Part(path, message, "unused_index" if single or others else "incomplete_set")]
    return _judge_total(path, found, sum(size or 0 for size in sizes.values()), len(sizes))


def _judge_total(path: str, found: Mapping[str, Any], size_bytes: int, files: int) -> list[Part]:
    if (total := _total(found)) <= size_bytes:
        return []
    has = "its one file has" if files == 1 else f"its {files} files have"
    message = f"says that the tensors have {format_bytes(total)} (total_size), and {has} {format_bytes(size_bytes)}"
    return [Part(path, message, "wrong_total")]


def _total(found: Mapping[str, Any]) -> int:
    """Return the `total_size` of an index; 0 if it says none."""
    metadata = found.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 1 << 63:
        return 0
    return int(total)


def _judge_onnx(there: _There, path: str, file: BinaryIO) -> list[Part]:
    try:
        needed = external_files(file)
    except CutOff as error:
        return [Part(path, str(error))]
    except NotRead:
        return []
    if len(needed) > _LISTED_MAX:
        return [Part(path, f"names {len(needed):,} files, more than are looked for here", "unused_index")]
    sizes = there.beside(path, needed)
    if message := _missing(sizes):
        return [Part(path, message)]
    short = [name for name, size in sizes.items() if (size or 0) < needed[name]]
    return [
        Part(
            path,
            f"needs {format_bytes(needed[name])} of {for_terminal(name, 120)}, "
            f"which has {format_bytes(sizes[name] or 0)}",
        )
        for name in short[:_NAMED]
    ]


def _missing(sizes: Mapping[str, int | None]) -> str:
    """Say which of the named files are not there, or empty; empty if none is."""
    gone = [name for name, size in sizes.items() if size is None]
    empty = [name for name, size in sizes.items() if size == 0]
    said = [f"names {_count(gone)} not there: {_list(gone)}"] if gone else []
    said += [f"names {_count(empty)} empty: {_list(empty)}"] if empty else []
    return " and ".join(said)


def _count(names: Sequence[str]) -> str:
    return f"{format_count(len(names), 'file')} that {'is' if len(names) == 1 else 'are'}"


def _list(names: Sequence[str], count: int | None = None) -> str:
    """Name the first of several; `count` is how many there are, if not all are given."""
    shown = ", ".join(for_terminal(name, 120) for name in names[:_NAMED])
    left = (len(names) if count is None else count) - _NAMED
    return f"{shown} and {left:,} more" if left > 0 else shown


@dataclass(frozen=True)
class Gap:
    """A numbered set, by its first file, and the first of those that are missing."""

    path: str
    message: str
    missing: tuple[str, ...]


def find_gaps(paths: Iterable[str], size_of: Callable[[str], int | None]) -> list[Gap]:
    """Find sets of numbered files of which a number is missing.

    Args:
        paths: of all files.
        size_of: returns a file's size; an empty one counts as missing.

    Returns:
        One for each set, by its first file.

    Example:
        >>> find_gaps(["m-00001-of-00002.gguf"], lambda path: 9)[0].message
        'is one of 2, and 1 file is not there: m-00002-of-00002.gguf'
    """
    sets: dict[tuple[str, str, str], dict[int, str]] = {}
    for path in paths:
        name = posixpath.basename(path)
        found = _NUMBERED.fullmatch(name)
        if found is None or is_temporary(path) or not size_of(path):
            continue
        by_name = found["tail"].lower().endswith(_NUMBERED_FORMATS) or len(found["number"]) >= _NUMBER_DIGITS
        # What the ranks of a job write is often spread over several hosts.
        if by_name and "rank" not in found["head"].lower() and 1 <= int(found["count"]) <= _COUNT_MAX:
            key = f"{path.removesuffix(name)}{found['head']}", found["count"], found["tail"]
            sets.setdefault(key, {})[int(found["number"])] = path
    gaps: list[Gap] = []
    for (head, count, tail), members in sets.items():
        first = 0 if 0 in members else 1
        missing = [number for number in range(first, first + int(count)) if number not in members]
        if not missing:
            continue
        path = members[min(members)]
        digits = len(_NUMBERED.fullmatch(posixpath.basename(path))["number"])  # type: ignore[index]
        named = [f"{head}{number:0{digits}}-of-{count}{tail}" for number in missing[:_NAMED]]
        verb = "file is" if len(missing) == 1 else "files are"
        shown = _list([posixpath.basename(name) for name in named], len(missing))
        gaps.append(Gap(path, f"is one of {int(count)}, and {len(missing)} {verb} not there: {shown}", tuple(named)))
    return gaps
