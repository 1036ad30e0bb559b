"""The attempts of a run: what follows each, and what is done before the next; the rules are in `run.retry`."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.engine.events import Retry
from prefect_cachewatch.evidence.causes import find_following
from prefect_cachewatch.run.before_retry import run_before_retry
from prefect_cachewatch.run.retry import (
    RetryDecision,
    count_attempts,
    decide_retry,
    describe_next,
    last_traceback,
)
from prefect_cachewatch.supervise.supervisor import await_survivors, describe_survivors, still_there

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prefect_cachewatch.report.report import Report
    from prefect_cachewatch.run.generation import Generation
    from prefect_cachewatch.watching.attempt import Outcome, Watch
    from prefect_cachewatch.watching.sections import NextAttempt
    from prefect_cachewatch.watching.site import CacheDirectories

_SURVIVORS_S = 60.0  # beyond the pause


class Retrying:
    """The attempts of one run, as far as they have been made.

    Args:
        generation: the run; without a policy there is one attempt, and one more where a learned window has stopped it.
        site: its directories.
    """

    def __init__(self, generation: Generation, site: CacheDirectories) -> None:
        self.outcomes: list[Outcome] = []
        self.lasting = ""
        """Why a later run would end as the last attempt did; empty if it may end otherwise."""
        self.goes_on = False
        """Whether another attempt follows."""
        self._run, self._policy, self._site = generation, generation.spec.retry, site
        self._tracebacks: list[str] = []
        self._due_s = 0.0
        self._why, self._pause_s = "", 0.0

    @property
    def made(self) -> int:
        """How many attempts have been made."""
        return len(self.outcomes)

    @property
    def most(self) -> int | None:
        """How many attempts there are at most, with one that a learned window has stopped; None without a policy."""
        return None if self._policy is None else self._policy.attempts + self.made - count_attempts(self.outcomes)

    def decide(self, outcome: Outcome, watch: Watch) -> NextAttempt | None:
        """Decide what follows an attempt, before its report is written.

        Args:
            outcome: the attempt's.
            watch: the attempt.

        Returns:
            The report's section; None for an attempt that completed or was cancelled, and without a policy.
        """
        self.outcomes.append(outcome)
        self.goes_on = False
        if outcome.name in ("completed", "cancelled"):
            return None
        if self._policy is None:
            # Two generators must not write beside each other.
            alone = outcome.stop is None or not outcome.stop.survivors
            self.goes_on = outcome.learned_stop is not None and alone and not self._run.engine.received
            self._why = "the window was learned: once more with the configured one"
            return None
        self._tracebacks.append(last_traceback(watch.output.tail().decode("utf-8", "replace")))
        decision: RetryDecision = decide_retry(self._policy, self.outcomes, self._start_bytes(), self._tracebacks)
        self.lasting = decision.lasting
        why = find_following(outcome.diagnosis)[1].why
        chance = random.random()  # noqa: S311 - jitter, not a secret
        section = describe_next(decision, self._policy, count_attempts(self.outcomes), why, chance)
        self.goes_on, self._why, self._pause_s = section.again, section.sentence, section.pause_s or 0.0
        self._due_s = time.monotonic() + self._pause_s
        return section

    def prepare(self, outcome: Outcome, section: NextAttempt | None) -> str | None:
        """Make ready for the next attempt, and wait for what is left of the last one.

        Args:
            outcome: of the last attempt.
            section: what was decided; None without a policy.

        Returns:
            Why there is no further attempt although it was decided; None if there is one.

        Raises:
            InputError: files cannot be removed, or the command before the attempt has failed.
        """
        if section is None:
            return None
        run, site, command = self._run, self._site, self._policy.before_retry
        if (problem := self._await_survivors(outcome)) is not None:
            return problem
        if outcome.stop is not None and outcome.stop.survivors:
            site.note_end(failed=True)  # the survivors may have written until a moment ago
        site.cleaned = ""
        if self._policy.on_retry == "clean":
            cleaned = site.clean()
            self._log_cleaned(cleaned)
            if cleaned["removed"]:
                site.cleaned = (
                    f"The clean-up before this attempt removed {format_count(cleaned['removed'], 'file')} of the last."
                )
        if command:
            run_before_retry(
                command,
                env=run.env | {"CACHEWATCH_CAUSE": section.category or "", "CACHEWATCH_ATTEMPT": str(self.made + 1)},
                cwd=str(run.place.job.cwd) if run.place.job.cwd else os.getcwd(),
                secrets=run.secrets,
                say=run.engine.note,
            )
        if run.delivery is not None:  # after `clean` too: it keeps files of unknown origin
            run.delivery.prepare_retry(run.spec.stall.stall_after_s)
            site.cleaned = run.delivery.cleaned or site.cleaned
        return None

    def between(self, report: Report) -> AbstractContextManager[None]:
        """Have the run end within, if it is cancelled, as one that was cancelled between two attempts.

        Args:
            report: of the last attempt.
        """
        headline = f"The run was cancelled in the pause before attempt {self.made + 1} of {self.most}"
        return self._run.engine.pausing(headline, f"{headline}. {report.message}")

    def pause(self) -> None:
        """Wait until the next attempt is due, and say why there is one."""
        left_s = max(0.0, self._due_s - time.monotonic()) if self._pause_s else 0.0
        self._run.engine.tell(Retry(left_s, self._why))
        time.sleep(left_s)

    def _start_bytes(self) -> int:
        first = self.outcomes[0].samples
        return first[0].bytes_present if first else 0

    def _await_survivors(self, outcome: Outcome) -> str | None:
        """Wait for survivors, which may still write; if they stay, say why there is no further attempt."""
        left = still_there(outcome.stop.survivors) if outcome.stop is not None else []
        if not left:
            return None
        timeout_s = self._pause_s + _SURVIVORS_S
        who = describe_survivors(left)
        self._run.engine.note(
            f"the next attempt waits, at most {format_duration(timeout_s)}, until these have ended: {who}", fault=True
        )
        if not (left := await_survivors(left, timeout_s)):
            return None
        return (
            f"There is no further attempt beside what is left of this one, which may still write: {describe_survivors(left)}. "
            "See what it waits for, or restart the machine, then run the job again."
        )

    def _log_cleaned(self, cleaned: dict[str, Any]) -> None:
        note = self._run.engine.note
        note(f"removed {cleaned['removed']:,} files ({format_bytes(cleaned['freed_bytes'])}) of the attempt")
        if cleaned["kept"]:
            names = ", ".join(for_terminal(path, 200) for path in cleaned["kept_paths"][:5])
            more = ", ..." if cleaned["kept"] > 5 else ""
            note(
                f"{cleaned['kept']:,} files that came during the attempt are not known to be its own, and stay: {names}{more}",
                fault=True,
            )
