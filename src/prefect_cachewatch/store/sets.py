"""Finds what a cache's own lists and numbers name and what is not there: a set is whole only with all its files.

Read are the index of a checkpoint in parts (`*.safetensors.index.json`), the external data of an ONNX model, and numbers in
names (`model-00001-of-00003.gguf`). Standard library only; it may hang with the file system.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

from prefect_cachewatch.common.temporary import is_absent, is_temporary
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count
from prefect_cachewatch.store.checks import list_paths
from prefect_cachewatch.store.tree import BuildTree, Said, matches_any

_READ_MAX = 32 << 20
# `model.safetensors.index.json`, and with a variant before or after `index`, as diffusers names it.
_INDEX = re.compile(r"(?P<stem>.+)\.index(\.[\w-]+)?\.json", re.IGNORECASE | re.DOTALL)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".tensorbin", ".npz")
_NUMBERED = re.compile(r"(?P<head>.*)(?<!\d)(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?!\d)(?P<tail>.*)", re.DOTALL)
# Of these the numbers are a promise, however they are written; of others where they look like these.
_NUMBERED_FORMATS, _NUMBER_DIGITS, _COUNT_MAX = (".safetensors", ".gguf"), 5, 100_000
# Other weights than those of an index are a model of their own only from this share of its size on: less is the state of
# a trainer, or an adapter; quantised weights have an eighth.
_LEAST_SHARE = 1 / 20
# The entries of `external_data` in onnx.proto3, one behind the other as ONNX writes them: location, offset, length. Each is a
# tag, a length and the contents; names of more than 127 bytes are not found.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])")
_EXTENT = re.compile(rb"(?:j.\x0a\x06offset\x12.(\d{0,19}))?(?:j.\x0a\x06length\x12.(\d{0,19}))?", re.DOTALL)


def find_missing(build_fd: int, tree: BuildTree, ignore: Iterable[str] = (), *, outward: bool = False) -> list[Said]:
    """Compare what the lists and numbers of a cache name with what is there.

    Args:
        build_fd: descriptor of the cache's directory.
        tree: what is in it.
        ignore: globs of files that are not part of the cache.
        outward: whether what lies outside of the directory counts as there, since nothing will be moved.

    Returns:
        What is missing, in order of path: `incomplete_set`; `unused_index` of other files than those that are used, and
        `wrong_total` of a sum that loaders do not compare.

    Raises:
        OSError: the directory cannot be read.
    """
    there, globs = _There(build_fd, tree, outward), list(ignore)
    names = [path for path in there.names if not (is_absent(path) or matches_any(path, globs))]
    found: list[Said] = []
    for path in names:
        index = _INDEX.fullmatch(posixpath.basename(path))
        if index is None and not path.lower().endswith(".onnx"):
            continue
        with contextlib.suppress(OSError), there.open(path) as file:  # what cannot be read is reported elsewhere
            judged = _judge_index(there, path, index["stem"], file) if index else _judge_onnx(there, path, file)
            found += [Said(category, path, message) for category, message in judged]
    return sorted([*found, *_find_gaps(names, there)], key=lambda said: said.path)


class _There:
    """What is in a cache, by relative path; a link counts as what it leads to."""

    def __init__(self, build_fd: int, tree: BuildTree, outward: bool) -> None:
        self._root, self._outward = os.path.realpath(f"/proc/self/fd/{build_fd}"), outward
        self._sizes = {file.path: file.size_bytes for file in tree.files}
        links = [path for path, _ in tree.links] + (tree.escapes if outward else [])
        self.names = sorted([*self._sizes, *(path for path in links if self.size_of(path) is not None)])
        """Files, and links to files."""
        self.listed: set[str] = set()
        """What was looked for since a file names it."""

    def beside(self, path: str, names: Iterable[str]) -> dict[str, int | None]:
        """Look for what a file names, relative to its own directory; returns the size of each, None if it is not there."""
        full = {name: posixpath.join(posixpath.dirname(path), name) for name in names}
        self.listed.update(map(posixpath.normpath, full.values()))
        return {name: self.size_of(where) for name, where in full.items()}

    def weights_beside(self, path: str) -> int:
        """Return the bytes of all weights in the directory of a file."""
        above = posixpath.dirname(path)
        beside = [name for name in self.names if posixpath.dirname(name) == above and name.lower().endswith(_WEIGHTS)]
        return sum(self.size_of(name) or 0 for name in beside)

    def size_of(self, path: str) -> int | None:
        """Return the size of a file; None if it is not there, or lies outside where that does not count."""
        if (known := self._sizes.get(posixpath.normpath(path))) is not None:
            return known
        with contextlib.suppress(OSError, ValueError):  # a name that no path can have
            real = os.path.realpath(os.path.join(self._root, path))
            status = os.stat(real)
            if stat.S_ISREG(status.st_mode) and (self._outward or real.startswith(self._root + "/")):
                return status.st_size
        return None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file, or what a link leads to; a pipe is not waited for."""
        fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "no regular file")
            yield file


def _judge_index(there: _There, path: str, stem: str, file: BinaryIO) -> Iterator[tuple[str, str]]:
    is_own = stem.lower().endswith(_WEIGHTS)  # of another stem it may be any index
    raw = file.read(_READ_MAX + 1)
    if len(raw) > _READ_MAX:
        yield "unused_index", "is too large to be read: whether its files are there is not known"
        return
    try:
        found = json.loads(raw)
        names = list(dict.fromkeys(map(str, found["weight_map"].values())))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        if is_own:
            yield "incomplete_set", "is cut off or no list of files, and should name those of the checkpoint"
        return
    metadata = found.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = int(total) if isinstance(total, int | float) and 0 < total < 1 << 63 else 0
    sizes = there.beside(path, names)
    size_bytes = sum(size or 0 for size in sizes.values())
    if message := _missing(sizes):
        # The index of another format than the one that was fetched, or of the files from which these were made.
        single = any(there.beside(path, [stem]).values())
        others = not size_bytes and there.weights_beside(path) > total * _LEAST_SHARE
        yield "unused_index" if single or others else "incomplete_set", message
    elif total > size_bytes:
        has = "its one file has" if len(sizes) == 1 else f"its {len(sizes)} files have"
        told = f"says that the tensors have {format_bytes(total)} (total_size), and {has} {format_bytes(size_bytes)}"
        yield "wrong_total", told


def _judge_onnx(there: _There, path: str, file: BinaryIO) -> Iterator[tuple[str, str]]:
    needed: dict[str, int] = {}
    data = file.read(_READ_MAX)  # a model that keeps its tensors elsewhere is small
    for found in _LOCATION.finditer(data):
        behind = found.end() + found[1][0]
        name = data[found.end() : behind].decode("utf-8", "replace")
        extent = _EXTENT.match(data, behind)
        length = sum(int(number or 0) for number in extent.groups()) if extent else 0
        needed[name] = max(needed.get(name, 0), length)
    sizes = there.beside(path, needed)
    short = [name for name, size in sizes.items() if (size or 0) < needed[name]]
    if message := _missing(sizes):
        yield "incomplete_set", message
    elif short:
        has = f"which has {format_bytes(sizes[short[0]] or 0)}"
        yield "incomplete_set", f"needs {format_bytes(needed[short[0]])} of {for_terminal(short[0], 120)}, {has}"


def _missing(sizes: Mapping[str, int | None]) -> str:
    """Say which of the named files are not there, or empty; empty if none is."""
    said = []
    for what, size in (("not there", None), ("empty", 0)):
        if names := [name for name, found in sizes.items() if found == size]:
            verb = "is" if len(names) == 1 else "are"
            said.append(f"names {format_count(len(names), 'file')} that {verb} {what}: {list_paths(names)}")
    return " and ".join(said)


def _find_gaps(paths: Iterable[str], there: _There) -> Iterator[Said]:
    """Find sets of numbered files of which a number is missing; each is told of by its first file."""
    sets: dict[tuple[str, str, str], dict[int, str]] = {}
    for path in paths:
        found = _NUMBERED.fullmatch(path)
        if found is None or "/" in found["tail"] or is_temporary(path) or not there.size_of(path):
            continue
        by_name = found["tail"].lower().endswith(_NUMBERED_FORMATS) or len(found["number"]) >= _NUMBER_DIGITS
        # What the ranks of a job write is often spread over several hosts.
        of_ranks = "rank" in posixpath.basename(found["head"]).lower()
        if by_name and not of_ranks and 1 <= int(found["count"]) <= _COUNT_MAX:
            sets.setdefault((found["head"], found["count"], found["tail"]), {})[int(found["number"])] = path
    for (head, count, tail), members in sets.items():
        first, path = 0 if 0 in members else 1, members[min(members)]
        digits = len(path) - len(f"{head}-of-{count}{tail}")
        numbers = [number for number in range(first, first + int(count)) if number not in members]
        named = [f"{head}{number:0{digits}}-of-{count}{tail}" for number in numbers]
        if not there.listed.issuperset(named):  # an index has told of those already
            verb = "file is" if len(named) == 1 else "files are"
            shown = list_paths([posixpath.basename(name) for name in named])
            yield Said("incomplete_set", path, f"is one of {int(count)}, and {len(named)} {verb} not there: {shown}")
