"""Publishes the cache of a job: look whether it exists already, choose the directory, verify, publish, activate.

It joins the store (`publish`) with the guard (`guarded`) for one run of a job, and knows no Prefect. The caller
generates the cache between `begin` and `verify`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from prefect_cachewatch.common.aside import Files, InPlace, look_ahead
from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.config.container import VOLUME_PREFIX
from prefect_cachewatch.errors import CachewatchError, CommandError, GuardError, InputError, StoreBusy, StoreError
from prefect_cachewatch.measure.scan_process import measure
from prefect_cachewatch.store.builds import newest
from prefect_cachewatch.store.checks import Finding, list_paths, refusals, summarize_findings
from prefect_cachewatch.store.contents import Rules, find_broken
from prefect_cachewatch.store.key import PLACEHOLDER, BuildRecipe, expand_placeholder, read_files, read_variables
from prefect_cachewatch.store.layout import MANIFEST, check_cache_name
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.records import BEAT_S, Manifest, change_begun
from prefect_cachewatch.store.store import CacheStore
from prefect_cachewatch.store.writer import StagedBuild
from prefect_cachewatch.supervise.guarded import run_guarded
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.outcomes import describe_growth
from prefect_cachewatch.watching.sections import Publication

_CONTENT_S = 60.0
_CHECK_S = 3600.0
_NOTE_S = 5.0
# A wait for another writer is told of this often, and looked after that often.
_TELL_S, _POLL_S, _MEASURE_S = 60.0, 1.0, 10.0


class Note(Protocol):
    """Takes a sentence for a person."""

    def __call__(self, text: str, *, fault: bool = False) -> None:
        """Say it; `fault` where something went wrong."""


def _unheard(text: str, *, fault: bool = False) -> None:
    pass


class PublishSession(Closing):
    """One run's publication, from the check whether the cache exists to its activation.

    Args:
        job: with `{cache_dir}` in its command or environment.
        policy: the publish policy.
        note: takes what a person should know, and with `fault` what went wrong.
        files: the helper process that checks whether the store's file system answers; default this process.

    Raises:
        InputError: job and policy do not fit together, and nothing was changed; or the store cannot be used.
    """

    def __init__(
        self,
        job: CacheJob,
        policy: PublishPolicy,
        note: Note = _unheard,
        files: Files | None = None,
    ) -> None:
        check_delivery(job, policy)
        self._note, self._files, self._source = note, files or InPlace(), job
        self.policy, self.name = policy, job.name
        self._require_answer()
        self.recipe = BuildRecipe(tuple(job.command), policy.cache_key)
        env = dict(job.env) if job.container is not None else dict(os.environ) | job.env
        self._add_to_key(read_variables(policy.key_env, env, job.env_secrets))
        if policy.key_files:
            paths = [str(path) for path in policy.key_files]
            self._add_to_key(look_ahead(self._files, f"key file {' or '.join(paths)}", read_files, paths))
        if job.container is not None:
            self._add_to_key({"container image": job.container.image})
        self.store = CacheStore(policy.store)
        self.findings: list[Finding] = []
        self.doubts: Sequence[Finding] = ()
        """What the watch over the completed attempt has found: writes that failed, a file system that was full."""
        self.publication: Publication | None = None
        self.cut_files: set[str] = set()
        """Files that the last attempt may have cut, as its watch saw them: absolute paths."""
        self._target: StagedBuild | None = None
        self._writing, self._ended = contextlib.ExitStack(), threading.Event()

    def know_image(self, image_id: str) -> None:
        """Put the identifier of the container's image into the key: under one name it may be another image, and another cache.

        Args:
            image_id: as the engine tells it; empty without a container.
        """
        if image_id:
            self._add_to_key({"container image id": image_id})

    def _add_to_key(self, parts: Mapping[str, str]) -> None:
        self.recipe = replace(self.recipe, cache_key={**self.recipe.cache_key, **parts})

    @property
    def current(self) -> str:
        """The path that consumers open."""
        return self.store.current_path(self.name)

    def last_bytes(self) -> int | None:
        """Return the size of the last published build, by its manifest; None if none is known."""
        try:
            self._require_answer()
            last = newest(build for build in self.store.list_builds(self.name) if build.is_whole)
        except (CachewatchError, OSError):
            return None
        return last.total_bytes if last is not None else None

    def require_space(self, *, clean: bool) -> None:
        """Refuse a generation if there is no room for it, or no store can be there.

        Args:
            clean: whether the build of a killed run is discarded rather than resumed.

        Raises:
            NotEnoughSpace: the store has less than 1.1 times the expected size, or the size of the last build.
            StoreError: its file system lacks what a store needs.
        """
        resumes = None if clean or self.policy.force else self.recipe.key
        self.store.require_space(self.name, expected_bytes=self._source.expected_bytes, resumes=resumes)

    def find_cached(self) -> Publication | None:
        """Check whether the cache exists already: of the same key, and whole by the policy's measure.

        Returns:
            The current build, or one that was published and never current (then its `current` is null); None
            if the cache has to be generated.
        """
        if self.policy.force:
            return None
        found = self.store.find_whole(self.name, self.recipe.key)
        if found is None:
            return None
        done = self._describe("cached", found[1], found[0].path)
        return replace(done, current=self.current) if found[0].state == "active" else done

    def find_or_begin(self, *, clean: bool, limit_s: float | None = None) -> Publication | None:
        """Find the cache whole, or become its writer; wait for a writer of the same key, and take over if it dies.

        Args:
            clean: whether the build of a killed run is discarded rather than resumed.
            limit_s: the longest wait.

        Returns:
            As `find_cached`; None if this run is the writer now: `target` is its build.

        Raises:
            StoreBusy: a writer of another key is at work, or the wait was too long.
            NotEnoughSpace: it has to be generated, and there is no room.
            StoreError: the store cannot be used.
        """
        began_s = told_s = time.monotonic()
        found = self.find_cached()
        while found is None:  # while it waits, only the lock and signs of life are looked at
            self._require_answer()
            self.require_space(clean=clean)
            try:
                self.begin(clean=clean)
            except StoreBusy as busy:
                waited_s = time.monotonic() - began_s
                if self.policy.force or busy.data.get("key") not in (None, self.recipe.key):
                    # Who was waited for may have published before this one came.
                    if (found := self.find_cached()) is None:
                        raise
                    continue
                if limit_s is not None and waited_s > limit_s:
                    raise StoreBusy(
                        f"{busy.message}; this run waited {format_duration(round(waited_s))} for it, as long as an attempt may last"
                    ) from None
                if told_s == began_s or time.monotonic() - told_s >= _TELL_S:
                    told_s = time.monotonic()
                    self._note(self._describe_wait(busy, waited_s))
                time.sleep(_POLL_S)
                continue
            # Its last writer may have published between our look and the lock.
            if (found := self.find_cached()) is None:
                return None
            if not self.target.adopted:
                self.target.discard()
            self._end_writing()
        return found

    def _describe_wait(self, busy: StoreBusy, waited_s: float) -> str:
        path, there = f"{self.store.root}/{self.name}/builds/{busy.data.get('build')}", ""
        with contextlib.suppress(OSError, CachewatchError):
            seen = self._files.run(measure, [path], self._source.ignore, timeout_s=_MEASURE_S)
            there = f", {describe_growth(seen['bytes'], seen['files'])} so far"
        holder = busy.data.get("holder", "another process")
        return f"the cache is being generated by {holder}{there}: waiting for it, {format_duration(round(waited_s))} until now"

    def begin(self, *, clean: bool) -> None:
        """Take the writer's lock, and choose the directory to write to.

        Args:
            clean: whether the build of a killed run is discarded rather than resumed.

        Raises:
            StoreBusy: another publisher holds the lock.
            StoreError: the store cannot be used.
        """
        self._require_answer()
        adopt = not clean and not self.policy.force
        self._target = self._writing.enter_context(self.store.begin(self.name, self.recipe, adopt=adopt))
        beating = threading.Thread(target=self._beat, args=(self._target.record,), name="store beat", daemon=True)
        self._ended.clear()
        beating.start()
        self._writing.callback(beating.join, _NOTE_S)
        self._writing.callback(self._ended.set)
        if not self._target.adopted:
            self._target.note_growth()

    def _beat(self, record: str) -> None:
        """Show writers on other hosts that this one lives, by the date of the build's record."""
        while not self._ended.wait(BEAT_S / 3):
            with contextlib.suppress(OSError):  # a storage that hangs or refuses is told elsewhere
                self._files.run(os.utime, record, timeout_s=BEAT_S)

    def told(self) -> tuple[CacheJob, dict[str, str]]:
        """Return the job with the directory that it writes to, and the variables to add to its environment."""
        self._note(f"generating build {self.target.build_id} at {self.target.path}")
        # A Secret block's value takes precedence over the same variable in env.
        return self.job, {name: value for name, value in self.env.items() if name not in self._source.env_secrets}

    def resume(self, *, clean: bool, window_s: float) -> str:
        """Clean up after a killed run in the directory; no process may be writing there any more.

        Args:
            clean: remove all of it.
            window_s: the stall window, to find the files that that run may have cut.

        Returns:
            What was removed, see `cleaned`.
        """
        if self.target.adopted and clean:
            self.target.clean()
            self.target.note_growth()
        elif self.target.adopted:
            self._remove_suspects(window_s, ())
        return self.cleaned

    @property
    def target(self) -> StagedBuild:
        """The build that is being written, after `begin`."""
        assert self._target is not None, "begin() comes first"
        return self._target

    @property
    def job(self) -> CacheJob:
        """The job as it is run: it knows its directory, and the build's directory is the first that must grow."""
        path, source = self.target.path, self._source
        named = [Path(found) for found in expand_placeholder(map(str, source.cache_dirs), path)]
        return source.model_copy(
            update={
                "command": expand_placeholder(source.command, path),
                "cache_dirs": list(dict.fromkeys([Path(path), *named])),
                "env": self.env,
            }
        )

    @property
    def env(self) -> dict[str, str]:
        """The job's environment with the build's path in it."""
        path = self.target.path
        return {name: value.replace(PLACEHOLDER, path) for name, value in self._source.env.items()}

    def prepare_retry(self, window_s: float) -> None:
        """Remove what the attempt that has just ended may have cut.

        Args:
            window_s: the stall window.

        Raises:
            StoreError: what may be cut cannot be removed, or the file system does not answer.
        """
        self._require_answer()
        self._remove_suspects(window_s, self._cut_below())

    @property
    def cleaned(self) -> str:
        """What clean-ups have removed from the build so far, as a sentence; empty if nothing."""
        removed = sorted(self.target.removed)
        if not removed:
            return ""
        return f"The clean-up before this attempt removed what may have been cut: {list_paths(removed)}."

    def leave(self) -> None:
        """Note, for a run that resumes the build, the files that the last attempt may have cut, by its watch."""
        with contextlib.suppress(OSError):  # less is known then: only the change times remain
            self._files.run(
                change_begun, self.target.record, None, {"reported": sorted(self._cut_below())}, timeout_s=_NOTE_S
            )

    def _cut_below(self) -> set[str]:
        prefix = self.target.path + "/"
        return {path.removeprefix(prefix) for path in self.cut_files if path.startswith(prefix)}

    def verify(self, env: Mapping[str, str], secrets: Sequence[str] = ()) -> list[Finding]:
        """Check the build; run the user's command last, and only if no other check refuses the build.

        Args:
            env: whole environment of the check command.
            secrets: values that must not appear in a message.

        Returns:
            The findings that forbid publishing; `findings` has the warnings too.

        Raises:
            StoreError: the build is gone, or its file system does not answer.
        """
        self._require_answer()
        doubts = self._judged_doubts()
        self.findings = self.target.check(self.policy, doubts)
        if self.policy.check_command and not refusals(self.findings):
            failed = self._run_check(env, secrets)
            # Checked again: the command may have left files in the build.
            self.findings = self.target.check(self.policy, [*doubts, *failed])
        return refusals(self.findings)

    def _judged_doubts(self) -> list[Finding]:
        if self.policy.on_failed_writes == "ignore":
            return []
        return [replace(doubt, severity=self.policy.on_failed_writes) for doubt in self.doubts]

    def refuse(self, message: str) -> Publication:
        """Note that the build is refused.

        Args:
            message: the reason, in one sentence.

        Returns:
            The publication with the place of the build.
        """
        where = self.target.refuse(self.findings, message)
        self._prune_quarantine()
        return self._describe("verification_failed", None, self.target.path, quarantine=where)

    def publish(self, growth: Mapping[str, Any] | None = None) -> Publication:
        """Digest the build and write its manifest.

        Args:
            growth: the watch's summary, see `growth_summary`.

        Returns:
            The publication.

        Raises:
            StoreError: the build changed meanwhile or could not be written; it stays unfinished.
        """
        manifest = self.target.publish(self.policy, findings=self.findings, growth=growth)
        return self._describe("published", manifest, self.target.path)

    def activate(self, publication: Publication) -> Publication:
        """Make the published build current.

        Returns:
            The publication with the build that it replaced.
        """
        written = self._target is not None and self._target.build_id == publication.build_id
        writer = self._target if written else None
        switched = self.store.activate(self.name, publication.build_id, forgive=False, writer=writer)
        self.publication = replace(publication, current=self.current, previous=switched.previous)
        return self.publication

    def unfinished(self) -> Publication:
        """Describe the build as it is left when the generation fails; the next run of the same key resumes it."""
        return self._describe("unfinished", None, self.target.path)

    def close(self) -> None:
        """Release the writer's lock."""
        self._end_writing()

    def _end_writing(self) -> None:
        self._writing.close()
        self._target = None

    def _require_answer(self) -> None:
        """Stop here if the file system hangs: a read or write in this process could not be interrupted."""
        path = self.policy.store
        try:
            with contextlib.suppress(OSError):  # reported in another place
                look_ahead(self._files, f"cache store {path}", os.statvfs, str(path))
        except InputError as error:
            raise StoreError(error.message) from error

    def _find_broken(self) -> set[str]:
        """Read the files' contents, apart, since one file may hang where the file system answers; if so, time decides alone."""
        rules = Rules.of(self.policy)._replace(contents=self.policy.on_broken_content == "refuse")
        try:
            found: set[str] = self._files.run(find_broken, self.target.path, rules, timeout_s=_CONTENT_S)
        except (OSError, StoreError) as error:
            why = f"no answer within {format_duration(_CONTENT_S)}" if isinstance(error, TimeoutError) else error
            self._note(f"the contents of the build's files could not be checked before resuming: {why}", fault=True)
            return set()
        return found

    def _remove_suspects(self, window_s: float, reported: Collection[str]) -> None:
        broken = self._find_broken()
        removed, notes = self.target.prepare_resume(self.policy, window_s=window_s, reported=reported, broken=broken)
        if removed:
            names = list_paths([suspect.path for suspect in removed])
            notes = [f"removed what may be cut, before resuming: {names}", *notes]
        for note in notes:
            self._note(note, fault=True)

    def _prune_quarantine(self) -> None:
        try:
            problems = self.store.prune_quarantine(self.name)
        except StoreError as error:
            problems = [error.message]
        said = [f"old refused builds were not all removed: {problem}" for problem in problems]
        self.findings = [*self.findings, *(Finding("quarantine_not_pruned", text, "warn") for text in said)]

    def _run_check(self, env: Mapping[str, str], secrets: Sequence[str]) -> list[Finding]:
        assert self.policy.check_command is not None
        command = expand_placeholder(self.policy.check_command, self.target.path)
        cwd = str(self._source.cwd) if self._source.cwd else None
        try:
            result = run_guarded(command, env={**env, **self.env}, cwd=cwd, timeout_s=_CHECK_S)
        except (CommandError, GuardError) as error:
            return [Finding("check_command_failed", f"the check command could not be run: {error.message}")]
        if result.ok:
            return []
        last = next((line for line in reversed(result.tail) if line.strip()), "")
        said = f" ({for_terminal(redact(last.strip(), secrets), 300)})" if last else ""
        return [Finding("check_command_failed", f"the check command {result.describe()}{said}")]

    def _describe(
        self, status: str, manifest: Manifest | None, path: str, *, quarantine: str | None = None
    ) -> Publication:
        tree = self._target.checked if self._target else None
        total_bytes = manifest.total_bytes if manifest else tree.total_bytes if tree else 0
        total_files = manifest.total_files if manifest else len(tree.files) if tree else 0
        self.publication = Publication(
            status=status,
            key=self.recipe.key,
            build_id=manifest.build_id if manifest else self.target.build_id,
            path=path,
            manifest=path + MANIFEST if manifest else None,
            quarantine=quarantine,
            total_bytes=total_bytes,
            total_files=total_files,
            findings=tuple(
                {"category": found.category, "severity": found.severity, "message": found.message}
                for found in self.findings
            ),
        )
        return self.publication


def check_delivery(job: CacheJob, policy: PublishPolicy) -> None:
    """Check that a job and a publish policy fit together, without looking at the machine.

    Args:
        job: the job.
        policy: the publish policy.

    Raises:
        InputError: they do not fit together.

    Example:
        >>> check_delivery(CacheJob(name="c", command=["gen", "{cache_dir}"]), PublishPolicy(store="/s"))
    """
    check_cache_name(job.name)
    if job.ready.kind != "exit" and job.ready.then == "leave_running":
        raise InputError(
            "a server that is left running may go on writing into its cache, and a published cache never changes: "
            "have it stopped when it is ready (--then stop, ready.then), or publish nothing (no --store, no publish)"
        )
    told = [*job.command, *job.env.values()]
    for path in map(str, job.cache_dirs):
        if path.startswith(VOLUME_PREFIX):
            raise InputError(
                f"cache directory {path} is in a container's volume, which is not published: publish from a host directory"
            )
    if not any(PLACEHOLDER in word for word in told):
        raise InputError(
            f"the generator is not told where to write: put {PLACEHOLDER} where its command or environment names the "
            f"cache directory, as in --env TT_CACHE_PATH={PLACEHOLDER}"
        )


def describe_refusal(name: str, refused: Sequence[Finding]) -> str:
    """Describe in one sentence that the checks refused a build.

    Example:
        >>> describe_refusal("c", [Finding("empty_cache", "the build has 0 B")])
        "The cache 'c' was generated but not published: the build has 0 B."
    """
    return f"The cache '{for_terminal(name)}' was generated but not published: {summarize_findings(refused)}."


def describe_publication(name: str, done: Publication) -> str:
    """Describe in one sentence the publication of a good build.

    Example:
        >>> describe_publication("c", Publication("cached", "k", "b", "/s/c/builds/b", total_bytes=5, total_files=1))
        "The cache 'c' is whole already: build b, 5 B in 1 file."
    """
    size = f"build {done.build_id}, {describe_growth(done.total_bytes, done.total_files)}"
    if done.status == "cached":
        return f"The cache '{for_terminal(name)}' is whole already: {size}."
    where = f"; current at {for_terminal(done.current, 1000)}" if done.current else "; not activated"
    return f"The cache '{for_terminal(name)}' was published: {size}{where}."


def growth_summary(outcome: Outcome, attempts: int) -> dict[str, Any]:
    """Summarise for the manifest how a build grew.

    Args:
        outcome: outcome of the last attempt.
        attempts: number of attempts.

    Returns:
        Numbers; times in seconds since the start of the last attempt.
    """
    return {
        "attempts": attempts,
        "started_at_s": round(outcome.started_at, 3),
        "duration_s": round(outcome.duration_s, 3),
        "bytes_written": outcome.growth.bytes_written,
        "allocated_written": outcome.growth.allocated_written,
        "first_write_s": outcome.first_write_s,
        "last_growth_s": outcome.last_growth_s,
        "longest_pause_s": outcome.longest_pause_s,
    }
