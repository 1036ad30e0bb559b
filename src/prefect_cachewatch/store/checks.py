"""Decides whether a build may be published, and which files a failed attempt may have cut. Pure rules over a listing.

The `category` of a finding is a contract: reports and automations match on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from prefect_cachewatch.common.temporary import MARKERS, is_absent, is_temporary
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.store.tree import BuildTree, Said, ScannedFile, matches_any

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
# What looks into files say, in the order in which it is told; what can refuse a build has a way to allow it.
_LOOKS = {
    "broken_content": _ALL_THE_SAME,
    "suspicious_content": "",
    "incomplete_set": _ALL_THE_SAME,
    "unused_index": "",
    "wrong_total": "",
    "unwritten_part": "; allow_sparse names files that may have such parts",
}
# `b.bin` of `b.bin.tmp.4711` and of `b.bin.incomplete`.
_UNFINISHED = re.compile(r"(?:~|\.(?:tmp[.-][^/]*|[^./]+))$")
# What differs from one process to the next: numbers of processes, times, random names; but not `layer-00007`.
_PASSING = re.compile(r"(?<![0-9a-zA-Z])(?:[1-9]\d{3,}|(?=[0-9a-f]*\d)[0-9a-f]{8,})(?![0-9a-zA-Z])")
Severity = Literal["refuse", "warn"]


@dataclass(frozen=True)
class Finding:
    """One result of a check: what, which files, and whether it forbids publication."""

    category: str
    message: str
    severity: Severity = "refuse"
    paths: tuple[str, ...] = ()


def check_tree(tree: BuildTree, policy: PublishPolicy, last_bytes: int | None = None) -> list[Finding]:
    """Check a finished staging build against the policy.

    Args:
        tree: the contents of the build.
        policy: the rules.
        last_bytes: size of the last published build, if any.

    Returns:
        The findings.

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
    unreadable = [(path, why) for path, why in tree.unreadable if not matches_any(path, policy.ignore)]
    why = f"cannot be read ({unreadable[0][1]})" if unreadable else ""
    names = Counter(file.inode for file in counted)
    # A hard link to a file outside: a write to that file changes the published build.
    shared = [file.path for file in counted if file.links > names[file.inode]]
    found = [
        *name_files("special_file", "not a regular file or on another file system", tree.others, "refuse"),
        *name_files("link_escapes", "a symbolic link that leads out of the build or nowhere", tree.escapes, "refuse"),
        *name_files("unreadable", why, [path for path, _ in unreadable], "refuse"),
        *name_files("temporary_file", "a temporary file was left behind", temporary, "refuse"),
        *name_files("empty_file", "an empty file was left behind", empty, "refuse", "; allow_empty_files names files that may be empty"),
        *_check_expected(counted, policy),
        *name_files("shared_file", "also linked from outside the build, where it could be changed", shared),
    ]  # fmt: skip
    total = sum(file.size_bytes for file in counted)
    if not total:
        wrote = "no byte" if counted else "no file"
        found.append(
            Finding("empty_cache", f"the generator wrote {wrote} into the build: does it use the path it was given?")
        )
    if last_bytes and not _USUAL[0] <= (ratio := total / last_bytes) <= _USUAL[1]:
        than = f"{ratio:.3g} times the {format_bytes(last_bytes)} of the last published one"
        found.append(Finding("size_out_of_band", f"the build has {format_bytes(total)}, {than}", "warn"))
    return found


def _check_expected(files: Sequence[ScannedFile], policy: PublishPolicy) -> list[Finding]:
    expected = policy.expected_files
    if isinstance(expected, int):
        if len(files) == expected:
            return []
        return [Finding("wrong_file_count", f"the build has {len(files)} files, and {expected} are expected")]
    missing = [glob for glob in expected or () if not any(matches_any(file.path, [glob]) for file in files)]
    return name_files("missing_file", "an expected file is missing", missing, "refuse")


def find_unreplaced(removed: Sequence[tuple[str, int, int]], files: Sequence[ScannedFile]) -> list[Finding]:
    """Find what the clean-up before an attempt removed from a build, and nothing wrote again.

    A generator that finds some files often takes them for the whole cache.

    A file is there again by its name. An unfinished file is also there again under its final name, or if as much was written
    under other names: their names are often random.

    Args:
        removed: of each file its relative path, its size, and the moment, on the clock that stamps the files.
        files: what is in the build now.

    Returns:
        At most one finding; a refusal if less was written since than was removed.

    Example:
        >>> find_unreplaced([("a.bin.part", 9, 5)], [ScannedFile("b.bin", 9, 0, 1, 1, changed_ns=1)])[0].message
        'removed before this attempt, since it may have been cut, and not written again: a.bin.part'
    """
    there = {file.path for file in files}
    alike = {_PASSING.sub("*", path) for path in there}
    again: set[str] = set()
    named: list[str] = []
    lost: list[tuple[str, int, int]] = []
    for path, size, at_ns in removed:
        final = _UNFINISHED.sub("", path) if is_temporary(path) else None
        if path in there or final in there:
            again.update(one for one in (path, final) if one is not None)
        elif final is not None or _PASSING.sub("*", path) not in alike:
            lost.append((path, size, at_ns))
            if final is None and size:
                named.append(path)
    since_ns = min((at_ns for _, _, at_ns in lost), default=0)
    new = [file for file in files if file.changed_ns >= since_ns and file.path not in again]
    fewer = not new or sum(file.size_bytes for file in new) < sum(size for _, size, _ in lost)
    paths = sorted([path for path, _, _ in lost] if fewer else named)
    what = "removed before this attempt, since it may have been cut, and not written again"
    return name_files("not_written_again", what, paths, "refuse" if fewer else "warn")


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


def judge(looks: Sequence[Said], broken: Severity = "refuse", unwritten: Severity = "refuse") -> list[Finding]:
    """Judge what looks into the files and at their sets say.

    Args:
        looks: of each file.
        broken: severity of what contradicts itself, or what is there.
        unwritten: severity of parts that were never written.

    Returns:
        At most one finding a category; what a loader may do without never forbids publication.

    Example:
        >>> judge([Said("broken_content", "a.npy", "is cut off")])[0].message
        'a.npy is cut off; on_broken_content: warn publishes it all the same'
    """
    severities: dict[str, Severity] = {"broken_content": broken, "incomplete_set": broken, "unwritten_part": unwritten}
    found: list[Finding] = []
    for category, way in _LOOKS.items():
        if told := [said for said in looks if said.category == category]:
            severity = severities.get(category, "warn")
            message = "; ".join(f"{for_terminal(said.path, 120)} {said.message}" for said in told[:_NAMED])
            message += f"; and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
            message += way if severity == "refuse" else ""
            found.append(Finding(category, message, severity, tuple(said.path for said in told)))
    return found


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


def name_files(
    category: str, what: str, paths: Sequence[str], severity: Severity = "warn", way: str = ""
) -> list[Finding]:
    """Make a finding that names the first of some files; none if there are none.

    Example:
        >>> name_files("temporary_file", "left behind", ["a", "b", "c", "d"])[0].message
        'left behind: a, b, c and 1 more'
    """
    return [Finding(category, f"{what}: {list_paths(paths)}{way}", severity, tuple(paths))] if paths else []


def list_paths(paths: Sequence[str]) -> str:
    """Name the first of some files.

    Example:
        >>> list_paths(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    named = ", ".join(for_terminal(path, 120) for path in paths[:_NAMED])
    return f"{named} and {len(paths) - _NAMED} more" if len(paths) > _NAMED else named


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
