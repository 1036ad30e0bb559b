"""Checks, before the start, the files that a run has to write: all different, and none that spoils the cache."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_cachewatch.common.aside import Files, look_ahead
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.engine.recorder import recording_path
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.measure.walk import IgnoreTest
from prefect_cachewatch.report.report import check_report_path

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob, Outputs


def check_outputs_ahead(
    files: Files, job: CacheJob, outputs: Outputs, *, published: Sequence[str] | None = None
) -> Path | None:
    """Check the outputs of a job in a helper process, which is left behind if it hangs.

    Args:
        files: the helper process.
        job: the job, with its name, cache directories and ignore globs.
        outputs: the outputs to check.
        published: see `check_outputs`.

    Returns:
        The recording's file; None if nothing is recorded.

    Raises:
        InputError: see `check_outputs`; or a file cannot be written, or a file system does not answer.
    """
    log, report, record = outputs.log, outputs.report, outputs.record
    if report is not None:
        look_ahead(files, f"report file {report}", check_report_path, report.absolute())
    if record is not None:
        record = look_ahead(files, f"recording {record}", recording_path, record.absolute(), job.name)
    if (log, report, record, outputs.bundle_dir) != (None, None, None, None):
        # One after the other, so that the one which does not answer is named.
        named = [("log file", log), ("bundle directory", outputs.bundle_dir)]
        for what, path in [*named, *(("cache directory", path) for path in job.cache_dirs)]:
            if path is not None:
                look_ahead(files, f"{what} {path}", os.path.lexists, path)
        check = functools.partial(
            check_outputs,
            list(job.cache_dirs),
            list(job.ignore),
            log=log,
            report=report,
            record=record,
            bundle_dir=outputs.bundle_dir,
            published=published,
            rewritten=job.on_stall == "report",
        )
        look_ahead(files, "a cache directory or the directory of an output", check)
    return record


def check_outputs(
    cache_dirs: Sequence[Path],
    ignore: Sequence[str],
    *,
    log: Path | None = None,
    report: Path | None = None,
    record: Path | None = None,
    bundle_dir: Path | None = None,
    published: Sequence[str] | None = None,
    rewritten: bool = False,
) -> None:
    """Refuse outputs that would overwrite each other, or be taken for the generator's files.

    Args:
        cache_dirs: the watched directories.
        ignore: globs of files in them that never count.
        log: file for the generator's output.
        report: file for the report.
        record: file for the recording.
        bundle_dir: directory for post-mortem bundles.
        published: globs of files that are no part of what is published, None if nothing is: the cache is then digested, and
            any other file of ours in it would be a part of it.
        rewritten: whether the report is written at each stall too, and the generator runs on.

    Raises:
        InputError: two outputs are one regular file; or one is in a cache directory where it must not be.
    """
    named = [
        (what, path)
        for what, path in (("log file", log), ("report file", report), ("recording", record))
        if path is not None
    ]
    seen: dict[object, tuple[str, Path]] = {}
    for what, path in named:
        if (key := _identity(path)) is None:
            continue
        other, first = seen.setdefault(key, (what, path))
        if other != what:
            raise InputError(
                f"{other} {for_terminal(str(first))} and {what} {for_terminal(str(path))} are one and the same "
                "file: name another one for each"
            )
    if bundle_dir is not None:
        named.append(("post-mortem directory", bundle_dir))
    at_end = {"report file"} if published is None and not rewritten else set()
    for what, path in named:
        _require_outside(what, path, cache_dirs, [ignore] if published is None else [ignore, published], what in at_end)


def _identity(path: Path) -> object:
    """An identity that all names of a regular file share, even before it exists; None for anything else."""
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _require_outside(
    what: str, path: Path, cache_dirs: Sequence[Path], left_out: Sequence[Sequence[str]], may_be_inside: bool
) -> None:
    """Refuse a path in a cache directory, unless every one of some lists of globs leaves a file of that name out."""
    where = Path(os.path.realpath(path.parent), path.name)
    for directory in cache_dirs:
        root, shown = Path(os.path.realpath(directory)), for_terminal(str(directory))
        if os.path.realpath(path) == str(root):
            thing = "directory" if what == "post-mortem directory" else "file"
            raise InputError(f"{what} {for_terminal(str(path))} is a cache directory itself: name a {thing} elsewhere")
        if not where.is_relative_to(root) or may_be_inside:
            continue
        below = os.path.join("", *where.parent.relative_to(root).parts, "")
        if what in ("log file", "report file") and all(found(path.name, below) for found in map(IgnoreTest, left_out)):
            continue
        grows = what in ("log file", "recording") or (what == "report file" and len(left_out) == 1)
        why = "count as growth" if grows else "be a part of it"
        name = ", or name it *.log" if what == "log file" else ""
        raise InputError(
            f"{what} {for_terminal(str(path))} lies in cache directory {shown}, where it would {why}: put it elsewhere{name}"
        )
