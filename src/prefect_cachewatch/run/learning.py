"""The learned windows of one run: read before its first attempt, kept for its next ones, added to when it has completed.

Every access to the history has a deadline; without it the configured windows hold. No Prefect.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration, format_moment
from prefect_cachewatch.run.pauses import add_run, find_pauses_file, read_runs
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.learned import (
    LEAST_RUNS,
    PAUSES,
    LearnedWindows,
    PastPauses,
    learn,
    least_window_s,
)
from prefect_cachewatch.watching.stall import effective_poll_s

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob, StallPolicy
    from prefect_cachewatch.watching.site import CacheDirectories

T = TypeVar("T")

_WITHIN_S = 5.0


def job_fingerprint(command: Sequence[str], storage: str, further: Mapping[str, str]) -> str:
    """Make the fingerprint of a job on its storage; what changes it begins a new history.

    Args:
        command: its argv; a secret in it does not count.
        storage: the file system that the cache lies on.
        further: whatever else the cache depends on, such as its key.

    Returns:
        16 hexadecimal digits.

    Example:
        >>> job_fingerprint(["gen", "--token=a"], "nfs4 a:/x", {}) == job_fingerprint(["gen", "--token=b"], "nfs4 a:/x", {})
        True
    """
    body = json.dumps([redact_argv(list(command)), storage, dict(further)], sort_keys=True)
    return hashlib.sha256(body.encode("ascii")).hexdigest()[:16]


class Learning:
    """The learned windows of a run, for all its attempts.

    Args:
        job: the job, as it is run.
        stall: its policy; without `learned` nothing is read, written or said.
        site: its directories, open; if there are none yet, the history is looked for when windows are asked for.
        files: the helper process that reads and writes the history.
        say: told what was learned, and what went wrong, in sentences.
        key: the digest of all that a published cache depends on; None without a store.
        records: the directory of cachewatch's own files for a published cache; None without a store.
    """

    def __init__(
        self,
        job: CacheJob,
        stall: StallPolicy,
        site: CacheDirectories,
        files: Files,
        say: Callable[[str], None],
        *,
        key: str | None = None,
        records: str | None = None,
    ) -> None:
        self._stall, self._files, self._say = stall, files, say
        self._job, self._site, self._key, self._records = job, site, key, records
        self._found = not site.paths
        self._path: str | None = None
        self._known_as = ""
        self._runs: list[tuple[bool, PastPauses]] = []
        self._warm: bool | None = None
        self._note = ""
        if stall.learned and site.paths:
            self._open()

    def _open(self) -> None:
        # Of directories that were found the order is chance.
        first = min(self._site.paths) if self._found else self._site.paths[0]
        mount = self._site.mounts.get(first)
        storage = f"{mount.type} {mount.source}" if mount is not None else ""
        job = self._job
        further = {"image": job.container.image} if job.container is not None else {}
        # What ends a pause: with other lines of progress the same run has other pauses.
        further |= {"key": self._key or "", "progress": self._stall.progress, "lines": "\n".join(job.progress_log)}
        if self._found:  # it is watched from later on, and has one phase
            further["found"] = "\n".join(sorted(self._site.paths))
        self._known_as = job_fingerprint([] if self._key else job.command, storage, further)
        try:
            path: str = f"{self._records}/{PAUSES}" if self._records else self._ask(find_pauses_file, first)
            self._runs = self._ask(read_runs, path, self._known_as)
            self._path = path
        except OSError as error:
            self._note = f"the configured windows hold: the history of pauses cannot be read: {_why(error)}"

    def _ask(self, function: Callable[..., T], *arguments: object) -> T:
        found: T = self._files.run(function, *arguments, timeout_s=_WITHIN_S)
        return found

    def windows(self, present_bytes: int) -> LearnedWindows:
        """Return the windows of the next attempt, and say which they are.

        Args:
            present_bytes: bytes in the cache directories before its start. A run that begins with an empty cache and
                one that resumes learn apart, since they are silent in different places.

        Returns:
            The windows; none after an attempt that a learned window has stopped, and while no directory is known.
        """
        if not self._stall.learned or not self._site.paths:
            return LearnedWindows()
        if not self._known_as:
            self._open()
        if self._warm is None:
            self._warm = present_bytes > 0
        learned = LearnedWindows(note=self._note) if self._note else self._learn(self._warm)
        for window in learned.windows:
            self._say(f"{window.where}: {window} (configured: {format_duration(window.configured_s)})")
        if learned.note:
            self._say(learned.note)
        return learned

    def _learn(self, warm: bool) -> LearnedWindows:
        runs = [run for run_warm, run in self._runs if run_warm == warm]
        learned = learn(runs, self._stall, least_window_s(effective_poll_s(self._stall)))
        if learned.windows:
            return learned
        begun = "files in the cache" if warm else "an empty cache"
        why = f"{len(runs)} of {LEAST_RUNS} completed runs of this command are known that began with {begun}"
        if len(runs) >= LEAST_RUNS:
            why = f"the pauses of {len(runs)} completed runs ask for no shorter ones"
        return LearnedWindows(note=f"the configured windows hold: {why}")

    def note(self, outcome: Outcome) -> None:
        """Take in how an attempt ended: after a stop by a learned window the configured ones hold."""
        if outcome.learned_stop is not None:
            self.forgo()

    def forgo(self) -> None:
        """Have the configured windows hold from now on, since a learned one has stopped an attempt of this run."""
        self._note = "a learned window has stopped the attempt before: the configured ones hold"

    def remember(self, outcome: Outcome) -> None:
        """Add the run to the history: its last attempt has completed, and its cache is published if it was to be."""
        if self._path is None:
            return
        ended_at = format_moment(time.time())
        try:
            self._ask(add_run, self._path, self._known_as, bool(self._warm), outcome.silences, ended_at)
        except OSError as error:
            self._say(f"the run's pauses were not added to {for_terminal(self._path, 1000)}: {_why(error)}")


def run_learned(
    learning: Learning, attempt: Callable[[int], tuple[Outcome, T]], received: Sequence[int] = ()
) -> tuple[Outcome, T]:
    """Run a generator, and once more with the configured windows if a learned one has stopped it.

    Args:
        learning: the run's learned windows.
        attempt: makes an attempt of a number.
        received: the signals that have ended the run, live.

    Returns:
        What the last attempt returned.
    """
    outcome, more = attempt(1)
    learning.note(outcome)
    # Two generators must not write beside each other.
    alone = outcome.stop is None or not outcome.stop.survivors
    if outcome.learned_stop is not None and alone and not received:
        outcome, more = attempt(2)
    if outcome.name == "completed":
        learning.remember(outcome)
    return outcome, more


def _why(error: OSError) -> str:
    where = f" ({for_terminal(os.fsdecode(error.filename), 1000)})" if error.filename else ""
    return f"{error.strerror or type(error).__name__}{where}"
