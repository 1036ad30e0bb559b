"""The watch of a generator whose cache directory is not known: it looks where the tree writes, then watches that.

For its first minute at most, while the generator runs under guard; `places` has the rule. If nothing is found, the
generator runs on, under guard and within its time limit, and no stall is seen. A guess may be wrong: before a silence
becomes a stall, places that were written since are watched too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prefect_cachewatch.common.mounts import is_in, read_mounts
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import CachewatchError, ScanError
from prefect_cachewatch.supervise.open_files import OpenFile, list_open_files
from prefect_cachewatch.supervise.proc import namespace_of
from prefect_cachewatch.supervise.turns import read_each
from prefect_cachewatch.watching.attempt import Watch
from prefect_cachewatch.watching.emptiness import Emptiness, own_files, tree_pids
from prefect_cachewatch.watching.learned import LearnedWindows
from prefect_cachewatch.watching.places import Surroundings, choose_directories
from prefect_cachewatch.watching.stall import StallRule, Verdict

_LOOK_FOR_S = 60.0
_LOOK_EVERY_S = 0.5
# A choice counts at once when it has been the same for this long while more was written.
_SETTLED_S, _SETTLED_BYTES = 8.0, 1 << 20
_PROCESSES_MAX = 64
_HOME_S, _EACH_S = 3.0, 0.2
_LISTED, _LISTING_S, _CLOCK_ERROR_S = 1000, 10.0, 1.0
_SILENCES = ("no_growth", "never_started", "never_ready", "deadlocked")


class FindingWatch(Watch):
    """One attempt without a directory: `site` is open on none, and takes on those that are found.

    Args:
        found: called once with what was found, or that nothing was, in one sentence.
        look_for_s: how long is looked.
        given: as for `Watch`.
    """

    def __init__(
        self,
        *given: Any,
        found: Callable[[str], None] = lambda text: None,
        look_for_s: float = _LOOK_FOR_S,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self._found, self._look_for_s = found, look_for_s
        self._written: dict[str, int] = {}
        self._own: set[str] = set()
        self._counted: dict[str, int] = {}

    def find_directories(self) -> Verdict | None:
        """Look until directories are watched; else the verdict at the end of a run that was not watched: final if stopped."""
        around = self._surroundings()
        chosen: dict[str, int] = {}
        since_s = until_s = self.started_s
        while (now_s := self._clock()) < self.started_s + self._look_for_s:
            if (verdict := self._wait(_LOOK_EVERY_S)) is not None:
                return verdict
            self._look()
            before, chosen = chosen, choose_directories(self._written, around)
            if list(chosen) != list(before):
                since_s = now_s
            settled = sum(chosen.values()) >= _SETTLED_BYTES and now_s - since_s >= _SETTLED_S
            if chosen and settled:
                break
            until_s = now_s
        chosen = chosen or choose_directories(self._new_files(), around)
        why = self._watch_these(chosen, self._clock() - self.started_s) if chosen else self._nothing(until_s)
        if why is None:
            return None
        self._found(
            f"{why}; it runs on under guard, but no stall will be seen: name the directory that grows with --cache-dir DIR"
        )
        self.state.note(f"{why}; no stall could be seen")
        while (verdict := self._wait(self.state.rule.poll_s)) is None:
            pass
        return verdict

    def look_elsewhere(self, verdict: Verdict) -> bool:
        """Watch further directories, if a tree that seems to be silent has written into them since others were found.

        What it writes where nothing can be watched ends its silence all the same.
        """
        if verdict.kind not in _SILENCES or not self.site.paths:
            return False
        self._look()
        since = {path: size - self._counted.get(path, 0) for path, size in self._written.items()}
        others = {path: size for path, size in since.items() if size > 0 and not self._is_watched(path)}
        chosen = choose_directories(others, self._surroundings())
        chosen = {path: size for path, size in chosen.items() if not self._is_watched(path)}
        if sum(chosen.values()) < _SETTLED_BYTES:
            return False
        why = self._take_on(chosen)
        try:
            self._watch_from_now(self.state.rule.learned)
        except CachewatchError:
            return False
        if why is not None:
            self.state.note(why)
        else:
            self._say_what_is_watched(chosen, "since then")
        return True

    def _is_watched(self, path: str) -> bool:
        return any(is_in(path, own) for own in self.site.paths)

    def _sampled(self) -> None:
        super()._sampled()
        if self.site.paths and not self._running().gone.is_set():
            self._look()

    def _wait(self, seconds: float) -> Verdict | None:
        """Wait for the end, and for the time limit, at which the tree is stopped; None if neither has come."""
        supervisor = self._running()
        limit_s = self.stall.max_duration_s if self.job.on_stall == "stop" else None
        left_s = seconds if limit_s is None else min(seconds, self.started_s + limit_s - self._clock())
        if supervisor.gone.wait(max(0.0, left_s)):
            return Verdict("growing")
        if limit_s is None or self._clock() < self.started_s + limit_s:
            return None
        verdict = Verdict("deadline_exceeded", None, 0.0, limit_s)
        if self.serving is None or self.serving.claim_end():
            self.stop_for(verdict)
        return verdict

    def _look(self) -> None:
        pids = tree_pids(self._running())
        self._own |= own_files(pids)
        for file in _files_of(pids[:_PROCESSES_MAX]):
            if file.fd > 2 and file.kind == "file" and file.access in ("w", "rw") and file.target not in self._own:
                at = self._written.get(file.target, 0)
                self._written[file.target] = max(at, file.position_bytes or 0)

    def _new_files(self) -> dict[str, int]:
        """Files at the places that the command names, for a generator that never held one open while it was looked at."""
        nothing = {"growth": {"files_present": 0, "bytes_present": 0}}
        places = Emptiness(self.job, [], str(self.job.cwd or os.getcwd()), nothing)
        return {path: 1 for path in places.new_files(self.started_at) if path not in self._own}

    def _watch_these(self, chosen: Mapping[str, int], after_s: float) -> str | None:
        """Watch directories from now on; returns why that cannot be done."""
        if (why := self._take_on(chosen)) is not None:
            return why
        try:
            self._watch_from_now(None)
        except CachewatchError as error:
            self.site.let_go()
            return _why_not(chosen, error)
        self._say_what_is_watched(chosen, f"in its first {format_duration(float(round(after_s)))}")
        return None

    def _take_on(self, chosen: Mapping[str, int]) -> str | None:
        try:
            self.site.take_on(list(chosen))
        except CachewatchError as error:
            return _why_not(chosen, error)
        ours = [(path, top) for path in self._own for top in self.site.paths if is_in(path, top)]
        self.site.ignore += [f"/{_literal(os.path.relpath(path, top))}" for path, top in ours]  # such as --log
        return None

    def _watch_from_now(self, learned: LearnedWindows | None) -> None:
        """Measure the site's directories with a rule that begins now; raises CachewatchError if they cannot be measured."""
        baseline, before = self.site.begin(), self.state
        if learned is None:
            learned = self._learn(self._older_bytes(baseline))
        rule = StallRule(self.stall, self.started_s, before.rule.phases.warmup, learned)
        rule.carry_on(before.rule, self._clock())
        notes = [*before.notes, *filter(None, [learned.note])]
        self.monitor_state = self.monitor_with(rule, baseline)
        self.monitor_state.notes += dict.fromkeys(notes)
        self._counted = dict(self._written)

    def _older_bytes(self, baseline: Mapping[str, Any]) -> int:
        """Bytes in the directories that were there before the start."""
        try:
            newest = self.site.scanner.request("listing", _LISTING_S, limit=_LISTED)["entries"]
        except ScanError:
            return 0
        began_ns = int((self.started_at - _CLOCK_ERROR_S) * 1e9)
        made = sum(entry["size_bytes"] for entry in newest if entry["changed_ns"] >= began_ns)
        all_made = len(newest) == _LISTED and newest[-1]["changed_ns"] >= began_ns
        return 0 if all_made else max(0, int(baseline["growth"]["bytes_present"]) - made)

    def _say_what_is_watched(self, chosen: Mapping[str, int], when: str) -> None:
        wrote = sum(chosen.values())
        how_much = format_bytes(wrote) if wrote > len(chosen) else "files"
        options = " ".join(f"--cache-dir {for_terminal(path)}" for path in self.site.paths)
        text = f"watching {_names(chosen)}, where it wrote {how_much} {when}"
        self._found(f"{text}; `{options}` says so at once")
        self.state.note(f"no directory was given: {text}")

    def _nothing(self, until_s: float) -> str:
        looked_s = format_duration(float(round(max(1.0, until_s - self.started_s))))
        return f"no cache directory was found: in its first {looked_s} it was seen to write nothing that may be a cache"

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            home=self._home(),
            cwd=str(self.job.cwd or os.getcwd()),
            command=self.job.command,
            env=self._env,
            mounts={mount.mount_point for mount in read_mounts()},
        )

    def _home(self) -> str:
        home = self._env.get("HOME") or os.path.expanduser("~")
        try:
            resolved: str = self.files.run(os.path.realpath, home, timeout_s=_HOME_S)
        except OSError:  # it hangs, so no cache is in it
            return home
        return resolved


def _files_of(pids: Sequence[int]) -> list[OpenFile]:
    """List the open files of processes, but not of those that see other mounts: a path there may be another file here."""
    ours = namespace_of("self", "mnt")

    def look(pid: int) -> tuple[OpenFile, ...]:
        return list_open_files(pid, ())[0] if namespace_of(pid, "mnt") == ours else ()

    return [file for files in read_each(pids, look, each_s=_EACH_S).values() for file in files]


def _literal(path: str) -> str:
    """Write a path as a glob that only it matches."""
    return re.sub(r"([*?[])", r"[\1]", path)


def _names(paths: Iterable[str]) -> str:
    return ", ".join(map(for_terminal, paths))


def _why_not(paths: Iterable[str], error: CachewatchError) -> str:
    return f"it writes in {_names(paths)}, which cannot be watched ({for_terminal(error.message, 1000)})"
