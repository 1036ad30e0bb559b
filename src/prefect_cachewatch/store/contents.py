"""Looks into the files of a cache: what their formats, their sets and their holes say, which no manifest can tell.

A hole is a part that was never written: reserved, and then the writer died or went on. It reads as zeros and has no data on
the disk: lseek(2) with SEEK_HOLE finds it. Where the file system compresses, makes holes of zeros that were written, or belongs
to another machine, holes prove nothing. It may hang with the file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.mounts import Mount, is_network_type, mount_of, read_mounts
from prefect_cachewatch.common.temporary import is_absent, is_temporary
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.checks import Finding, find_empty, judge, name_files
from prefect_cachewatch.store.formats import Content, inspect
from prefect_cachewatch.store.layout import refusing
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.sets import find_missing
from prefect_cachewatch.store.tree import BuildTree, Said, ScannedFile, matches_any, open_file, scan_build

_CONTENT_S = 5.0
_UNPROVABLE = (
    "apfs", "bcachefs", "btrfs", "cramfs", "erofs", "f2fs", "jffs2", "ntfs", "reiser4", "squashfs", "ubifs", "zfs",
)  # fmt: skip
_EXTENTS_MAX = 10_000


class Rules(NamedTuple):
    """Which files are looked into, and for what; globs."""

    ignore: Sequence[str] = ()
    may_be_empty: Sequence[str] = ()
    #: May have parts that were never written.
    sparse: Sequence[str] = ()
    #: Whether formats and sets are looked at.
    contents: bool = True

    @classmethod
    def of(cls, policy: PublishPolicy) -> Self:
        """Those of a policy."""
        contents = policy.on_broken_content != "ignore"
        return cls(policy.ignore, policy.allow_empty_files, policy.allow_sparse, contents)


class Inside:
    """What is in a cache, for looks into its files.

    Args:
        build_fd: descriptor of its directory.
        tree: what is in it.
        rules: what is looked at.
    """

    def __init__(self, build_fd: int, tree: BuildTree, rules: Rules) -> None:
        self._fd, self._tree, self._rules = build_fd, tree, rules
        self._names = tree.names_of()
        self._present = {*self._names, *tree.leads, *tree.escapes}
        self._holes = proves_by_holes(os.path.realpath(f"/proc/self/fd/{build_fd}"), read_mounts())

    def look(self) -> Iterator[Said]:
        """Look into every file, and at the sets.

        Raises:
            StoreError: a file cannot be read or vanishes meanwhile.
        """
        for file in self._tree.files:
            yield from self.look_into(file)
        if self._rules.contents:
            yield from find_missing(self._fd, self._tree, self._rules.ignore)

    def look_into(self, file: ScannedFile) -> Iterator[Said]:
        """Look into one file; raises StoreError if it cannot be read."""
        content, holes = self._open(file)
        if content is not None and content.verdict in ("broken", "suspicious"):
            yield Said(f"{content.verdict}_content", file.path, content.message)
        if holes:
            told = f"has {format_bytes(file.size_bytes)}, and {format_bytes(holes)} of them were never written"
            yield Said("unwritten_part", file.path, told)

    def contents(self) -> list[tuple[str, Content]]:
        """Inspect every file by its format; raises StoreError if one cannot be read."""
        found = [(file.path, self._open(file)[0]) for file in self._tree.files]
        return [(path, content) for path, content in found if content is not None]

    def _open(self, file: ScannedFile) -> tuple[Content | None, int]:
        """Return what a file shows, None if it is not asked, and how many bytes of it were never written."""
        path, size, rules = file.path, file.size_bytes, self._rules
        ignored = matches_any(path, rules.ignore)
        is_asked = rules.contents and not is_absent(path) and (size or not matches_any(path, rules.may_be_empty))
        may_have_holes = not self._holes or not size or matches_any(path, rules.sparse)
        if ignored or (may_have_holes and not is_asked):
            return None, 0
        content: Content | None = None
        named = f"'{for_terminal(path)}'"
        with open(open_file(self._fd, path), "rb") as opened, refusing("read", path, named=named):
            # By the first of its names that tells its format.
            for name in (path, *self._names[path]) if is_asked else ():
                opened.seek(0)
                content = inspect(opened, name, self._present)
                if content.format is not None:
                    break
            return content, 0 if may_have_holes else count_holes(opened.fileno(), size)


def find_broken(path: str, rules: Rules) -> set[str]:
    """List the files of a build that contradict their own format, or of which a part was never written; may hang.

    Args:
        path: of the build.
        rules: what is looked at.

    Returns:
        Paths relative to it.

    Raises:
        StoreError: a file cannot be read or vanishes meanwhile.
        OSError: the directory cannot be opened.
    """
    with Opened(os.open(path, OPEN_DIRECTORY)) as fd:
        tree = scan_build(fd)
        inside = Inside(fd, tree, rules)
        looks = [said for file in tree.files for said in inside.look_into(file)]
    return {said.path for said in looks if said.category in ("broken_content", "unwritten_part")}


def look_over(paths: Sequence[str], since_ns: int, ignore: Sequence[str] = ()) -> list[Finding]:
    """Find what of a cache is not whole that was generated where it is used; nothing is refused.

    Sets, and links that lead to nothing, are looked for in all of it; of single files only those that changed of late.

    Args:
        paths: of the cache directories, absolute.
        since_ns: the start of the generation, as the file system's clock has it.
        ignore: globs of files that are not part of the cache.

    Returns:
        Warnings; of a directory that cannot be read, or changes meanwhile, none.
    """
    found: list[Finding] = []
    for path in paths:
        with contextlib.suppress(OSError, StoreError), Opened(os.open(path, OPEN_DIRECTORY)) as fd:
            found += _look_over(fd, path, since_ns, ignore)
    return found


def _look_over(fd: int, path: str, since_ns: int, ignore: Sequence[str]) -> list[Finding]:
    tree = scan_build(fd)
    new = [file for file in tree.files if file.changed_ns >= since_ns and not matches_any(file.path, ignore)]
    nowhere = [
        link for link in tree.escapes if not os.path.exists(os.path.join(path, link)) and not matches_any(link, ignore)
    ]
    unfinished = [file.path for file in new if is_temporary(file.path)]
    judged = [file for file in new if file.path not in unfinished]
    paths = {file.path for file in judged}
    empty = [name for name in find_empty(tree, ignore) if tree.leads.get(name, name) in paths]
    looks = [said for said in find_missing(fd, tree, ignore, outward=True) if said.category != "unused_index"]
    inside, until_s = Inside(fd, tree, Rules(ignore)), time.monotonic() + _CONTENT_S
    for file in judged:
        if time.monotonic() > until_s:
            break
        with contextlib.suppress(OSError, StoreError):
            looks += [said for said in inside.look_into(file) if said.category != "suspicious_content"]
    return [
        *name_files("dangling_link", "a symbolic link leads to nothing", nowhere),
        *name_files("temporary_file", "a temporary file was left behind", unfinished),
        *name_files("empty_file", "an empty file was left behind", empty),
        *judge(looks, "warn", "warn"),
    ]


def count_holes(fd: int, size_bytes: int) -> int:
    """Return how many bytes of a file are holes; 0 where the file system does not tell.

    Args:
        fd: descriptor of the file; its position changes.
        size_bytes: of the file.
    """
    at = written = 0
    try:
        for _ in range(_EXTENTS_MAX):
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, begin, os.SEEK_HOLE)
            written += at - begin
    except OSError as error:
        return max(0, size_bytes - written) if error.errno == errno.ENXIO else 0  # ENXIO: no data behind it
    return at - written


def proves_by_holes(path: str, mounts: Iterable[Mount]) -> bool:
    """Say whether a hole in a file below a path means that nothing was written there.

    Args:
        path: absolute, without symbolic links.
        mounts: the mount table.

    Example:
        >>> proves_by_holes("/a/b", [Mount("1", "/", "ext4", "", ()), Mount("2", "/a", "zfs", "", ())])
        False
    """
    table = list(mounts)
    mount = mount_of(path, table)
    for _ in range(3):  # an overlay keeps what is written in another place, which may be one too
        options = mount.options if mount is not None else ()
        upper = next((option.removeprefix("upperdir=") for option in options if option.startswith("upperdir=")), "")
        if mount is None or mount.type != "overlay" or not os.path.isdir(upper):
            break
        mount = mount_of(upper, table)
    return mount is not None and not mount.type.startswith(_UNPROVABLE) and not is_network_type(mount.type)
