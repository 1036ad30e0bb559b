"""What follows an attempt, by the category of its cause: again or not, after which pause, and what changes. Pure.

`docs/retries.md` has the same table; `retry` asks it, and `preparation` makes the changes. Standard library only, since
`cachewatch exec` says it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import TYPE_CHECKING

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect_cachewatch.config import CauseRetry, Change, RetryPolicy
    from prefect_cachewatch.watching.sections import Diagnosis

#: Variables that name a directory of compiled kernels, and which it is if the variable is not set.
KERNEL_CACHES: Mapping[str, str] = {
    "TT_METAL_CACHE": "$HOME/.cache/tt-metal-cache",
    "TRITON_CACHE_DIR": "$HOME/.triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": "$TMPDIR/torchinductor_$USER",
    "TORCH_EXTENSIONS_DIR": "$HOME/.cache/torch_extensions",
    "CUDA_CACHE_PATH": "$HOME/.nv/ComputeCache",
}
XET_OFF = "HF_HUB_DISABLE_XET"
_XET = re.compile(r"(?i)(?:\b|_)xet(?:\b|_)")
_SHOWN = 200


@dataclass(frozen=True)
class Remedy:
    """What follows an attempt of one cause.

    Attributes:
        again: whether it is tried again.
        why: the reason, as the end of a sentence that begins with "because".
        change: what is changed before the next attempt, as far as it can be.
        pause_s: the pause before it; None for the policy's back-off.
        outside: whether the cause lies outside the generator, which then fails at the same place as before.
    """

    again: bool
    why: str
    change: tuple[Change, ...] = ()
    pause_s: float | None = None
    outside: bool = False


def _never(why: str) -> Remedy:
    return Remedy(False, why)


def _again(why: str, *change: Change, pause_s: float | None = None) -> Remedy:
    return Remedy(True, why, change, pause_s)


def _outside(why: str, *change: Change, pause_s: float | None = None) -> Remedy:
    return Remedy(True, why, change, pause_s, outside=True)


_COMPILED = "what it has compiled may be broken"

#: The stalls in the order of `postmortem.diagnosis`, then what else a crash may be.
REMEDIES: Mapping[str, Remedy] = {
    "oom_killed": _outside("other programs may leave it more memory", "another_worker"),
    "filesystem_unresponsive": _never("the file system does not answer"),
    "cache_directory_missing": _never("its directory is gone"),
    "stopped_by_signal": _outside("something stopped it, and may not do so again"),
    "read_only_filesystem": _never("a file system stays read-only until a person has mended it"),
    "inodes_exhausted": _never("there are no more inodes than before"),
    "quota_exceeded": _never("the quota is used up as before"),
    "disk_full": _never("the disk is as full as before"),
    "permission_denied": _never("its rights are the same as before"),
    "still_writing": _again("it was writing, and goes on with what is there"),
    "stale_lock": _outside("the lock that it waited for has no living holder", "unlock", pause_s=0),
    "waiting_for_lock": _outside("the holder of the lock may have ended"),
    "memory_pressure": _outside("other programs may leave it more memory", "another_worker"),
    "waiting_for_device": _outside("a device that hung may answer", "reset", "kernel_cache", "another_worker"),
    "waiting_for_input": _never("no person answers its prompt the next time either"),
    "blocked_on_output_pipe": _again("which process waits first is a matter of chance"),
    "churning": _again("the step that failed may succeed", "clean"),
    "in_place_writes": _again("it may have been slow"),
    "writing_elsewhere": _again("nothing shows that it is done there"),
    "reading_checkpoint": _again("its input is read faster a second time"),
    "compute_bound": _again("it may have been slow", "reset"),
    "blocked_on_io": _outside("the storage may answer", "another_worker"),
    "waiting_for_network": _outside("its peer may answer", "no_xet"),
    "deadlocked": _again("a deadlock is a matter of chance", "reset"),
    "waiting_for_child": _again("its child may end", "reset"),
    "generator_failed": _again("what it said names no cause that lasts", "reset"),
    "never_started": _again("nothing shows what it waited for", "reset"),
    "never_ready": _again("nothing shows what it waited for", "reset"),
    "unknown": _again("the cause is not known", "reset"),
    "gpu_out_of_memory": _outside("another program may leave it more of the device's memory", "reset", "another_worker", pause_s=60),
    "host_out_of_memory": _outside("other programs may leave it more memory", "another_worker"),
    "device_fault": _outside("a device that failed may work after a reset", "reset", "kernel_cache", "another_worker"),
    "collective_timeout": _outside("its peers may answer", "reset"),
    "io_error": _outside("the storage may answer", "another_worker"),
    "stale_handle": _outside("the file may be found again", "another_worker"),
    "killed": _outside("something killed it, and may not do so again"),
    "segmentation_fault": _again(_COMPILED, "reset", "kernel_cache"),
    "missing_module": _never("a module that is missing is not installed meanwhile"),
    "missing_file": _never("a file that is missing does not come by itself"),
    "access_denied_hub": _never("the hub refuses it until its token or its rights change"),
    "download_error": _outside("the download may succeed", "no_xet"),
    "port_in_use": _outside("the port may be free then", "another_worker", pause_s=60),
    "wrong_architecture": _never("the device is the same"),
    "compile_error": _again(_COMPILED, "kernel_cache", pause_s=0),
    "assertion": _again("what it asserts may hold", "reset"),
    "bad_argument": _never("its command line is the same"),
    "python_error": _again("what it said names no cause that lasts", "reset"),
}  # fmt: skip


def find_remedy(diagnosis: Diagnosis | None, by_cause: Mapping[str, CauseRetry]) -> tuple[str, Remedy]:
    """Find what follows an attempt.

    Args:
        diagnosis: of the attempt; a guess counts as `unknown`.
        by_cause: what the user wants to be different.

    Returns:
        The category, and its remedy.

    Example:
        >>> from prefect_cachewatch.watching.sections import Diagnosis
        >>> find_remedy(Diagnosis("disk_full", "the disk is full"), {})[1].again
        False
    """
    category = diagnosis.category if diagnosis is not None and diagnosis.confidence != "low" else "unknown"
    remedy = REMEDIES.get(category, REMEDIES["unknown"])
    if diagnosis is not None and remedy.again and any(map(_XET.search, (diagnosis.summary, *diagnosis.evidence))):
        remedy = replace(
            remedy, why="the download by xet failed", change=tuple(dict.fromkeys((*remedy.change, "no_xet")))
        )
    own = by_cause.get(category)
    if own is None:
        return category, remedy
    again = remedy.again if own.again is None else own.again
    return category, replace(
        remedy,
        again=again,
        why=remedy.why if again == remedy.again else f"retry.by_cause.{category} says so",
        change=remedy.change if own.change is None else tuple(dict.fromkeys(own.change)),
        pause_s=remedy.pause_s if own.pause_s is None else own.pause_s,
    )


def check_causes(retry: RetryPolicy) -> None:
    """Refuse a policy about a cause that does not exist; raises InputError."""
    from prefect_cachewatch.common.inputs import nearest  # noqa: PLC0415 - brings pydantic along

    for category in retry.by_cause:
        if category not in REMEDIES:
            raise InputError(f"retry.by_cause: {category} is no cause{nearest(category, REMEDIES)}")


@dataclass(frozen=True)
class Means:
    """What can be changed for a run.

    Attributes:
        env: the generator's environment.
        cache_dirs: the watched directories, resolved.
        in_container: whether the generator runs in a container, which sees no new directory of this host.
        before_retry: the command that resets a device, if there is one.
        stale_locks: lock files in the cache directories that no living process holds.
        can_clean: whether it is known what the attempt has made.
        other_workers: whether the run may be handed back to its work pool.
    """

    env: Mapping[str, str]
    cache_dirs: Sequence[str]
    in_container: bool = False
    before_retry: Sequence[str] | None = None
    stale_locks: Sequence[str] = ()
    can_clean: bool = False
    other_workers: bool = False


@dataclass(frozen=True)
class Step:
    """One change before the next attempt, in words; `names` are the variables or lock files that it is about."""

    change: Change
    words: str
    names: tuple[str, ...] = ()


def choose_steps(wanted: Sequence[Change], means: Means) -> tuple[Step, ...]:
    """Choose among the changes that are wanted those that can be made.

    Args:
        wanted: the changes.
        means: what can be changed.

    Returns:
        The steps, in the order in which they are made.

    Example:
        >>> choose_steps(("no_xet", "reset"), Means({}, []))
        (Step(change='no_xet', words='with HF_HUB_DISABLE_XET=1', names=('HF_HUB_DISABLE_XET',)),)
    """
    found: list[Step] = []
    locks = tuple(means.stale_locks)
    if "another_worker" in wanted and means.other_workers:
        found.append(Step("another_worker", "by any free worker of the pool"))
    if "unlock" in wanted and locks:
        shown = ", ".join(for_terminal(path, _SHOWN) for path in locks[:3]) + (", ..." if len(locks) > 3 else "")
        found.append(Step("unlock", f"without the stale lock {shown}", locks))
    if "clean" in wanted and means.can_clean:
        found.append(Step("clean", "without the files of this attempt"))
    if "kernel_cache" in wanted and (names := _kernel_caches(means)):
        found.append(Step("kernel_cache", f"with an empty kernel cache ({', '.join(names)})", names))
    if "no_xet" in wanted and means.env.get(XET_OFF, "").upper() not in ("1", "ON", "YES", "TRUE"):
        found.append(Step("no_xet", f"with {XET_OFF}=1", (XET_OFF,)))
    if "reset" in wanted and means.before_retry:
        found.append(Step("reset", f"after {for_terminal(' '.join(means.before_retry), _SHOWN)}"))
    return tuple(found)


def _kernel_caches(means: Means) -> tuple[str, ...]:
    """The variables that may name another directory: what is written there is neither watched nor published."""
    if means.in_container or not means.cache_dirs:
        return ()
    known = {"TMPDIR": "/tmp", **means.env}  # noqa: S108 - the default of those who read it

    def is_watched(name: str) -> bool:
        directory = means.env.get(name) or Template(KERNEL_CACHES[name]).safe_substitute(known)
        return any(is_in(path, directory) or is_in(directory, path) for path in means.cache_dirs)

    return tuple(name for name in KERNEL_CACHES if not is_watched(name))
