"""Decides whether a build may be published, and which files a failed attempt may have cut. Pure rules over a listing.

The `category` of a finding is a contract: reports and automations match on it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from prefect_cachewatch.common.temporary import MARKERS, is_absent, is_temporary
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.store.formats import Finding as Content
from prefect_cachewatch.store.names import matches_any
from prefect_cachewatch.store.sets import Part
from prefect_cachewatch.store.tree import BuildTree, ScannedFile

if TYPE_CHECKING:
    from prefect_cachewatch.store.policy import PublishPolicy

_NAMED = 3
# A build's size as a multiple of the last published one's, without a word.
_USUAL = (0.5, 2.0)
_DIGITS = re.compile(r"\d+")
# Markers, modules of Python, and what a process said.
_EMPTY_ON_PURPOSE = (
    ".*", "__init__.py", "py.typed", "*.md", "*.done", "*.ok", "*.ready", "*.success", "*.complete", "*.completed",
    "*.stamp", "*.out", "*.err",
)  # fmt: skip
_ALL_THE_SAME = "; on_broken_content: warn publishes it all the same"


@dataclass(frozen=True)
class Finding:
    """One result of a check: what, which files, and whether it forbids publication."""

    category: str
    message: str
    severity: Literal["refuse", "warn"] = "refuse"
    paths: tuple[str, ...] = ()


def check_tree(tree: BuildTree, policy: PublishPolicy, last_bytes: int | None = None) -> list[Finding]:
    """Check a finished staging build against the policy.

    Args:
        tree: the contents of the build.
        policy: the rules.
        last_bytes: size of the last published build, if any.

    Returns:
        The findings, refusals first; empty if there are none. Categories: `special_file`, `link_escapes`, `unreadable`,
        `temporary_file`, `empty_file`, `empty_cache`, `missing_file`, `wrong_file_count`,
        `size_out_of_band`, `shared_file`.

    Example:
        >>> from prefect_cachewatch.store.policy import PublishPolicy
        >>> policy = PublishPolicy(store="/s")
        >>> tree = BuildTree([ScannedFile("a.tensorbin.tmp.1", 5, 0, 1, 1)])
        >>> [finding.category for finding in check_tree(tree, policy)]
        ['temporary_file']
    """
    counted = [file for file in tree.files if not matches_any(file.path, policy.ignore)]
    temporary = [file.path for file in counted if is_temporary(file.path)]
    empty = [name for name in find_empty(tree, [*policy.ignore, *policy.allow_empty_files]) if name not in temporary]
    total = sum(file.size_bytes for file in counted)
    found: list[Finding] = []
    if tree.others:
        found.append(_finding("special_file", "not a regular file or on another file system", tree.others))
    if tree.escapes:
        found.append(_finding("link_escapes", "a symbolic link that leads out of the build or nowhere", tree.escapes))
    unreadable = [(path, why) for path, why in tree.unreadable if not matches_any(path, policy.ignore)]
    if unreadable:
        found.append(_finding("unreadable", f"cannot be read ({unreadable[0][1]})", [path for path, _ in unreadable]))
    if temporary:
        found.append(_finding("temporary_file", "a temporary file was left behind", temporary))
    if empty:
        told = _finding("empty_file", "an empty file was left behind", empty)
        found.append(replace(told, message=f"{told.message}; allow_empty_files names files that may be empty"))
    if not total:
        wrote = "no byte" if counted else "no file"
        found.append(
            Finding("empty_cache", f"the generator wrote {wrote} into the build: does it use the path it was given?")
        )
    found += _check_expected(counted, policy)
    found += _check_band(total, last_bytes)
    found += _check_shared(counted)
    return sorted(found, key=lambda finding: finding.severity != "refuse")


def find_empty(tree: BuildTree, allow: Sequence[str] = ()) -> list[str]:
    """Find the empty files whose emptiness says nothing but that they are cut.

    Markers, hidden files and modules are empty on purpose. A file without an ending may be one, except where others of the
    same name with another number have contents. A file that links lead to goes by their names.

    Args:
        tree: what is in the cache.
        allow: globs of files that may be empty, or are not part of the cache.

    Example:
        >>> files = [ScannedFile(name, size, 0, 1, 1) for name, size in (("a.bin", 0), ("READY", 0), ("l1", 0), ("l2", 9))]
        >>> find_empty(BuildTree(files))
        ['a.bin', 'l1']
    """
    written = {_DIGITS.sub("#", file.path) for file in tree.files if file.size_bytes}
    names = tree.names_of()
    found: list[str] = []
    for file in tree.files:
        if file.size_bytes or is_absent(file.path) or matches_any(file.path, allow):
            continue
        for name in names[file.path]:
            may_be_marker = not PurePosixPath(name).suffix and _DIGITS.sub("#", name) not in written
            if not (may_be_marker or matches_any(name, _EMPTY_ON_PURPOSE) or matches_any(name, allow)):
                found.append(name)
    return sorted(found)


def check_content(
    contents: Sequence[tuple[str, Content]], broken: Literal["refuse", "warn"] = "refuse"
) -> list[Finding]:
    """Judge what the files' contents show.

    Args:
        contents: path and finding of each file, as `contents.inspect_build` returns them.
        broken: severity of files that contradict their own format.

    Returns:
        At most two findings: `broken_content`, and `suspicious_content`, which never forbids publication.

    Example:
        >>> check_content([("a.npy", Content("broken", "is cut off"))])[0].message
        'a.npy is cut off; on_broken_content: warn publishes it all the same'
    """
    found: list[Finding] = []
    levels: dict[str, Literal["refuse", "warn"]] = {"broken": broken, "suspicious": "warn"}
    for verdict, severity in levels.items():
        told = [(path, content.message) for path, content in contents if content.verdict == verdict]
        if told:
            found.append(_tell(f"{verdict}_content", told, severity, _ALL_THE_SAME))
    return found


def check_parts(parts: Sequence[Part], broken: Literal["refuse", "warn"] = "refuse") -> list[Finding]:
    """Judge what indexes and numbers in names say is missing.

    Args:
        parts: from `sets.find_missing`.
        broken: severity of files that contradict what is there; what loaders may do without never forbids publication.

    Returns:
        At most one finding a category; only `incomplete_set` can forbid publication.

    Example:
        >>> check_parts([Part("a.index.json", "names 1 file that is not there: b")], "warn")[0].message
        'a.index.json names 1 file that is not there: b'
    """
    found: list[Finding] = []
    for category in ("incomplete_set", "unused_index", "wrong_total"):
        if told := [(part.path, part.message) for part in parts if part.category == category]:
            found.append(_tell(category, told, broken if category == "incomplete_set" else "warn", _ALL_THE_SAME))
    return found


def check_unwritten(told: Sequence[tuple[str, str]], severity: Literal["refuse", "warn"] = "refuse") -> list[Finding]:
    """Judge files of which a part was never written; `told` is from `holes.describe_unwritten`."""
    if not told:
        return []
    return [_tell("unwritten_part", told, severity, "; allow_sparse names files that may have such parts")]


def _tell(category: str, told: Sequence[tuple[str, str]], severity: Literal["refuse", "warn"], how: str) -> Finding:
    said = "; ".join(f"{for_terminal(path, 120)} {message}" for path, message in told[:_NAMED])
    more = f"; and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    more += how if severity == "refuse" else ""
    return Finding(category, said + more, severity, tuple(path for path, _ in told))


def refusals(findings: Sequence[Finding]) -> list[Finding]:
    """Keep the findings that forbid publication."""
    return [finding for finding in findings if finding.severity == "refuse"]


def summarize_findings(findings: Sequence[Finding]) -> str:
    """Summarize findings in one line.

    Example:
        >>> summarize_findings([Finding("empty_cache", "the build has 0 B"), Finding("x", "y")])
        'the build has 0 B; y'
    """
    return "; ".join(finding.message for finding in findings)


def name_files(category: str, what: str, paths: Sequence[str]) -> Finding:
    """Make a warning that names the first of some files.

    Example:
        >>> name_files("temporary_file", "left behind", ["a", "b", "c", "d"]).message
        'left behind: a, b, c and 1 more'
    """
    return replace(_finding(category, what, paths), severity="warn")


def _finding(category: str, what: str, paths: Sequence[str]) -> Finding:
    return Finding(category, f"{what}: {list_paths(paths)}", paths=tuple(paths))


def list_paths(paths: Sequence[str]) -> str:
    """Name the first of some files.

    Example:
        >>> list_paths(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    named = ", ".join(for_terminal(path, 120) for path in paths[:_NAMED])
    return f"{named} and {len(paths) - _NAMED} more" if len(paths) > _NAMED else named


def _check_expected(files: Sequence[ScannedFile], policy: PublishPolicy) -> list[Finding]:
    expected = policy.expected_files
    if expected is None:
        return []
    if isinstance(expected, int):
        if len(files) == expected:
            return []
        return [Finding("wrong_file_count", f"the build has {len(files)} files, and {expected} are expected")]
    missing = [glob for glob in expected if not any(matches_any(file.path, [glob]) for file in files)]
    return [_finding("missing_file", "an expected file is missing", missing)] if missing else []


def _check_band(total: int, last_bytes: int | None) -> list[Finding]:
    if not last_bytes or _USUAL[0] <= (ratio := total / last_bytes) <= _USUAL[1]:
        return []
    message = f"the build has {format_bytes(total)}, {ratio:.3g} times the {format_bytes(last_bytes)} of the last published one"
    return [Finding("size_out_of_band", message, "warn")]


def _check_shared(files: Sequence[ScannedFile]) -> list[Finding]:
    # A hard link to a file outside: a write to that file changes the published build.
    names: dict[int, int] = {}
    for file in files:
        names[file.inode] = names.get(file.inode, 0) + 1
    shared = [file.path for file in files if file.links > names[file.inode]]
    if not shared:
        return []
    finding = _finding("shared_file", "also linked from outside the build, where it could be changed", shared)
    return [Finding(finding.category, finding.message, "warn", finding.paths)]


@dataclass(frozen=True)
class Suspect:
    """A file that may not stay, and why.

    It may be cut: temporary, empty, broken, reported, changed_in_window or unprovable; or it vouches for one that does not
    stay: marker.
    """

    path: str
    reason: str
    size_bytes: int


def find_suspects(
    files: Sequence[ScannedFile],
    *,
    empty: Collection[str] = (),
    grew_after_ns: int | None = None,
    window_s: float = 0,
    reported: Collection[str] = (),
    broken: Collection[str] = (),
) -> list[Suspect]:
    """Find the files that a killed attempt may have left incomplete.

    A generator that skips existing files would keep a truncated one indefinitely, so a retry that resumes removes these
    first. The rule compares change times with the moment of the last growth on the same clock. A generator cannot set a
    change time, as it can a modification time (cp -a, unzip, tar).

    A file counts as whole only if the attempt is known to have written other files for the whole window after this
    file's last change.

    Args:
        files: the files of the staging build.
        empty: paths of files that are empty, and should not be.
        grew_after_ns: the attempt's last growth came after this moment, on the clock that stamps the files. None if
            that is unknown, or if change times prove nothing, as after a copy: then every file is suspect.
        window_s: a file that changed within this time before that moment is suspect.
        reported: paths that the watch saw growing, or open for writing, at the end.
        broken: paths of files that contradict their own format. The reverse proves nothing: a file may have its full size
            before its bytes.

    Returns:
        The suspects in order of path, each with the first reason that applies.

    Example:
        >>> files = [ScannedFile("a", 9, 0, 1, 1, 10 * 10**9), ScannedFile("b", 9, 0, 2, 1, 99 * 10**9)]
        >>> find_suspects(files, grew_after_ns=98 * 10**9, window_s=5)
        [Suspect(path='b', reason='changed_in_window', size_bytes=9)]
    """
    if not files:
        return []
    since_ns = max(file.changed_ns for file in files)
    if grew_after_ns is not None:
        since_ns = min(since_ns, grew_after_ns - int(window_s * 1e9))
    found: list[Suspect] = []
    for file in files:
        if is_temporary(file.path):
            reason = "temporary"
        elif file.path in empty:
            reason = "empty"
        elif file.path in broken:
            reason = "broken"
        elif grew_after_ns is None:
            reason = "unprovable"
        elif file.path in reported:
            reason = "reported"
        elif file.changed_ns >= since_ns:
            reason = "changed_in_window"
        else:
            continue
        found.append(Suspect(file.path, reason, file.size_bytes))
    found += _vouching(files, found)
    return sorted(found, key=lambda suspect: suspect.path)


def _vouching(files: Sequence[ScannedFile], suspects: Sequence[Suspect]) -> list[Suspect]:
    """Find the markers that say that a cache with one of the suspects is whole: beside it, or above."""
    gone = {suspect.path for suspect in suspects}
    above = {
        str(up) for suspect in suspects if suspect.reason != "temporary" for up in PurePosixPath(suspect.path).parents
    }
    return [
        Suspect(file.path, "marker", file.size_bytes)
        for file in files
        if matches_any(file.path, MARKERS) and file.path not in gone and str(PurePosixPath(file.path).parent) in above
    ]
