"""What follows an attempt, by the category of its cause: again or not, and after which pause. Pure.

`docs/retries.md` has the same table, and `retry` asks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_cachewatch.watching.sections import Diagnosis


@dataclass(frozen=True)
class Following:
    """What follows an attempt of one cause.

    Attributes:
        again: whether it is tried again.
        why: the reason, as the end of a sentence that begins with "because".
        pause_s: the pause before it; None for the policy's back-off.
        outside: whether the cause lies outside the generator, which then fails at the same place as before.
    """

    again: bool
    why: str
    pause_s: float | None = None
    outside: bool = False


def _never(why: str) -> Following:
    return Following(False, why)


def _again(why: str, pause_s: float | None = None) -> Following:
    return Following(True, why, pause_s)


def _outside(why: str, pause_s: float | None = None) -> Following:
    return Following(True, why, pause_s, outside=True)


_COMPILED = "what it has compiled may be broken"

#: The stalls in the order of `postmortem.diagnosis`, then what else a crash may be.
CAUSES: Mapping[str, Following] = {
    "oom_killed": _outside("other programs may leave it more memory"),
    "filesystem_unresponsive": _never("the file system does not answer"),
    "cache_directory_missing": _never("its directory is gone"),
    "stopped_by_signal": _outside("something stopped it, and may not do so again"),
    "read_only_filesystem": _never("a file system stays read-only until a person has mended it"),
    "inodes_exhausted": _never("there are no more inodes than before"),
    "quota_exceeded": _never("the quota is used up as before"),
    "disk_full": _never("the disk is as full as before"),
    "permission_denied": _never("its rights are the same as before"),
    "still_writing": _again("it was writing, and goes on with what is there"),
    "stale_lock": _never("the lock that it waited for has no living holder, and stays until a person removes it"),
    "waiting_for_lock": _outside("the holder of the lock may have ended"),
    "memory_pressure": _outside("other programs may leave it more memory"),
    "waiting_for_device": _outside("a device that hung may answer"),
    "waiting_for_input": _never("no person answers its prompt the next time either"),
    "blocked_on_output_pipe": _again("which process waits first is a matter of chance"),
    "churning": _again("the step that failed may succeed"),
    "in_place_writes": _again("it may have been slow"),
    "writing_elsewhere": _again("nothing shows that it is done there"),
    "reading_checkpoint": _again("its input is read faster a second time"),
    "compute_bound": _again("it may have been slow"),
    "blocked_on_io": _outside("the storage may answer"),
    "waiting_for_network": _outside("its peer may answer"),
    "deadlocked": _again("a deadlock is a matter of chance"),
    "waiting_for_child": _again("its child may end"),
    "generator_failed": _again("what it said names no cause that lasts"),
    "never_started": _again("nothing shows what it waited for"),
    "never_ready": _again("nothing shows what it waited for"),
    "unknown": _again("the cause is not known"),
    "gpu_out_of_memory": _outside("another program may leave it more of the device's memory", pause_s=60),
    "host_out_of_memory": _outside("other programs may leave it more memory"),
    "device_fault": _outside("a device that failed may work after a reset"),
    "collective_timeout": _outside("its peers may answer"),
    "io_error": _outside("the storage may answer"),
    "stale_handle": _outside("the file may be found again"),
    "killed": _outside("something killed it, and may not do so again"),
    "segmentation_fault": _again(_COMPILED),
    "missing_module": _never("a module that is missing is not installed meanwhile"),
    "missing_file": _never("a file that is missing does not come by itself"),
    "access_denied_hub": _never("the hub refuses it until its token or its rights change"),
    "download_error": _outside("the download may succeed"),
    "port_in_use": _outside("the port may be free then", pause_s=60),
    "wrong_architecture": _never("the device is the same"),
    "compile_error": _again(_COMPILED, pause_s=0),
    "assertion": _again("what it asserts may hold"),
    "bad_argument": _never("its command line is the same"),
    "python_error": _again("what it said names no cause that lasts"),
}


def find_following(diagnosis: Diagnosis | None) -> tuple[str, Following]:
    """Find what follows an attempt.

    Args:
        diagnosis: of the attempt; a guess counts as `unknown`.

    Returns:
        The category, and what follows.

    Example:
        >>> from prefect_cachewatch.watching.sections import Diagnosis
        >>> find_following(Diagnosis("disk_full", "the disk is full"))[1].again
        False
    """
    category = diagnosis.category if diagnosis is not None and diagnosis.confidence != "low" else "unknown"
    return category, CAUSES.get(category, CAUSES["unknown"])
