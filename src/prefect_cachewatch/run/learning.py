"""The history of a job, for one run of it: the window that is learned from it, and what the run adds to it at its end.

Every access has a deadline; without the history the configured window holds. No Prefect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration, format_moment
from prefect_cachewatch.run.history import PastRun, add_run, digest_of, history_path, place_of, read_history
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.learned import LEAST_RUNS, LearnedWindow, learn_window
from prefect_cachewatch.watching.stall import effective_poll_s

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob, StallPolicy

_WITHIN_S = 2.0


class RunHistory:
    """A job's history, for all attempts of one run.

    Args:
        job: the job, as it is run.
        stall: its policy; without a learned window nothing is said, and nothing read before the end.
        cache_dirs: its directories, resolved, by the paths that stay the same from run to run.
        files: the helper process that reads and writes.
        say: told what was learned, and what went wrong, in sentences.
        key: the digest of all that a published cache depends on; it stands for the command. None without a store.
    """

    def __init__(
        self,
        job: CacheJob,
        stall: StallPolicy,
        cache_dirs: Sequence[str],
        files: Files,
        say: Callable[[str], None],
        key: str | None = None,
    ) -> None:
        self._name, self._stall, self._files, self._say = job.name, stall, files, say
        self._place = place_of(cache_dirs)
        image = job.container.image if job.container is not None else ""
        # What ends a pause counts too: with other lines of progress the same run has other pauses.
        self._kind = digest_of(key or "\0".join(redact_argv(job.command)), image, stall.progress, *job.progress_log)
        self._warm: bool | None = None
        self._has_stopped = False

    def past_runs(self) -> list[PastRun]:
        """Read the last runs in these directories that completed and wrote, the newest first; none if they cannot be read."""
        try:
            found: list[PastRun] = self._files.run(read_history, self._name, timeout_s=_WITHIN_S)
        except OSError:
            return []
        return [run for run in found if run.wrote and run.place == self._place]

    def window(self, present_bytes: int) -> tuple[LearnedWindow | None, str]:
        """Return the window of the next attempt, and say what it is.

        Args:
            present_bytes: bytes in the cache directories before its start. A run that begins with an empty cache and
                one that resumes learn apart, since they are silent in different places.

        Returns:
            The learned window, if there is a shorter one than the configured; and why there is none, if one was wanted.
        """
        if self._warm is None:
            self._warm = present_bytes > 0
        if not self._stall.learned:
            return None, ""
        if self._has_stopped:
            return None, "a learned window has stopped the attempt before: the configured one holds"
        runs = [run for run in self.past_runs() if run.kind == self._kind and run.warm == self._warm]
        pauses_s = [run.longest_pause_s for run in runs if run.longest_pause_s is not None]
        window = learn_window(pauses_s, self._stall.stall_after_s, effective_poll_s(self._stall))
        if window is not None:
            self._say(f"{window} (configured: {format_duration(window.configured_s)})")
            return window, ""
        begun = "files in the cache" if self._warm else "an empty cache"
        why = f"{len(pauses_s)} of {LEAST_RUNS} completed runs of this command are known that began with {begun}"
        if len(pauses_s) >= LEAST_RUNS:
            why = f"the pauses of {len(pauses_s)} completed runs ask for no shorter one"
        note = f"the configured window holds: {why}"
        self._say(note)
        return None, note

    def note(self, outcome: Outcome) -> None:
        """Take in how an attempt ended: after a stop by a learned window the configured one holds."""
        self._has_stopped = self._has_stopped or outcome.learned_stop is not None

    def run_of(self, outcomes: Sequence[Outcome], ended: str | None = None) -> PastRun:
        """Return what the history has of this run.

        Args:
            outcomes: of its attempts, at least one.
            ended: how the run ended, if not as its last attempt.
        """
        last, pause_s = outcomes[-1], outcomes[-1].longest_silence_s
        stalls = sum(max(int(outcome.name == "stalled"), len(outcome.would_be_stops)) for outcome in outcomes)
        causes = [outcome.diagnosis.category for outcome in outcomes if outcome.diagnosis is not None]
        return PastRun(
            format_moment(last.started_at), ended or last.name, round(last.duration_s, 3), last.growth.bytes_written,
            last.growth.bytes_present, pause_s if pause_s is None else round(pause_s, 3), causes[-1] if causes else None,
            len(outcomes), stalls, bool(self._warm), self._place, self._kind,
        )  # fmt: skip

    def remember(self, outcomes: Sequence[Outcome], ended: str | None = None) -> None:
        """Add this run to the history; as `run_of`."""
        try:
            self._files.run(add_run, self._name, self.run_of(outcomes, ended), timeout_s=_WITHIN_S)
        except OSError as error:
            if self._stall.learned:
                why = error.strerror or str(error) or type(error).__name__
                self._say(f"the run was not added to {for_terminal(str(history_path(self._name)), 1000)}: {why}")
