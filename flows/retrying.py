"""The attempts of a run: what follows each, and what is changed before the next; the rules are in `run.retry`."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from prefect.exceptions import Pause, TerminationSignal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.config import Change, RetryPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.flows.attempts import Inputs, live_view, wait_awake
from prefect_cachewatch.postmortem.examination import PostMortem
from prefect_cachewatch.run.handover import LEAST_PAUSE_S, Earlier, fingerprint
from prefect_cachewatch.run.preparation import new_variables, remove_locks, run_before_retry
from prefect_cachewatch.run.remedies import Means, Step, choose_steps, find_remedy
from prefect_cachewatch.run.retry import RetryDecision, decide_retry, describe_next, last_traceback
from prefect_cachewatch.supervise.lockfiles import LockFile
from prefect_cachewatch.supervise.supervisor import await_survivors, describe_survivors, still_there
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.events import emit_generation_event
from prefect_cachewatch.tasks.prefect_api.handover import hand_over, taken_meanwhile, why_not_elsewhere
from prefect_cachewatch.watching.attempt import Outcome, Watch
from prefect_cachewatch.watching.sections import NextAttempt
from prefect_cachewatch.watching.site import CacheDirectories

_SURVIVORS_S = 60.0  # beyond the pause
_STAYING: tuple[Change, ...] = ("kernel_cache", "no_xet")  # changes of the environment, for all further attempts


class Retrying:
    """The attempts of one run, as far as they have been made.

    Args:
        policy: the user's.
        inputs: the run's inputs; `inputs` has them as the next attempt gets them.
        site: its directories.
        earlier: the attempts that other processes have made.

    Raises:
        InputError: a change that they have made cannot be made here.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        inputs: Inputs,
        site: CacheDirectories,
        earlier: Earlier = Earlier(),  # noqa: B008 - frozen
    ) -> None:
        self.policy, self.inputs, self.earlier = policy, inputs, earlier
        self.outcomes: list[Outcome] = []
        self.lasting = ""
        """Why a later run would end as the last attempt did; empty if it may end otherwise."""
        self._site = site
        self._tracebacks: list[str] = [earlier.traceback] if earlier.made else []
        self._steps: tuple[Step, ...] = ()
        self._locks: list[LockFile] = []
        self._due_s = 0.0
        self._asked = False  # to be handed over, without an answer that it was
        if earlier.made:
            inputs.logger.info(
                "this run was handed over after attempt %s: the next one is %s of %s",
                earlier.made,
                earlier.made + 1,
                self.most,
            )
            if earlier.made > earlier.counted and inputs.learning is not None:
                inputs.learning.forgo()
            self._change_environment([change for change in _STAYING if change in earlier.change])

    @property
    def counted(self) -> int:
        """How many of the policy's attempts are used up."""
        return self._tally().counted

    @property
    def made(self) -> int:
        """How many attempts have been made, in all processes."""
        return self.earlier.made + len(self.outcomes)

    @property
    def most(self) -> int:
        """How many attempts there are at most, with one that a learned window has stopped."""
        return self.policy.attempts + self.made - self.counted

    def decide(self, outcome: Outcome, watch: Watch, examiner: PostMortem) -> NextAttempt | None:
        """Decide what follows an attempt, before its report is written.

        Args:
            outcome: the attempt's.
            watch: the attempt.
            examiner: what it found.

        Returns:
            The report's section; None for an attempt that completed or was cancelled.
        """
        self.outcomes.append(outcome)
        if outcome.name in ("completed", "cancelled"):
            return None
        self._tracebacks.append(fingerprint(last_traceback(watch.output.tail().decode("utf-8", "replace"))))
        decision = decide_retry(
            self.policy, self.outcomes, self._start_bytes(), self.inputs.stall.min_growth_bytes, self._tracebacks, self.earlier,
        )  # fmt: skip
        self.lasting = decision.lasting
        self._locks = [lock for lock in examiner.stale_locks if self._is_ours(lock.path)]
        self._steps = choose_steps(decision.change, self._means(decision)) if decision.again else ()
        why = find_remedy(outcome.diagnosis, self.policy.by_cause)[1].why
        chance = random.random()  # noqa: S311 - jitter, not a secret
        section = describe_next(decision, self.policy, self.counted, why, self._steps, chance)
        self._due_s = time.monotonic() + (section.pause_s or 0.0)
        return section

    def prepare(self, outcome: Outcome, section: NextAttempt) -> str | None:
        """Make the changes before the next attempt, and wait for what is left of the last one.

        Args:
            outcome: of the last attempt.
            section: what was decided.

        Returns:
            Why there is no further attempt although it was decided; None if there is one.

        Raises:
            InputError: a change cannot be made.
            Pause: another worker makes it; this process is to end.
        """
        inputs, site, changes = self.inputs, self._site, {step.change for step in self._steps}
        if (problem := _await_survivors(outcome, section.pause_s or 0.0, inputs.logger)) is not None:
            return problem
        if outcome.stop is not None and outcome.stop.survivors:
            site.note_end(failed=True)  # the survivors may have written until a moment ago
        if "clean" in changes and inputs.delivery is not None:
            inputs.delivery.discard()
        elif "clean" in changes or self.policy.on_retry == "clean":
            _log_cleaned(site.clean(), inputs.logger)
        if "unlock" in changes:
            for problem in remove_locks(self._locks, site.paths, inputs.files):
                inputs.logger.warning(problem)
        if new := new_variables(self._steps, inputs.files, inputs.run_dir, self.made + 1):
            self.inputs = inputs.with_variables(new)
        unfit = self._reset(section) if "reset" in changes else None
        if "another_worker" in changes:
            if unfit is not None:
                inputs.logger.warning("%s: another worker may do better", unfit.message)
            self._hand_over(outcome, section)
        if unfit is not None:
            raise unfit
        # After `clean` too: it keeps files of unknown origin. Not before the run is handed over: the process that resumes the
        # build does the same, by the time of the last growth, and would take the newest of the whole files as well.
        if inputs.delivery is not None:
            inputs.delivery.prepare_retry(inputs.stall.stall_after_s)
        return None

    def _reset(self, section: NextAttempt) -> InputError | None:
        """Run the command that resets a device; return why it did not."""
        inputs, command = self.inputs, self.policy.before_retry
        if not command:
            return None
        try:
            run_before_retry(
                command,
                env=inputs.env | {"CACHEWATCH_CAUSE": section.category or "", "CACHEWATCH_ATTEMPT": str(self.made + 1)},
                cwd=str(inputs.job.cwd) if inputs.job.cwd else os.getcwd(),
                within_s=self.policy.before_retry_within_s,
                secrets=inputs.secrets,
                say=inputs.logger.info,
            )
        except InputError as error:
            return error
        return None

    def _hand_over(self, outcome: Outcome, section: NextAttempt) -> None:
        """Hand the run back to its pool and raise Pause; return if Prefect does not take it."""
        if self.inputs.delivery is not None:
            self.inputs.delivery.leave(self._site)
        kept = [step.change for step in self._steps if step.change in _STAYING]
        said = self._said(outcome, section)
        pause_s = max(LEAST_PAUSE_S, self._due_s - time.monotonic())  # from now on: this process has to end first
        self._asked = True
        state = hand_over(self._tally(kept), pause_s, said, self.inputs.logger)
        if state is not None:
            self.inputs.logger.warning("%s", said)
            raise Pause(state=state)

    def pause(self, outcome: Outcome, section: NextAttempt) -> None:
        """Wait until the next attempt is due, and say why there is one; raises Pause if another worker makes it after all."""
        self.inputs.logger.warning("%s", self._said(outcome, section))
        left_s = max(0.0, self._due_s - time.monotonic())
        live_view.get().attempt_waits(left_s)
        try:
            wait_awake(threading.Event(), left_s)
        except TerminationSignal:
            self._leave_cancelled(outcome)
            raise
        if self._asked and (state := taken_meanwhile()) is not None:
            raise Pause(state=state)
        self._asked = False

    def _leave_cancelled(self, outcome: Outcome) -> None:
        """Tell of a run that was cancelled in a pause; the report of its last attempt stays as it is."""
        message = f"The run was cancelled in the pause before attempt {self.made + 1} of {self.most}. {outcome.message}"
        self.inputs.logger.warning(message)
        payload = {
            "attempt": self.made,
            "outcome": "cancelled",
            "message": message,
            "headline": message.partition(". ")[0],
        }
        emit_generation_event("cancelled", self.inputs.job.name, payload)

    def _said(self, outcome: Outcome, section: NextAttempt) -> str:
        return f"attempt {self.made} of {self.most} ended {outcome.name}: {section.sentence}"

    def _start_bytes(self) -> int:
        first = self.outcomes[0].samples if self.outcomes else ()
        return first[0].bytes_present if first else 0

    def _tally(self, change: Sequence[str] = ()) -> Earlier:
        last = self._tracebacks[-1] if self._tracebacks else ""
        return self.earlier.plus(self.outcomes, self._start_bytes(), self.inputs.stall.min_growth_bytes, last, change)

    def _change_environment(self, changes: Sequence[Change]) -> None:
        """Make the changes of the environment that earlier processes of this run have made."""
        inputs = self.inputs
        steps = choose_steps(changes, self._means())
        if new := new_variables(steps, inputs.files, inputs.run_dir, self.made + 1):
            self.inputs = inputs.with_variables(new)

    def _may_leave(self, decision: RetryDecision) -> bool:
        """Say whether another worker may make the next attempt, as far as the policy wants one."""
        own = self.policy.by_cause.get(decision.category)
        named = own is not None and "another_worker" in (own.change or ())
        if "another_worker" not in decision.change or not (self.policy.another_worker or named):
            return False
        if why := why_not_elsewhere():
            self.inputs.logger.info("the next attempt is made here, and not by another worker: %s", why)
        return not why

    def _means(self, decision: RetryDecision | None = None) -> Means:
        inputs, site = self.inputs, self._site
        return Means(
            env=inputs.env,
            cache_dirs=site.paths,
            in_container=inputs.place.plan is not None,
            before_retry=self.policy.before_retry,
            stale_locks=[lock.path for lock in self._locks],
            can_clean=inputs.delivery is not None or site.to_clean,
            other_workers=decision is not None and self._may_leave(decision),
        )

    def _is_ours(self, path: str) -> bool:
        return any(path.startswith(top.rstrip("/") + "/") for top in self._site.paths)


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
