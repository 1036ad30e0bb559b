"""The attempts of a run: what follows each, and what is done before the next; the rules are in `run.retry`."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

from prefect.exceptions import TerminationSignal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.engine.events import Retry
from prefect_cachewatch.evidence.causes import find_following
from prefect_cachewatch.flows.attempts import Inputs, wait_awake
from prefect_cachewatch.run.before_retry import run_before_retry
from prefect_cachewatch.run.retry import count_attempts, decide_retry, describe_next, last_traceback
from prefect_cachewatch.supervise.supervisor import await_survivors, describe_survivors, still_there
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.events import emit_generation_event
from prefect_cachewatch.watching.attempt import Outcome, Watch
from prefect_cachewatch.watching.sections import NextAttempt
from prefect_cachewatch.watching.site import CacheDirectories

_SURVIVORS_S = 60.0  # beyond the pause


class Retrying:
    """The attempts of one run, as far as they have been made.

    Args:
        policy: the user's.
        inputs: the run's inputs.
        site: its directories.
    """

    def __init__(self, policy: RetryPolicy, inputs: Inputs, site: CacheDirectories) -> None:
        self.policy, self.inputs = policy, inputs
        self.outcomes: list[Outcome] = []
        self.lasting = ""
        """Why a later run would end as the last attempt did; empty if it may end otherwise."""
        self._site = site
        self._tracebacks: list[str] = []
        self._due_s = 0.0

    @property
    def made(self) -> int:
        """How many attempts have been made."""
        return len(self.outcomes)

    @property
    def most(self) -> int:
        """How many attempts there are at most, with one that a learned window has stopped."""
        return self.policy.attempts + self.made - count_attempts(self.outcomes)

    def decide(self, outcome: Outcome, watch: Watch) -> NextAttempt | None:
        """Decide what follows an attempt, before its report is written.

        Args:
            outcome: the attempt's.
            watch: the attempt.

        Returns:
            The report's section; None for an attempt that completed or was cancelled.
        """
        self.outcomes.append(outcome)
        if outcome.name in ("completed", "cancelled"):
            return None
        self._tracebacks.append(last_traceback(watch.output.tail().decode("utf-8", "replace")))
        decision = decide_retry(self.policy, self.outcomes, self._start_bytes(), self._tracebacks)
        self.lasting = decision.lasting
        why = find_following(outcome.diagnosis)[1].why
        chance = random.random()  # noqa: S311 - jitter, not a secret
        section = describe_next(decision, self.policy, count_attempts(self.outcomes), why, chance)
        self._due_s = time.monotonic() + (section.pause_s or 0.0)
        return section

    def prepare(self, outcome: Outcome, section: NextAttempt) -> str | None:
        """Make ready for the next attempt, and wait for what is left of the last one.

        Args:
            outcome: of the last attempt.
            section: what was decided.

        Returns:
            Why there is no further attempt although it was decided; None if there is one.

        Raises:
            InputError: files cannot be removed, or the command before the attempt has failed.
        """
        inputs, site, command = self.inputs, self._site, self.policy.before_retry
        if (problem := _await_survivors(outcome, section.pause_s or 0.0, inputs.logger)) is not None:
            return problem
        if outcome.stop is not None and outcome.stop.survivors:
            site.note_end(failed=True)  # the survivors may have written until a moment ago
        site.cleaned = ""
        if self.policy.on_retry == "clean":
            cleaned = site.clean()
            _log_cleaned(cleaned, inputs.logger)
            if cleaned["removed"]:
                site.cleaned = (
                    f"The clean-up before this attempt removed {format_count(cleaned['removed'], 'file')} of the last."
                )
        if command:
            run_before_retry(
                command,
                env=inputs.env | {"CACHEWATCH_CAUSE": section.category or "", "CACHEWATCH_ATTEMPT": str(self.made + 1)},
                cwd=str(inputs.job.cwd) if inputs.job.cwd else os.getcwd(),
                secrets=inputs.secrets,
                say=inputs.logger.info,
            )
        if inputs.delivery is not None:  # after `clean` too: it keeps files of unknown origin
            inputs.delivery.prepare_retry(inputs.stall.stall_after_s)
            site.cleaned = inputs.delivery.cleaned or site.cleaned
        return None

    def pause(self, outcome: Outcome, section: NextAttempt) -> None:
        """Wait until the next attempt is due, and say why there is one."""
        said = f"attempt {self.made} of {self.most} ended {outcome.name}: {section.sentence}"
        self.inputs.logger.warning("%s", said)
        left_s = max(0.0, self._due_s - time.monotonic())
        self.inputs.stream.tell(Retry(left_s, section.sentence))
        try:
            wait_awake(threading.Event(), left_s)
        except TerminationSignal:
            self._leave_cancelled(outcome)
            raise

    def _leave_cancelled(self, outcome: Outcome) -> None:
        """Tell of a run that was cancelled in a pause; the report of its last attempt stays as it is."""
        headline = f"The run was cancelled in the pause before attempt {self.made + 1} of {self.most}"
        message = f"{headline}. {outcome.message}"
        self.inputs.logger.warning(message)
        payload = {
            "attempt": self.made,
            "outcome": "cancelled",
            "message": message,
            "headline": headline,
        }
        emit_generation_event("cancelled", self.inputs.job.name, payload)

    def _start_bytes(self) -> int:
        first = self.outcomes[0].samples
        return first[0].bytes_present if first else 0


def _await_survivors(outcome: Outcome, pause_s: float, logger: AnyLogger) -> str | None:
    """Wait for survivors, which may still write; if they stay, say why there is no further attempt."""
    left = still_there(outcome.stop.survivors) if outcome.stop is not None else []
    if not left:
        return None
    timeout_s = pause_s + _SURVIVORS_S
    who = describe_survivors(left)
    logger.warning("the next attempt waits, at most %s, until these have ended: %s", format_duration(timeout_s), who)
    if not (left := await_survivors(left, timeout_s)):
        return None
    return (
        f"There is no further attempt beside what is left of this one, which may still write: {describe_survivors(left)}. "
        "See what it waits for, or restart the machine, then run the job again."
    )


def _log_cleaned(cleaned: dict[str, Any], logger: AnyLogger) -> None:
    logger.info("removed %s files (%s) of the attempt", f"{cleaned['removed']:,}", format_bytes(cleaned["freed_bytes"]))
    if cleaned["kept"]:
        names = ", ".join(for_terminal(path, 200) for path in cleaned["kept_paths"][:5])
        logger.warning(
            "%s files that came during the attempt are not known to be its own, and stay: %s%s",
            f"{cleaned['kept']:,}",
            names,
            ", ..." if cleaned["kept"] > 5 else "",
        )
