"""The examination of one attempt: evidence before the stop, diagnosis, message, bundle.

`PostMortem` is called by two hooks of a watch, `sampled` and `before_stop`, and returns its findings
afterwards. An error here is noted and never changes how the attempt ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.common.secrets import redact, redact_all
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.evidence.collector import collect_evidence, kept_text, log_text
from prefect_cachewatch.evidence.model import FILLING_BYTES_PER_S, Evidence, GrowthFacts, Missing, ProcessSample
from prefect_cachewatch.evidence.proctree import EndedProcesses, sample_processes
from prefect_cachewatch.evidence.rules import find_cause
from prefect_cachewatch.report.bundle import BundleContent, write_bundle
from prefect_cachewatch.report.report import Report, suspected_paths
from prefect_cachewatch.report.sections import describe_cancelled, how_it_ended, how_long, make_headline
from prefect_cachewatch.supervise.open_files import open_for_writing
from prefect_cachewatch.supervise.output import OutputPump
from prefect_cachewatch.supervise.proc import signal_name
from prefect_cachewatch.watching.attempt import Outcome, Watch
from prefect_cachewatch.watching.outcomes import is_verdict
from prefect_cachewatch.watching.stall import Verdict

EVIDENCE_BUDGET_S = 2.0
_FREEZE_S = 0.3
_SAMPLES_MAX = 16
_SLACK_S = 0.5  # for the way of the evidence from one process to another
_BUNDLE_S = 20.0
_CANCELLED_BUNDLE_S = 2.0  # whoever cancelled it may kill us soon
_NOT_LOOKED_AT = Missing("processes", "a cancelled run is stopped at once: its processes were not looked at")
_BUSY_CORES, _BUSY_BYTES_PER_S = 0.25, 1 << 20


class PostMortem:
    """Finds out why an attempt stalled or failed.

    Args:
        secrets: values that must not appear in any message or file.
        bundles: whether a bundle is written for an attempt that did not complete.
        bundle_root: where bundles go; default `cachewatch/bundles` below the user's state directory.
        budget_s: seconds that the evidence may take before the tree is stopped.
        files: the helper process that reads processes and file systems, and writes; default this process.
        note_open: whether each measurement notes the cache files that are open for writing, for a build that is resumed.

    Example:
        >>> PostMortem().cause is None
        True
    """

    def __init__(
        self,
        *,
        secrets: tuple[str, ...] = (),
        bundles: bool = True,
        bundle_root: Path | None = None,
        budget_s: float = EVIDENCE_BUDGET_S,
        files: Files | None = None,
        note_open: bool = False,
    ) -> None:
        self._files = files or InPlace()
        self.cause: Cause | None = None
        self._cancelled: Cause | None = None
        self.evidence: Evidence | None = None
        self.notes: list[str] = []
        self.cut_files: set[str] = set()
        """Files in the cache that the attempt may have cut, once its report is written."""
        self._secrets, self._bundles, self._budget_s = secrets, bundles, budget_s
        self._bundle_root = bundle_root.absolute() if bundle_root else None  # the helper has another working directory
        # Samples since the last growth, each with the bytes discarded by then.
        self._samples: list[tuple[ProcessSample, int]] = []
        self._growth_seen: float | None = None
        # A process closes its files before it is gone, so the last look may see none open: those of the last two count.
        self._note_open, self._open = note_open, deque[set[str]](maxlen=2)
        self._ended = EndedProcesses()

    def sampled(self, watch: Watch) -> None:
        """Note what the processes have used so far; to be called after each measurement.

        Args:
            watch: the attempt.
        """
        if watch.state.rule.last_growth_s != self._growth_seen:
            self._growth_seen = watch.state.rule.last_growth_s
            self._samples.clear()
        sample = self._sample(watch)
        if sample is None:
            return
        self._ended.note(sample)
        self._samples.append((sample, _discarded_bytes(watch)))
        if self._note_open:
            self._open.append(open_for_writing(sample.readings, watch.site.paths))
        if len(self._samples) > _SAMPLES_MAX:
            del self._samples[1:-1:2]

    def _sample(self, watch: Watch) -> ProcessSample | None:
        supervisor = watch.supervisor
        if supervisor is None or supervisor.gone.is_set():
            return None
        try:
            return sample_processes(supervisor.root_pids, include_roots=supervisor.includes_roots)
        except Exception as error:  # noqa: BLE001 - called by the monitor: an error here would end the generation
            self._note(f"the processes could not be sampled: {type(error).__name__}: {error}")
            return None

    def is_busy(self) -> bool:
        """Say whether the tree computed or read between the last two samples; also if that is not known."""
        if len(self._samples) < 2 or not self._samples[-1][0].readings:
            return True
        (before, _), (after, _) = self._samples[-2:]
        passed_s, used = max(after.monotonic_s - before.monotonic_s, 1e-3), after.since(before).values()
        read = [one.io.read_chars for one in used if one.io is not None]
        busy = sum(one.cpu_s for one in used) / passed_s >= _BUSY_CORES or sum(read) / passed_s >= _BUSY_BYTES_PER_S
        return busy or len(read) < len(used)

    def written(self, watch: Watch) -> int | None:
        """Add up what the processes of the tree have written, those included that they have waited for.

        Args:
            watch: the attempt.

        Returns:
            Bytes; None if it is not known of each.
        """
        sample = self._sample(watch)
        counters = [reading.io for reading in sample.readings.values()] if sample is not None else []
        known = [io.written for io in counters if io is not None]
        return sum(known) if known and len(known) == len(counters) else None

    def contradict(self, watch: Watch, verdict: Verdict) -> str | None:
        """Look whether a silent tree is certain to be writing where no growth shows.

        That is into watched files that it fills, or into a directory that a link below a watched one leads to.

        Args:
            watch: the attempt.
            verdict: why it would be stopped.

        Returns:
            What it does; None if it is not seen to do so, which costs no look at the tree if it writes little.
        """
        supervisor, linked = watch.supervisor, watch.state.unfollowed.values()
        assert supervisor is not None
        if not (watch.state.in_place or linked) or not self._writes_much(verdict.pause_s):
            return None
        found = self._collect(watch, verdict, supervisor.root_pids)
        cause = self._find(found) if found is not None else None
        if found is None or cause is None or cause.confidence != "high":
            return None
        written = [file.target for process in found.processes for file in process.files if "w" in file.access]
        through_link = any(is_in(path, directory) for path in written for directory in linked)
        certain = cause.category == "in_place_writes" or (cause.category == "writing_elsewhere" and through_link)
        return cause.summary if certain else None

    def _writes_much(self, pause_s: float) -> bool:
        """Whether the processes that live now have written at the rate of a file that is being filled."""
        before, _ = self._reference(pause_s)
        if before is None:
            return False
        after = self._samples[-1][0]
        written = sum(used.io.written for used in after.since(before).values() if used.io is not None)
        return written >= FILLING_BYTES_PER_S * (after.monotonic_s - before.monotonic_s) > 0

    def before_stop(self, watch: Watch, verdict: Verdict) -> None:
        """Collect the evidence while the tree is still there, frozen if it will be stopped; at most `budget_s` seconds.

        Args:
            watch: the attempt.
            verdict: why it will be stopped, or would have been.
        """
        supervisor = watch.supervisor
        assert supervisor is not None
        # What is left alone is not frozen either: nothing would let it run again.
        stops = watch.job.on_stall == "stop"
        freeze = partial(supervisor.freeze, _FREEZE_S) if stops else lambda: None
        self.evidence = self._collect(watch, verdict, supervisor.root_pids, freeze)

    def conclude(self, watch: Watch, outcome: Outcome) -> Outcome:
        """Name the cause of an attempt that stalled, ran out of time or failed.

        Args:
            watch: the attempt, ended.
            outcome: its outcome.

        Returns:
            The outcome, with a headline; any other outcome is returned unchanged. Both texts have no
            secrets, since it becomes that of a state, an event and a notification.
        """
        self._ended.close()
        if outcome.name == "cancelled":
            self._note_cancelled(watch, outcome)
        if outcome.name == "failed" and self.evidence is None:
            self.evidence = self._collect(watch, None, outcome=outcome) or self._known(watch, None, outcome)
        if (outcome.name == "failed" or is_verdict(outcome.name)) and self.evidence is not None:
            if outcome.listing is not None and (paths := self.open_files):
                outcome = replace(outcome, listing={**outcome.listing, "open": sorted(paths)})
            self.cause = self._find(self.evidence)
            if outcome.name == "failed" and self.cause and self.cause.category in ("never_started", "unknown"):
                self.cause = None  # the message says so already
        if is_verdict(outcome.name) or self.cause is not None:
            outcome = replace(outcome, headline=redact(_headline(watch, outcome, self.cause), self._secrets))
        return replace(outcome, facts=redact(outcome.facts, self._secrets), diagnosis=self.cause)

    def _find(self, evidence: Evidence) -> Cause | None:
        try:
            return find_cause(evidence)
        except Exception as error:  # noqa: BLE001 - a rule's defect must neither hide the outcome nor keep the tree
            self._note(f"no cause was looked for: {type(error).__name__}: {error}")
            return None

    def _note_cancelled(self, watch: Watch, outcome: Outcome) -> None:
        """Keep what is known without a look at the tree, which would have delayed its stop."""
        rule, known = watch.state.rule, self._known(watch, None, outcome)
        self.evidence = replace(self.evidence or replace(known, missing=(_NOT_LOOKED_AT,)), log_tail=known.log_tail)
        pause_s = None if rule.first_write_s is None else rule.pause_s
        self._cancelled = describe_cancelled(
            watch.cancelled_by or "it was not said by whom", outcome.duration_s, pause_s, rule.window_s, known.log_tail
        )

    @property
    def open_files(self) -> set[str]:
        """Cache files that the tree had open for writing when the evidence was collected: they may be cut."""
        if self.evidence is None:
            return set()
        files = [file for process in self.evidence.processes for file in process.files]
        return {file.target for file in files if file.in_cache and file.kind == "file" and "w" in file.access}

    def write_bundle(self, report: Report, output: OutputPump) -> Report:
        """Write the bundle of an attempt that stalled, ran out of time, failed or was cancelled, and remove old ones.

        Args:
            report: of the attempt.
            output: its output, for the end of the log.

        Returns:
            The report, with the diagnosis and the bundle's path, and without secrets in names and paths.
        """
        # Of a tree that died by itself no evidence has open files: those of the last measurements count.
        dirs, self.cut_files = report.cache_dirs, suspected_paths(report) | self.open_files.union(*self._open)
        report = replace(report, diagnosis=self.cause, notes=[*report.notes, *self.notes])
        report = redact_all(report, self._secrets)
        wanted = self._bundles and (report.outcome in ("failed", "cancelled") or is_verdict(report.outcome))
        cause = self.cause or self._cancelled
        if cause is None or self.evidence is None or not wanted:
            return report
        tail = output.tail()
        content = BundleContent(
            report, self.evidence, cause, dirs, output.log_path, tail, len(tail) < output.total_bytes, self._secrets
        )
        try:
            most_s = _CANCELLED_BUNDLE_S if cause is self._cancelled else _BUNDLE_S
            path, told = self._files.run(write_bundle, content, self._bundle_root, timeout_s=most_s)
        except Exception as error:  # noqa: BLE001 - the report is written even if the helper was late, or died
            path, told = None, [f"no bundle was written: {getattr(error, 'strerror', None) or repr(error)}"]
        return replace(report, bundle=path, notes=[*report.notes, *told])

    def _collect(
        self,
        watch: Watch,
        verdict: Verdict | None,
        roots: Sequence[int] = (),
        freeze: Callable[[], object] = lambda: None,
        outcome: Outcome | None = None,
    ) -> Evidence | None:
        """Look at the tree in the helper, which may be late: a busy machine delays it as much as a file system that hangs."""
        late_s = self._budget_s + _SLACK_S
        try:
            known = self._known(watch, verdict, outcome)
            before, discarded = self._reference(known.growth.pause_s)
            # A file that is cut and filled again has as much in the end as before: between the two it had less.
            discarded = [*discarded, known.growth.discarded_bytes]
            known = replace(known, growth=replace(known.growth, discarded_bytes=max(discarded) - min(discarded)))
            look = partial(
                collect_evidence, include_roots=watch.supervisor is not None and watch.supervisor.includes_roots,
                budget_s=self._budget_s, before=before, places=watch.places, secrets=self._secrets,
            )  # fmt: skip
            paths = [Path(path) for path in watch.site.paths]
            found: Evidence = self._files.consult(look, list(roots), paths, known, answer=freeze, timeout_s=late_s)
        except TimeoutError:
            self._note(f"no evidence was collected: the helper that collects it was late ({late_s:g} s)")
        except Exception as error:  # noqa: BLE001 - no error here may keep the tree from being stopped
            self._note(f"no evidence was collected: {type(error).__name__}: {error}")
        else:
            return found
        return None

    def _known(self, watch: Watch, verdict: Verdict | None, outcome: Outcome | None = None) -> Evidence:
        """What is known without a look at the tree: how it grew, what it printed, how it ended."""
        ended = self._ended.told(time.monotonic())
        return Evidence(
            growth=_growth_of(watch, verdict),
            exit_code=outcome.exit_code if outcome else None,
            exit_signal=outcome.signal if outcome else None,
            out_of_memory=outcome.stop.out_of_memory if outcome and outcome.stop else "",
            log_tail=log_text(watch.output.tail(), self._secrets),
            log_kept=kept_text(watch.output.kept(), self._secrets),
            ended=redact_all(ended, self._secrets),
            output_seen=watch.attachment is None,
        )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _reference(self, pause_s: float) -> tuple[ProcessSample | None, list[int]]:
        """The sample for deltas: one from the second half of the pause, which shows the hang and not what led to it.

        And the bytes that were discarded by then, and by each later sample.
        """
        if not self._samples:
            return None, []
        due_s = self._samples[0][0].monotonic_s + 0.45 * pause_s
        late = (at for at, (sample, _) in enumerate(self._samples[:-1]) if sample.monotonic_s >= due_s)
        at = next(late, max(0, (len(self._samples) - 1) // 2))
        return self._samples[at][0], [discarded for _, discarded in self._samples[at:]]


def _growth_of(watch: Watch, verdict: Verdict | None) -> GrowthFacts:
    state, rule, started = watch.state, watch.state.rule, watch.started_s
    growth = state.growth
    kind: str = "failed" if verdict is None else verdict.kind or verdict.status
    if verdict is not None and not watch.site.paths:
        kind = "unwatched"
    return GrowthFacts(
        kind=kind,
        window_s=verdict.window_s if verdict else rule.window_s,
        pause_s=verdict.pause_s if verdict else rule.pause_s,
        bytes_written=growth.bytes_written,
        first_write_s=None if rule.first_write_s is None else rule.first_write_s - started,
        last_growth_s=None if rule.last_growth_s is None else rule.last_growth_s - started,
        touched=state.in_place,
        changed_in_place=state.touched_in_pause,
        discarded_bytes=_discarded_bytes(watch),
        last_path=state.last_path or "",
        unready=watch.serving.unready if watch.serving is not None else "",
    )


def _discarded_bytes(watch: Watch) -> int:
    """Bytes that were written and are gone: with their files, or out of files that were cut."""
    growth, present = watch.state.growth, [sample.bytes_present for sample in watch.state.samples]
    return max(0, growth.bytes_written - growth.bytes_kept, max(present, default=0) - (present or [0])[-1])


def _headline(watch: Watch, outcome: Outcome, cause: Cause | None) -> str:
    if outcome.name == "failed":
        lasted = how_it_ended(outcome.exit_code, None if outcome.signal is None else signal_name(outcome.signal))
        if outcome.exit_code == 0 and cause is not None and cause.category == "generator_failed":
            lasted += "; it reported no error"
    elif outcome.pause_s is None or outcome.kind == "churning":  # files that are written and deleted make no pause
        lasted = how_long(None, outcome.duration_s)
    else:
        lasted = how_long(outcome.kind, outcome.pause_s)
    return make_headline(watch.job.name, outcome.name, cause, lasted)
