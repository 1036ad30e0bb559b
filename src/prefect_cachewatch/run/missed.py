"""Says whether a completed run wrote a whole cache anew in place of using it, and what differs from the run before.

Of each completed run one record per set of cache directories stays in the user's state directory. If it is lost, less
is known of the next run: no error here fails one. Secrets are hidden before anything is cut, joined, compared or written:
half a secret is not found any more. Standard library only.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import make_own_directory
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.secrets import HIDDEN, redact_all, redact_argv
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.common.units import format_bytes, format_moment
from prefect_cachewatch.measure.growth import Rewriting
from prefect_cachewatch.watching.attempt import Outcome, Watch
from prefect_cachewatch.watching.outcomes import describe_growth
from prefect_cachewatch.watching.sections import CacheMissed

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A smaller cache is an index or a state file, which may well be written in each run.
LEAST_BYTES = 1 << 20
#: The share of the cache that was there, from which on it counts as written anew.
SHARE = 0.5
_AS_MUCH, _GROWN, _WHOLE = 0.2, 1.01, 0.99
_WITHIN_S = 5.0
_UNFINISHED = -1  # in place of the size of a cache: somebody wrote to it and did not complete
_BEGUN = ".begun"  # behind a record's name: a run of it has begun, and has not ended
_RECORD_BYTES, _MANIFEST_BYTES, _RECORDS_MAX = 1 << 20, 64 << 20, 1000
_SHOWN = 3
_VALUE_MAX = 500
_BUILD = "{cache_dir}"
# Variables that are known to decide what a cache's name or contents are; a job's own count as well.
_NAMES = (
    "PATH", "PYTHONPATH", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "USER",
    "XDG_CACHE_HOME",
)  # fmt: skip
_PREFIXES = (
    "TT_", "MESH_DEVICE", "ARCH_NAME", "WH_ARCH_YAML", "VLLM_", "SGLANG_", "SGL_", "TORCH", "PYTORCH_", "TRITON_", "CUDA_",
    "NVIDIA_", "ROCM_", "HIP_", "HF_", "TRANSFORMERS_", "FLASHINFER_", "TRTLLM_", "TLLM_", "OPENVINO_", "OV_", "XLA_", "JAX_",
    "NCCL_", "OMP_", "MKL_",
)  # fmt: skip
# What a launcher sets anew for each run: it decides nothing.
_OF_ONE_RUN = re.compile(r"^TORCHELASTIC_|_(RUN_ID|JOB_ID|SESSION_ID|INSTANCE_ID|COMM_ID|PORT|PID|HOST_IP|ERROR_FILE)$")


@dataclass(frozen=True)
class KnownKey:
    """What is known of a generator's cache beyond its command line."""

    #: What the cache depends on, by name; empty for an unknown generator, whose whole command line is its key.
    values: Mapping[str, str] = field(default_factory=dict)
    #: Versions of its tools, by name.
    versions: Mapping[str, str] = field(default_factory=dict)
    #: Identifier of its container's image; empty without one.
    image_id: str = ""


@dataclass(frozen=True)
class RunFacts:
    """What a run is compared by; secrets are hidden in it."""

    ended_at: str
    cache_dirs: list[str]
    bytes_present: int
    files_present: int
    command: list[str]
    #: What says that it makes the same cache; null where only a manifest is known.
    identity: list[str] | None = None
    env: dict[str, str] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    #: Size and time of the program and its scripts, by path.
    programs: dict[str, str] = field(default_factory=dict)


def look_ahead(files: Files, watch: Watch, secrets: Sequence[str]) -> None:
    """Note that an attempt begins: if it is killed with its run, nobody says any more that it did not complete.

    Args:
        files: the helper process.
        watch: the attempt.
        secrets: values that must not be stored.
    """
    if watch.site.found_paths:  # else they are found while it runs
        with contextlib.suppress(OSError):
            files.run(note_begun, sorted(watch.site.found_paths), tuple(secrets), timeout_s=_WITHIN_S)


def look_back(
    files: Files, watch: Watch, outcome: Outcome, env: Mapping[str, str], secrets: Sequence[str], known: KnownKey,
    *, first: bool,
) -> Outcome:  # fmt: skip
    """Compare a completed attempt with the run before, and leave its own facts for the next one.

    Another attempt that wrote leaves that what lies there is no whole cache any more.

    Args:
        files: the helper process.
        watch: the attempt.
        outcome: how it ended.
        env: the generator's environment.
        secrets: values that must not be stored or said.
        known: what is known of the generator's cache.
        first: whether the run began with it; a further attempt finds what the one before has left.

    Returns:
        The outcome, with `missed` and its sentence if a whole cache was not used.
    """
    found = outcome.rewriting
    if found is None or found.present_bytes < LEAST_BYTES:
        unfinished = outcome.name != "completed" and watch.state.growth.bytes_written
        paths, hidden = sorted(watch.site.found_paths), tuple(secrets)
        with contextlib.suppress(OSError):
            if paths and unfinished:
                files.run(note_unfinished, paths, hidden, timeout_s=_WITHIN_S)
            elif paths:
                files.run(note_ended, paths, hidden, timeout_s=_WITHIN_S)
        return outcome
    facts, programs = facts_of(watch, found, env, secrets, known), _programs(watch.job.command)
    before: RunFacts | None = None
    with contextlib.suppress(OSError):
        cwd = str(watch.job.cwd or os.getcwd())
        before, facts = files.run(exchange_facts, facts, programs, cwd, tuple(secrets), timeout_s=_WITHIN_S)
    found = found._replace(largest=[(redact_all(path, secrets), size) for path, size in found.largest])
    missed = judge(found, before, facts) if first else None
    if missed is None:
        return outcome
    missed = redact_all(missed, secrets)  # what only their being joined shows
    return replace(outcome, missed=missed, message=f"{outcome.message} {missed.sentence}")


def facts_of(
    watch: Watch, found: Rewriting, env: Mapping[str, str], secrets: Sequence[str], known: KnownKey
) -> RunFacts:
    """Collect what a run is compared by; see `look_back`. The directory of a store's build, new each time, is left out."""
    job, own = watch.job, watch.site.own_build

    def told(text: str) -> str:
        return (text.replace(own, _BUILD) if own else text)[:_VALUE_MAX]

    command = [told(word) for word in redact_argv(job.command, secrets)]
    chosen = {name: value for name, value in env.items() if _counts(name) or name in job.env}
    # The value of a Secret block is one whatever it looks like.
    chosen |= {name: HIDDEN for name in job.env_secrets if name in chosen}
    words = [told(word) for word in redact_argv([f"{name}={value}" for name, value in sorted(chosen.items())], secrets)]
    image = [job.container.image, known.image_id] if job.container is not None else []
    values = [f"{name}={value}" for name, value in sorted(known.values.items())]
    # Without its model a generator is as good as unknown: another script may share its directory.
    programs = [os.path.basename(word) for word in _programs(command)] if "model" in known.values else command
    return RunFacts(
        ended_at=format_moment(time.time()),
        cache_dirs=sorted(watch.site.found_paths),
        bytes_present=found.present_bytes,
        files_present=found.present_files,
        command=command,
        identity=redact_all([*image, *programs, *values], secrets),
        env={name: value for name, _, value in (word.partition("=") for word in words)},
        versions=redact_all(dict(known.versions), secrets),
    )


def judge(found: Rewriting, before: RunFacts | None, now: RunFacts) -> CacheMissed | None:
    """Say whether a whole cache was written anew in place of being used. Pure.

    Args:
        found: what became of the files that were there.
        before: of the last completed run; None if none is known.
        now: of this run.

    Returns:
        The finding; None where the cache was used, was not whole, or is another one by its key.

    Example:
        >>> facts = RunFacts("", ["/c"], 1 << 30, 9, ["gen"], ["gen"], {})
        >>> anew = Rewriting(9, 9, 1 << 30, 9, 1 << 30, 9, 1 << 30, 1 << 30)
        >>> judge(anew, facts, facts).how, judge(anew._replace(rewritten_bytes=99), facts, facts)
        ('rewritten', None)
    """
    known_by = _whole_by(found, before)
    if known_by is None or (before is not None and before.identity not in (None, now.identity)):
        return None
    rewritten = found.rewritten_bytes >= SHARE * found.start_bytes
    beside = known_by == "last_run" and abs(found.new_bytes - found.start_bytes) <= _AS_MUCH * found.start_bytes
    if found.start_bytes < LEAST_BYTES or not (rewritten or beside):
        return None
    missed = CacheMissed(
        found_bytes=found.start_bytes,
        found_files=found.start_files,
        written_bytes=found.rewritten_bytes if rewritten else found.new_bytes,
        written_files=found.rewritten_files if rewritten else found.new_files,
        how="rewritten" if rewritten else "beside",
        files=tuple(path for path, _ in found.largest),
        known_by=known_by,
        differs=None if before is None else tuple(_differences(before, now)),
        last_run_at=None if before is None else before.ended_at,
        sentence="",
    )
    return replace(missed, sentence=_describe(missed, with_env=before is not None and before.env is not None))


def _whole_by(found: Rewriting, before: RunFacts | None) -> str | None:
    """Say how it is known that the cache was whole at the start; None if it is not."""
    if before is not None:
        if before.bytes_present == _UNFINISHED:
            return None
        as_left = found.start_bytes >= _WHOLE * before.bytes_present
        return None if not as_left else "manifest" if before.identity is None else "last_run"
    # A cache that was begun and not finished grows, and what was cut in it gets another size.
    as_large = found.present_bytes <= _GROWN * found.start_bytes
    return "sizes" if as_large and found.same_bytes >= SHARE * found.start_bytes else None


def _describe(missed: CacheMissed, *, with_env: bool) -> str:
    names = [for_terminal(os.path.basename(path), 80) for path in missed.files[:_SHOWN]]
    more = f" and {missed.written_files - len(names):,} more" if missed.written_files > len(names) else ""
    what = "what looked like a whole cache" if missed.known_by == "sizes" else "a whole cache"
    how = "was written anew under the same names" if missed.how == "rewritten" else "was written beside it anew"
    since = f"the last run (ended {for_terminal(missed.last_run_at, 40)})" if missed.last_run_at else "the last run"
    if missed.differs is None:
        then = f"What differs from {since} is not known: there is no record of it."
    elif missed.differs:
        then = f"What differs from {since}: {'; '.join(missed.differs)}."
    else:
        known = "command, versions and environment" if with_env else "command (its environment is not known)"
        then = f"Nothing that is known differs from {since}: {known}."
    return (
        f"cache_missed: {what} was there ({describe_growth(missed.found_bytes, missed.found_files)}) and was not used: "
        f"{format_bytes(missed.written_bytes)} {how} ({', '.join(names)}{more}). {then}"
    )


def _differences(before: RunFacts, now: RunFacts) -> Iterator[str]:
    gone, new = ([w for w in one if w not in other] for one, other in _both(before.command, now.command))
    if gone or new:
        told = [f"{lead} {_shown(' '.join(words))}" for lead, words in (("without", gone), ("with", new)) if words]
        yield f"the command is {' and '.join(told)}"
    for name, was, is_now in _changed(before.env, now.env if before.env is not None else None):
        yield f"{for_terminal(name, 80)} was {_shown(was)} and is {_shown(is_now)}"
    for name, was, is_now in _changed(before.versions, now.versions):
        yield f"the version of {for_terminal(name, 80)} was {_shown(was)} and is {_shown(is_now)}"
    for path, was, is_now in _changed(before.programs, now.programs):
        if was and is_now:
            yield f"{for_terminal(path, 200)} was changed"


def _both(one: list[str], other: list[str]) -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]:
    return (one, other), (other, one)


def _changed(
    before: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> Iterator[tuple[str, str | None, str | None]]:
    before, now = before or {}, now or {}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield name, before.get(name), now.get(name)


def _shown(value: str | None) -> str:
    return "not set" if value is None else f"'{for_terminal(value, 80)}'"


def _counts(name: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not _OF_ONE_RUN.search(name)


def _programs(command: Sequence[str]) -> list[str]:
    return [*command[:1], *(word for word in command[1:] if word.endswith((".py", ".sh")))]


def exchange_facts(
    facts: RunFacts, programs: Iterable[str], cwd: str, secrets: Sequence[str] = ()
) -> tuple[RunFacts | None, RunFacts]:
    """Read what is known of the last run with the same cache directories, and leave this one's; for the helper process.

    Args:
        facts: of this run.
        programs: its program and scripts, as in its command.
        cwd: its working directory.
        secrets: values that must not be stored or said, in a path either.

    Returns:
        The facts of the last run, by its record or else by a manifest in the directory; and of this one, with the programs.

    Raises:
        OSError: the record cannot be written.
    """
    name = _record_name(facts.cache_dirs, secrets)
    now = redact_all(replace(facts, programs=dict(_stamps(programs, cwd))), secrets)
    with Opened(make_own_directory(state_home() / "caches")) as here:
        before = _read_facts(here, name, now.cache_dirs) or _manifest_facts(facts.cache_dirs)
        write_entry(here, name, json.dumps(asdict(now)).encode("ascii"))
        _end(here, name)
        _prune(here)
    return redact_all(before, secrets), now


def note_unfinished(cache_dirs: list[str], secrets: Sequence[str] = ()) -> None:
    """Leave in place of the last run's facts that a run has written since and did not complete; for the helper process.

    Args:
        cache_dirs: of the run.
        secrets: values that must not be stored.

    Raises:
        OSError: it cannot be written.
    """
    name = _record_name(cache_dirs, secrets)
    with Opened(make_own_directory(state_home() / "caches")) as here:
        _write_unfinished(here, name, cache_dirs, secrets)
        _end(here, name)


def note_begun(cache_dirs: list[str], secrets: Sequence[str] = ()) -> None:
    """Note that a run begins; if the one before was killed, what it left is no whole cache. As `note_unfinished`."""
    name = _record_name(cache_dirs, secrets)
    with Opened(make_own_directory(state_home() / "caches")) as here:
        try:
            os.close(os.open(name + _BEGUN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=here))
        except FileExistsError:
            _write_unfinished(here, name, cache_dirs, secrets)


def note_ended(cache_dirs: list[str], secrets: Sequence[str] = ()) -> None:
    """Note that a run has ended that says nothing of the cache. As `note_unfinished`."""
    with Opened(make_own_directory(state_home() / "caches")) as here:
        _end(here, _record_name(cache_dirs, secrets))


def _write_unfinished(here: int, name: str, cache_dirs: list[str], secrets: Sequence[str]) -> None:
    facts = redact_all(RunFacts(format_moment(time.time()), cache_dirs, _UNFINISHED, 0, []), secrets)
    write_entry(here, name, json.dumps(asdict(facts)).encode("ascii"))


def _end(here: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name + _BEGUN, dir_fd=here)


def _record_name(cache_dirs: Sequence[str], secrets: Sequence[str]) -> str:
    joined = "\0".join(cache_dirs).encode("utf-8", "surrogateescape")
    shown = slugify(os.path.basename(redact_all(cache_dirs[0], secrets)))
    return f"{shown[:60]}-{binascii.crc32(joined):08x}.json"


def _stamps(programs: Iterable[str], cwd: str) -> Iterator[tuple[str, str]]:
    for word in programs:
        path = shutil.which(word, path=None if "/" not in word else "") or os.path.join(cwd, word)
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                yield os.path.abspath(path), f"{status.st_size} {status.st_mtime_ns}"


def _read_facts(here: int, name: str, cache_dirs: list[str]) -> RunFacts | None:
    try:
        facts = RunFacts(**_read_json(here, name, _RECORD_BYTES))
        return facts if _is_typed(facts) and facts.cache_dirs == cache_dirs else None  # two may share a name
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _is_typed(facts: RunFacts) -> bool:
    sizes, lists = (facts.bytes_present, facts.files_present), (facts.command, facts.identity or [])
    tables = (facts.env or {}, facts.versions, facts.programs)
    return (
        isinstance(facts.ended_at, str)
        and all(type(size) is int for size in sizes)
        and all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in lists)
        and all(isinstance(table, dict) and all(isinstance(one, str) for one in table.values()) for table in tables)
    )


def _manifest_facts(cache_dirs: list[str]) -> RunFacts | None:
    """What the manifest of a published build says, if the only directory is one."""
    try:
        with Opened(os.open(f"{cache_dirs[0]}/.cachewatch", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as meta:
            found = _read_json(meta, "manifest.json", _MANIFEST_BYTES)
            if len(cache_dirs) > 1:
                return None
        totals, argv = found["totals"], redact_argv([str(word) for word in found["argv"]])
        return RunFacts(str(found["finished_at"]), cache_dirs, int(totals["bytes"]), int(totals["files"]), argv)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _read_json(here: int, name: str, limit_bytes: int) -> Any:
    """Read a regular file of a bounded size, so that no pipe in its place is waited for."""
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit_bytes:
            raise ValueError("it is no record")
        return json.loads(file.read(limit_bytes))


def _prune(here: int) -> None:
    names = [name for name in os.listdir(here) if name.endswith(".json")]
    if len(names) > _RECORDS_MAX:
        with contextlib.suppress(OSError):  # another run may be doing the same
            by_age = sorted(names, key=lambda name: os.stat(name, dir_fd=here, follow_symlinks=False).st_mtime)
            for name in by_age[: len(names) - _RECORDS_MAX]:
                os.unlink(name, dir_fd=here)
                _end(here, name)
