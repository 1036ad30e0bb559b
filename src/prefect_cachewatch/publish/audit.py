"""Audits a published build: the same command generates the cache again apart, and the digests are compared.

What two generations write differently is not deterministic. It is learned, and not held against a build.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import remove_tree
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.activation import doubt_build
from prefect_cachewatch.publish.builds import open_build, read_own_manifest
from prefect_cachewatch.publish.durable import read_note, refusing, write_durably
from prefect_cachewatch.publish.layout import CacheFolder, hold_switch
from prefect_cachewatch.publish.manifest import Manifest
from prefect_cachewatch.publish.names import matches_any
from prefect_cachewatch.publish.staging import read_free_space, require_space
from prefect_cachewatch.publish.tree import scan_build
from prefect_cachewatch.publish.verification import digest_below

SCRATCH_PREFIX = ".cachewatch-audit-"
_RECORD = ".audit.json"
_LIMIT_BYTES = 1 << 22
_SPACE_FACTOR = 1.1
_NAMED = 3
_NO_FILE = ("neither a file nor a link within", None)  # which no build has

#: Path -> size and digest, or the target of a link, or `_NO_FILE`; a digest that was not sampled is None.
Contents = Mapping[str, tuple[int | str, str | None]]


@dataclass(frozen=True)
class Judgement:
    """The files in which a build differs from what is generated anew, and those in which two generations differ."""

    different: tuple[str, ...]
    unstable: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    build_id: str
    verdict: Literal["equal", "different"]
    #: Files of the build, and how many of them had their contents compared; the others by name and size alone.
    files: int
    compared: int
    #: Files that the build has otherwise than two generations that agree.
    different: tuple[str, ...]
    #: Files that each generation writes differently, those of earlier audits among them: they were not judged.
    unstable: tuple[str, ...]
    #: How many wrong files -> the chance that none of them was compared.
    missed: Mapping[int, float]
    #: Why it could not be recorded; empty if it was.
    problems: tuple[str, ...] = ()
    #: What of the generations could not be removed.
    left: tuple[str, ...] = ()

    def summary(self) -> str:
        """Summarize it in one or two sentences."""
        but = (
            f", but for {_list_some(self.unstable)}, which each generation writes differently" if self.unstable else ""
        )
        if self.verdict == "different":
            said = f"different: two generations agree, and the build {self.build_id} does not: {_list_some(self.different)}"
            said += "" if self.problems else "; it is noted as doubtful"
        else:
            said = f"equal: the build {self.build_id} is as it is generated anew{but}"
        if self.compared == self.files:
            return said
        wrong = " or ".join(map(str, self.missed))
        chances = " or ".join(f"{100 * chance:.2g} %" for chance in self.missed.values())
        return (
            f"{said}. The contents of {self.compared} of {self.files} files were compared: had {wrong} been wrong, none of "
            f"these would have been among them with a chance of {chances}"
        )


def chance_to_miss(files: int, compared: int, bad: int) -> float:
    """Return the probability that a sample without replacement has none of the bad files (hypergeometric).

    Example:
        >>> round(chance_to_miss(500, 20, 5), 3), chance_to_miss(10, 6, 5)
        (0.815, 0.0)
    """
    return math.comb(files - bad, compared) / math.comb(files, compared)


def judge(build: Contents, first: Contents, second: Contents | None, known: Collection[str] = ()) -> Judgement:
    """Judge a build by one or two new generations of the same cache.

    Args:
        build: the published contents.
        first: the contents of a new generation.
        second: of another one; None as long as there is none: then no difference can be called unstable.
        known: paths that are known as unstable.

    Returns:
        What differs.

    Example:
        >>> old, new = {"a": (1, "x"), "b": (1, "y")}, {"a": (1, "z"), "b": (1, "v")}
        >>> judge(old, new, {"a": (1, "z"), "b": (1, "w")})
        Judgement(different=('a',), unstable=('b',))
    """
    differ = {path for path in {*build, *first} - {*known} if build.get(path) != first.get(path)}
    unstable = {path for path in differ if second is not None and first.get(path) != second.get(path)}
    return Judgement(tuple(sorted(differ - unstable)), tuple(sorted(unstable)))


def audit_build(
    folder: CacheFolder,
    build_id: str,
    generate: Callable[[str], None],
    *,
    scratch: str,
    sample: int | None = None,
    choose: Callable[[Sequence[str], int], Iterable[str]] = random.sample,
) -> Audit:
    """Generate a cache again, apart, and compare it with a published build; a build that differs becomes doubtful.

    A second generation is made only where the first one differs. Each goes into a directory of its own name, so that
    files that hold their own path count as unstable.

    Args:
        folder: the open cache.
        build_id: which build.
        generate: writes the cache into the empty directory that it is given; raises if that fails.
        scratch: an existing directory with room for one generation; what is made there is removed.
        sample: of how many files to compare the contents; default all. Names and sizes are compared of all.
        choose: draws the sample.

    Returns:
        The result.

    Raises:
        BuildDamaged: the build was never published, or its manifest was cut or edited.
        NotEnoughSpace: `scratch` has no room.
        StoreError: there is no such build, or what was generated cannot be read.
    """
    with open_build(folder, build_id) as fd:
        manifest = read_own_manifest(folder, build_id, fd)
    paths = [entry.path for entry in manifest.files]
    chosen = set(paths if sample is None or sample >= len(paths) else choose(paths, sample))
    known = _read_unstable(folder, manifest.key)
    build = _published(manifest, chosen)
    left: list[str] = []
    with _scratch(scratch, manifest, left) as directory:
        first = _generate(generate, f"{directory}/first", manifest, chosen)
        found = judge(build, first, None, known)
        if found.different:
            second = _generate(generate, f"{directory}/another", manifest, chosen)
            found = judge(build, first, second, known)
    unstable = tuple(sorted({*known, *found.unstable}))
    problems = []
    try:
        if found.different:
            doubt_build(folder, build_id, f"generated anew it is different: {_list_some(found.different)}")
        if found.unstable:
            with refusing("write the record of audits of", folder.path):
                _write_unstable(folder, manifest.key, unstable)
    except StoreError as error:  # the generation took hours: its result is told all the same
        problems.append(error.message)
    wrong = sorted({1, math.ceil(len(paths) / 100), math.ceil(len(paths) / 10)}) if paths else []
    return Audit(
        build_id,
        "different" if found.different else "equal",
        len(paths),
        len(chosen),
        found.different,
        unstable,
        {bad: chance_to_miss(len(paths), len(chosen), bad) for bad in wrong},
        tuple(problems),
        tuple(left),
    )


@contextlib.contextmanager
def _scratch(parent: str, manifest: Manifest, left: list[str]) -> Iterator[str]:
    with refusing("make a directory in", parent):
        with Opened(os.open(parent, OPEN_DIRECTORY)) as fd:
            require_space(
                read_free_space(fd),
                parent,
                needed_bytes=math.ceil(manifest.total_bytes * _SPACE_FACTOR),
                needed_inodes=math.ceil(manifest.total_files * _SPACE_FACTOR) + 8,
                why="1.1 times the build",
            )
        made = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent)
    try:
        yield made
    finally:
        try:
            _remove(made)
        except StoreError as error:
            left.append(error.message)


def _generate(generate: Callable[[str], None], path: str, manifest: Manifest, chosen: Collection[str]) -> Contents:
    os.mkdir(path)
    generate(path)
    with refusing("read", path), Opened(os.open(path, OPEN_DIRECTORY)) as fd:
        found = _read(fd, path, manifest, chosen)
    _remove(path)  # its digests are known: one generation needs no room beside another
    return found


def _remove(path: str) -> None:
    """Remove what was generated; what a generator has mounted there is no part of it."""
    parent, name = os.path.split(path)
    with refusing("remove", path), Opened(os.open(parent, OPEN_DIRECTORY)) as fd:
        done = remove_tree(fd, name)
    if done.failed:
        raise StoreError(f"cannot remove {for_terminal(f'{parent}/{done.problems[0]}', 1000)}: see to it by hand")


def _read(fd: int, where: str, manifest: Manifest, chosen: Collection[str]) -> Contents:
    tree = scan_build(fd)
    unread = [(below, why) for below, why in tree.unreadable if not matches_any(below, manifest.ignore)]
    if unread:
        raise StoreError(
            f"'{for_terminal(unread[0][0])}' of what was generated in {for_terminal(where, 1000)} cannot be read "
            f"({unread[0][1]}): the build could not be audited"
        )
    found: dict[str, tuple[int | str, str | None]] = {path: (target, None) for path, target in tree.links}
    for none in (*tree.others, *tree.escapes):
        found[none] = _NO_FILE
    for file in tree.files:
        if not matches_any(file.path, manifest.ignore):
            found[file.path] = (file.size_bytes, digest_below(fd, file.path) if file.path in chosen else None)
    return found


def _published(manifest: Manifest, chosen: Collection[str]) -> Contents:
    found: dict[str, tuple[int | str, str | None]] = {link.path: (link.target, None) for link in manifest.links}
    for entry in manifest.files:
        found[entry.path] = (entry.size_bytes, entry.digest if entry.path in chosen else None)
    return found


def _read_unstable(folder: CacheFolder, key: str) -> frozenset[str]:
    def decode(body: Any) -> frozenset[str]:
        return frozenset(str(path) for path in body["unstable"]) if body["key"] == key else frozenset()

    return read_note(folder.fd, _RECORD, _LIMIT_BYTES, decode) or frozenset()


def _write_unstable(folder: CacheFolder, key: str, unstable: Sequence[str]) -> None:
    body = {"schema_version": 1, "key": key, "unstable": list(unstable)}
    with hold_switch(folder, "note what is not deterministic"):
        write_durably(folder.fd, _RECORD, json.dumps(body, indent=1).encode("ascii") + b"\n")


def _list_some(paths: Sequence[str]) -> str:
    named = ", ".join(for_terminal(path, 120) for path in paths[:_NAMED])
    return named + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
