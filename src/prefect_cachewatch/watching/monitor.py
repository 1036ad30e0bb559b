"""The monitor: scan, judge, wait for the next deadline, with clock and wait as arguments.

It measures a `CacheDirectories` and feeds the stall rule. It starts and stops no process, so that it serves
a generator under guard as well as work in another task or process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import ScanError, ScanTimeout
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.measure.scanner import MIN_DEADLINE_S
from prefect_cachewatch.measure.space import is_full
from prefect_cachewatch.watching.outcomes import describe_link, describe_shared
from prefect_cachewatch.watching.refusal import Refusal, find_refusal
from prefect_cachewatch.watching.sections import LoggedProgress
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.stall import MIN_GROWTH_BYTES, Measurement, StallRule, Verdict, effective_poll_s

SAMPLES_MAX = 500
_SLICE_S = 0.25  # how soon a wait for a slow scan notices that the generator has ended
_LAST_SCAN_S = 5.0
_SHORTEST_DEADLINE_S = 3.0
_DEATHS_MAX = 3
_RENEWALS_MAX = 4
_LINES_BYTES_PER_S = 4096  # a tree that hangs may still print lines
_SILENT_KINDS = ("no_growth", "never_started", "never_ready")
_SCANS_PER_POLL = 20  # scans take at most a twentieth of the time


@dataclass(frozen=True)
class Sample:
    """One point of the growth curve; `at_s` since the start."""

    at_s: float
    bytes_written: int
    allocated_written: int
    bytes_present: int
    files_present: int
    percent: float | None = None
    """What the output told is done."""


def thin_samples(samples: list[Sample], limit: int = SAMPLES_MAX) -> list[Sample]:
    """Drop every second sample when there are more than `limit`, keeping the first and the last.

    Args:
        samples: in time order.
        limit: the most that are kept.

    Returns:
        The samples, thinned.

    Example:
        >>> [s.at_s for s in thin_samples([Sample(t, 0, 0, 0, 0) for t in range(5)], 4)]
        [0, 2, 4]
    """
    if len(samples) <= limit:
        return samples
    kept = samples[::2]
    return kept if kept[-1] is samples[-1] else [*kept, samples[-1]]


class GrowthMonitor:
    """Measures one attempt and keeps the results.

    Args:
        site: the directories.
        rule: the stall rule.
        clock: monotonic time in seconds.
        baseline: the scan process's answer to `site.begin()`.
        told: the progress that its output told of last.
        busy: whether the tree has computed or read of late, or that is not known.
        as_root: whether it may use what file systems reserve for root, though this user may not.
        written: bytes that the tree has written so far; None if that is not known.
        contradicts: says what speaks against a silence that the tree would be stopped for: that it writes where no growth
            shows. None: nothing does.
    """

    def __init__(
        self,
        site: CacheDirectories,
        rule: StallRule,
        clock: Callable[[], float],
        baseline: Mapping[str, Any],
        told: Callable[[], LoggedProgress | None] = lambda: None,
        busy: Callable[[], bool] = lambda: True,
        as_root: bool = False,
        written: Callable[[], int | None] = lambda: None,
        contradicts: Callable[[Verdict], str | None] = lambda _: None,
    ) -> None:
        self.site, self.rule = site, rule
        self._contradicts = contradicts
        self._written = written
        self._own: tuple[Growth, int | None, float] = (Growth(), 0, rule.started_s)
        """The growth that is the tree's, what it had written by then, and when that was."""
        self._foreign: tuple[int, int] | None = None
        """The counts of bytes that hold growth which is not the tree's."""
        self._renewed: tuple[float | None, int] = (None, 0)
        """When growth was seen last, and how often the window has begun anew since then."""
        self._busy, self._as_root = busy, as_root
        self._space_at_start = baseline.get("space") or ()
        self.growth = Growth(**baseline["growth"])
        self.last_path: str | None = None
        self.problem: str | None = None
        self.touched_in_pause = self._cut_in_pause = False
        self.in_place: tuple[str, ...] = ()
        """Files that changed last in the pause without growing."""
        self.was_full: dict[str, float] = {}
        """Directories whose file system was seen full, and when first, in seconds since the start."""
        self.notes: list[str] = []
        self.warnings: list[str] = []
        """The notes that are told while the work runs."""
        self.verdict = Verdict("growing")
        self._took_s = deque([0.0, 0.0, float(baseline["scan_s"])], maxlen=3)
        for path in site.shared:
            self.warn(describe_shared(path))
        self.samples: list[Sample] = []
        self._clock = clock
        self._told = told
        self._told_count = 0  # what the rule knows of it
        self._offset = Growth()
        self._roots = {root["path"]: root["inode"] for root in baseline["roots"]}
        self._known_errors = set(baseline["errors"])
        self._scan_times: deque[tuple[float, int]] = deque()
        self._scans = 0
        self._deaths = 0  # deaths of scan processes since one of them has scanned
        self._is_new = False  # a new one has just begun: growth before it cannot be told from earlier files
        self._begin_anew = False
        self.unfollowed: dict[str, str] = {}
        """Links to directories that are not watched, and where they lead."""
        self._note_links(baseline)
        self.began_s = rule.started_s
        self._stride = 0.0
        self._add_sample(rule.started_s)

    def run(
        self,
        wait: Callable[[float], bool],
        ended: Callable[[], bool],
        on_sample: Callable[[], None] = lambda: None,
    ) -> Verdict:
        """Measure until the work ends or a verdict is final.

        Args:
            wait: waits at most so many seconds; true once the work has ended.
            ended: says whether the work has ended.
            on_sample: called after each measurement.

        Returns:
            The last verdict; if the work ended, after one last scan, and then it is not final.
        """
        while True:
            now_s = self._clock()
            self._stretch_poll()
            due = max(now_s, self.began_s + self.rule.next_delay_s())
            if wait(due - now_s):
                break
            verdict = self.measure(ended, self._clock() - due)
            on_sample()
            if ended():
                break
            if verdict.final and not self._begins_anew(verdict):
                return verdict
        self.measure(lambda: True)
        on_sample()
        return Verdict("growing", None, self.rule.pause_s, self.rule.window_s)

    @property
    def rewritten(self) -> bool:
        """Whether the tree was seen writing into watched files in this silence."""
        growth_s, times = self._renewed
        return times > 0 and growth_s == self.rule.last_growth_s

    def _begins_anew(self, verdict: Verdict) -> bool:
        """Begin the window anew if the tree is seen writing into the watched files though none grows; a few times at most."""
        times = self._renewed[1] if self.rewritten else 0
        if verdict.kind not in _SILENT_KINDS or times >= _RENEWALS_MAX:
            return False
        why = self._contradicts(verdict)
        if why is None:
            return False
        self._renewed = self.rule.last_growth_s, times + 1
        self.rule.begin_anew(self._clock())
        self.verdict = Verdict("growing", None, self.rule.pause_s, self.rule.window_s)
        pause = format_duration(round(verdict.pause_s, 1))
        self.warn(f"nothing grew for {pause}, and it was not stopped ({times + 1} of {_RENEWALS_MAX}): {why}")
        return True

    def measure(self, ended: Callable[[], bool], late_s: float = 0.0) -> Verdict:
        """Make one scan and judge it.

        Args:
            ended: says whether the work has ended, which cuts the wait for a slow scan short.
            late_s: seconds by which it is late.

        Returns:
            The verdict.
        """
        self.began_s = began_s = self._clock()
        deadline_s = self._deadline_s()
        try:
            answer = self._scan_with_a_spare(deadline_s, ended)
        except ScanError as error:
            self.problem = error.message
            if self._deaths > _DEATHS_MAX:
                raise
            if self._begin_anew:  # the file system is not at fault
                self.rule.pass_over(self._clock())
                return self.verdict
            self.verdict = self.rule.observe_blind(self._clock(), deadline_s, missing=False)
            return self.verdict
        ended_s = self._clock()
        if self._is_new:
            self.rule.pass_over(ended_s)
        else:
            self._deaths = 0
        self._took_s.append(float(answer["scan_s"]))
        bad = [root for root in answer["roots"] if root["missing"] or root["error"]]
        if bad:
            self.problem = f"{bad[0]['path']}: {bad[0]['error']}"
            missing = all(root["missing"] for root in bad)
            self.verdict = self.rule.observe_blind(ended_s, deadline_s, missing=missing)
            return self.verdict
        self._note_replaced(answer)
        self._note_full(answer, self._clock())
        self._note_links(answer)
        if answer.get("by_path"):
            self.note(
                "the file system of the cache directory keeps no inode numbers: its files were followed by their paths, and "
                "one that was renamed counted once more"
            )
        before, self.growth = self.growth, self._offset_growth(Growth(**answer["growth"]))
        if not self._is_the_trees():
            own = self._own[0]
            self.growth = self.growth._replace(
                bytes_written=own.bytes_written,
                allocated_written=own.allocated_written,
                bytes_kept=min(own.bytes_kept, self.growth.bytes_kept),
                allocated_kept=min(own.allocated_kept, self.growth.allocated_kept),
                last_path=None,
            )
        self._scans = int(answer["scan"])
        grown = self.growth.last_path is not None
        if grown:
            self.last_path = self.growth.last_path
            self._scan_times.append((ended_s, self._scans))
        new_errors = [text for text in answer["errors"] if text not in self._known_errors]
        if new_errors and not grown and self.growth.bytes_written == before.bytes_written:
            # The bytes may go to a part that can no longer be read: that is blindness, not silence.
            self.problem = new_errors[0]
            self.verdict = self.rule.observe_blind(ended_s, deadline_s, missing=False)
            return self.verdict
        self.problem = None
        measured, touched = self._measurement(answer, ended_s), self.growth.touched_ns is not None
        # What is cut and filled again comes to nothing, and is no file of a fixed size that is being filled.
        shrank = bool(self.samples) and measured.bytes_present < self.samples[-1].bytes_present
        self._cut_in_pause = not grown and (self._cut_in_pause or shrank)
        self.touched_in_pause = not grown and not self._cut_in_pause and (touched or self.touched_in_pause)
        self.in_place = () if grown else tuple(answer.get("in_place") or self.in_place)
        self.verdict = self.rule.observe(began_s, ended_s, measured, late_s)
        self._add_sample(ended_s)
        return self.verdict

    def note(self, text: str) -> None:
        """Add a sentence to the report's notes, once."""
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        """Add a sentence to the notes that a person should see at once."""
        if text not in self.notes:
            self.warnings.append(text)
            self.notes.append(text)

    def window_scan(self, window_s: float) -> int:
        """The first scan within the last `window_s` that saw growth; else the last one that saw any."""
        if not self._scan_times:
            return self._scans + 1
        limit = self._clock() - window_s
        recent = [scan for at, scan in self._scan_times if at >= limit]
        return recent[0] if recent else self._scan_times[-1][1]

    def _deadline_s(self) -> float:
        # A short window for blindness shortens the deadline too, down to what a loaded machine needs for a small scan.
        limit = self.rule.policy.unresponsive_after_s or self.rule.policy.stall_after_s
        least = min(self.site.scanner.deadline_s, max(limit, _SHORTEST_DEADLINE_S))
        return max(least, 5 * self.site.scanner.last_scan_s)

    def _stretch_poll(self) -> None:
        """Measure a tree that takes long less often, though never less than twice a window.

        This holds for the next wait; the last one is judged by its own poll.
        """
        # A single slow scan shows a busy host and not a large tree.
        longest_s = min(_SCANS_PER_POLL * min(self._took_s), self.rule.window_s / 2)
        self.rule.poll_s = max(effective_poll_s(self.rule.policy), longest_s)

    def _scan_with_a_spare(self, deadline_s: float, ended: Callable[[], bool]) -> dict[str, Any]:
        """Scan; once more with a new process, if the scan process was killed."""
        try:
            return self._scan(deadline_s, ended)
        except ScanError as error:
            if not self._replace_dead(error):
                raise
        try:
            return self._scan(deadline_s + MIN_DEADLINE_S, ended)  # it has to start first
        except ScanError as error:
            self._replace_dead(error)
            raise

    def _scan(self, deadline_s: float, ended: Callable[[], bool]) -> dict[str, Any]:
        scanner = self.site.scanner
        stop_s = self._clock() + deadline_s
        if scanner.pending:
            # It hung before. Its answer is old, but it shows that the file system answers again; the next scan counts.
            self._receive(stop_s, ended)
        self._is_new = self._begin_anew
        if self._begin_anew:
            scanner.send("begin", roots=self.site.paths, ignore=self.site.ignore)
            self._begin_anew = False
            # A new ledger begins at zero: the counts so far are carried over.
            self._offset = self.growth
        else:
            scanner.send("scan")
        return self._receive(stop_s, ended)

    def _receive(self, stop_s: float, ended: Callable[[], bool]) -> dict[str, Any]:
        cut = False
        seen_s = self._clock()
        while True:
            # A slice that lasts far longer than asked: this process, or the whole machine, was suspended.
            now_s = self._clock()
            stop_s += max(0.0, now_s - seen_s - 4 * _SLICE_S)
            seen_s = now_s
            left = stop_s - now_s
            if not cut and ended():
                cut, stop_s = True, min(stop_s, self._clock() + _LAST_SCAN_S)
                left = stop_s - self._clock()
            try:
                return self.site.scanner.receive(max(0.0, min(left, _SLICE_S)))
            except ScanTimeout:
                if left <= 0:
                    raise ScanTimeout("the file system does not answer") from None

    def _replace_dead(self, error: ScanError) -> bool:
        """Replace a scan process that died; raises if one after the other dies."""
        if self.site.scanner.pending or isinstance(error, ScanTimeout) or error.data.get("errno") is not None:
            return False
        self._deaths += 1
        if self._deaths > _DEATHS_MAX:
            raise ScanError(f"{self._deaths} scan processes one after the other ended: {error.message}") from error
        self.note(f"the scan process was started again: {error.message}")
        self.site.restart_scanner()
        self._begin_anew = True
        self._scan_times.clear()  # scans are numbered from the beginning again
        return True

    def _offset_growth(self, growth: Growth) -> Growth:
        if self._offset.bytes_written == 0 and self._offset.allocated_written == 0:
            return growth
        return growth._replace(
            bytes_written=growth.bytes_written + self._offset.bytes_written,
            allocated_written=growth.allocated_written + self._offset.allocated_written,
            bytes_kept=growth.bytes_kept + self._offset.bytes_kept,
            allocated_kept=growth.allocated_kept + self._offset.allocated_kept,
        )

    def _is_the_trees(self) -> bool:
        """Say whether growth is the tree's: what grows only behind links may be written by somebody else.

        Then the tree has written far less than grew, and hardly more than lines: its processes' counters show that.
        """
        growth, (own, before, since_s) = self.growth, self._own
        counts = growth.bytes_written, growth.allocated_written
        if growth.last_path is None:
            return counts != self._foreign
        inside = any(is_in(growth.last_path or "", path) for path in self.site.paths)
        written = None if inside else self._written()
        if not inside and before is not None and written is not None and written >= before:
            grown = growth.bytes_written - own.bytes_written, growth.allocated_written - own.allocated_written
            most = min(0.5 * min(size for size in grown if size > 0), _LINES_BYTES_PER_S * (self._clock() - since_s))
            if written - before < most:
                self._foreign = counts
                return False
        self._own, self._foreign = (growth, written, self._clock()), None
        return True

    def _measurement(self, answer: Mapping[str, Any], ended_s: float) -> Measurement:
        ages = [answer.get(name) for name in ("newest_changed_age_s", "touched_age_s", "overwriting_age_s")]
        if self.site.on_network:
            # Another machine's clock dates the files: growth is dated by when it was seen.
            ages = [None if age is None else 0.0 for age in ages]
        newest, touched, overwriting = ages
        return Measurement(
            self.growth.bytes_written,
            self.growth.allocated_written,
            self.growth.bytes_kept,
            self.growth.allocated_kept,
            newest,
            touched,
            self.growth.bytes_present,
            overwriting,
            self._told_age_s(ended_s),
            self._refusal(answer),
        )

    def _told_age_s(self, ended_s: float) -> float | None:
        told = self._told()
        if told is None or told.count == self._told_count:
            return None
        self._told_count = told.count
        return max(0.0, ended_s - (self.rule.started_s + told.last_at_s))

    def _refusal(self, answer: Mapping[str, Any]) -> Refusal | None:
        """Why the storage takes no write; a tree that computes or reads may yet do without one."""
        if not self.rule.asks_for_space(self.began_s):
            return None
        found = find_refusal(
            self.site.paths,
            answer.get("space") or (),
            self._space_at_start,
            MIN_GROWTH_BYTES,
            as_root=self._as_root,
        )
        return None if found is None or self._busy() else found

    def _note_full(self, answer: Mapping[str, Any], now_s: float) -> None:
        for path, space in zip(self.site.paths, answer.get("space") or (), strict=False):
            if is_full(space):
                self.was_full.setdefault(path, now_s - self.rule.started_s)

    def _note_links(self, answer: Mapping[str, Any]) -> None:
        for link, target in answer.get("linked") or ():
            if link not in self.unfollowed and not any(is_in(target, path) for path in self.site.paths):
                self.unfollowed[link] = target
                self.warn(describe_link(link, target))

    def _note_replaced(self, answer: Mapping[str, Any]) -> None:
        for root in answer["roots"]:
            if self._roots.get(root["path"]) != root["inode"]:
                self._roots[root["path"]] = root["inode"]
                self.notes.append(f"cache directory {root['path']} was replaced by another directory during the run")

    def _add_sample(self, now_s: float) -> None:
        at_s = now_s - self.rule.started_s
        if len(self.samples) > 1 and at_s - self.samples[-2].at_s < self._stride:
            self.samples.pop()  # the newest point is always kept, the one before it only at the stride's distance
        growth, told = self.growth, self._told()
        self.samples.append(
            Sample(
                at_s,
                growth.bytes_written,
                growth.allocated_written,
                growth.bytes_present,
                growth.files_present,
                told.percent if told is not None else None,
            )
        )
        if len(self.samples) > SAMPLES_MAX:
            self.samples = thin_samples(self.samples)
            self._stride = 2 * (at_s / SAMPLES_MAX)
