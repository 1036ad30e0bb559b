"""Causes: what one is, and for each category what a person does next and whether it is tried again. Pure.

The only table of its kind: message, page, artifact, notification, retry and early stop read it. `docs/causes.md` is made
from it, and its categories are a contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Known:
    """What is known of a category.

    Attributes:
        next_step: what a person does.
        again: whether it is tried again.
        why: the reason, as the end of a sentence that begins with "because".
        pause_s: the pause before it; None for the policy's back-off.
        outside: whether the cause lies outside the generator, which then fails at the same place as before.
        certain: whether a stall of this cause may be certain (`Cause.is_final`): its window need not be waited for then.
        seen: whether the summary is what was seen and no reading of it, so that it is never only probable.
    """

    next_step: str
    again: bool
    why: str
    pause_s: float | None = None
    outside: bool = False
    certain: bool = False
    seen: bool = False


def _never(next_step: str, why: str, *, certain: bool = False) -> Known:
    return Known(next_step, False, why, certain=certain)


def _again(next_step: str, why: str, pause_s: float | None = None, *, certain: bool = False) -> Known:
    return Known(next_step, True, why, pause_s, certain=certain)


def _seen(next_step: str, why: str) -> Known:
    return Known(next_step, True, why, seen=True)


def _outside(next_step: str, why: str, pause_s: float | None = None) -> Known:
    return Known(next_step, True, why, pause_s, outside=True)


#: In the order of precedence of the rules; then those that the last output of a crash alone can tell.
CAUSES: Mapping[str, Known] = {
    "oom_killed": _outside(
        "Raise the memory limit, convert fewer layers at a time, or run fewer generations on this machine.",
        "other programs may leave it more memory"),
    "filesystem_unresponsive": _never(
        "Check the server or daemon behind the mount (dmesg, nfsstat, the FUSE process). Remount it before the next attempt: "
        "nothing can be said about the cache, and no process in it can be killed, until it answers.",
        "the file system does not answer"),
    "cache_directory_missing": _never(
        "Find what removed, renamed or unmounted it (a clean-up job, tmpfiles, a second run), then start again.",
        "its directory is gone"),
    "stopped_by_signal": _outside(
        "Find who stopped it: a person, job control, a checkpointer, a debugger or strace that is attached (end that), or a "
        "background job that reads its terminal (start it with stdin from /dev/null).",
        "something stopped it, and may not do so again"),
    "read_only_filesystem": _never(
        "A file system that turns read-only by itself has met an error: read dmesg, check the disk, remount it rw.",
        "a file system stays read-only until a person has mended it"),
    "inodes_exhausted": _never(
        "Remove directories of many small files (df -i shows the file system), or move the cache to one with more inodes.",
        "there are no more inodes than before"),
    "quota_exceeded": _never(
        "Remove old files of this user (quota -s), or have the quota raised.",
        "the quota is used up as before"),
    "disk_full": _never(
        "Free space (old caches first), or use a larger file system; look at TMPDIR, /dev/shm and the home directory too (df -h).",
        "the disk is as full as before"),
    "permission_denied": _never(
        "Look at owner and mode of what it names, and as whom it runs.",
        "its rights are the same as before"),
    "still_writing": _again(
        "Raise --max-duration, or find out why it is slower than expected (storage, CPU, other generations beside it).",
        "it was writing, and goes on with what is there"),
    "stale_lock": _never(
        "Remove that lock (rm; a directory with rm -r): a run that was killed has left it behind.",
        "the lock that it waited for has no living holder, and stays until a person removes it"),
    "waiting_for_lock": _outside(
        "See what the holder does (lslocks, fuser; also on other hosts and in other containers that share the directory). If it "
        "is left over from another run, end it. Two runs on one cache directory exclude each other.",
        "the holder of the lock may have ended"),
    "memory_pressure": _outside(
        "Give it more memory (the limit of its container or slice), convert fewer layers at a time, or run less beside it.",
        "other programs may leave it more memory"),
    "waiting_for_device": _outside(
        "Reset the device (for Tenstorrent: tt-smi -r), look for its driver in dmesg, and see that no other process uses it "
        "(fuser -v).",
        "a device that hung may answer"),
    "waiting_for_input": _never(
        "A prompt (licence, overwrite, password) stands unanswered: give the option that answers it, or start the generator "
        "with stdin from /dev/null.",
        "no person answers its prompt the next time either"),
    "blocked_on_output_pipe": _again(
        "Make the reader of that pipe read on, or send the output to a file. subprocess.Popen(stdout=PIPE) with wait() instead "
        "of communicate() is the usual fault.",
        "which process waits first is a matter of chance"),
    "churning": _again(
        "Look for a step that fails and starts over (the log), or for temporary files that are never renamed.",
        "the step that failed may succeed"),
    "in_place_writes": _again(
        'Not a hang: watch modification times too (--progress-by any, StallPolicy(progress="any")).',
        "it may have been slow"),
    "writing_elsewhere": _again(
        "If that is the cache, watch its directory (--cache-dir); if it is a cache of its own (TMPDIR, TT_METAL_CACHE, "
        "TORCHINDUCTOR_CACHE_DIR), add it as a further --cache-dir.",
        "nothing shows that it is done there"),
    "reading_checkpoint": _again(
        "Probably healthy: allow more time for loading (--first-write-within), or put the checkpoint on faster storage.",
        "its input is read faster a second time"),
    "compute_bound": _again(
        "If this step is known to be long, lengthen --stall-after; if not, it is an endless loop: the extra `stacks` (py-spy) "
        "names the place.",
        "it may have been slow"),
    "blocked_on_io": _outside(
        "Look at that file's file system and disk (dmesg, iostat -x, the server of a network mount). A process in state D ends "
        "only when the storage answers.",
        "the storage may answer"),
    "waiting_for_network": _outside(
        "Check that the peer is reachable and answers (ss -tanp, its log, a firewall). Set a timeout in the generator, or "
        "download its input beforehand.",
        "its peer may answer"),
    "deadlocked": _again(
        "The stacks in the bundle show who waits where. Locks taken in different orders, a fork in a process with threads, or "
        "a worker that died with the lock are the usual faults.",
        "a deadlock is a matter of chance",
        certain=True),
    "waiting_for_child": _again(
        "See why the child does not end; the generator goes on when it does.",
        "its child may end"),
    "generator_failed": _seen(
        "Read the end of its log; its exit status is its own.",
        "what it said names no cause that lasts"),
    "never_started": _seen(
        "Check that it writes to the watched directory at all (its options, TT_CACHE_PATH); if it loads for long, raise "
        "--first-write-within.",
        "nothing shows what it waited for"),
    "never_ready": _seen(
        "Read the end of its log, and ask its address by hand; if it does warm up for so long, raise --warmup-within.",
        "nothing shows what it waited for"),
    "unknown": _seen(
        "Look at the stacks and the end of the log in the bundle.",
        "the cause is not known"),
    "gpu_out_of_memory": _outside(
        "Use a smaller batch, context or share of the device (--gpu-memory-utilization), spread the model over more devices, "
        "or end the other process that holds their memory (nvidia-smi, rocm-smi, tt-smi).",
        "another program may leave it more of the device's memory",
        pause_s=60),
    "host_out_of_memory": _outside(
        "Raise its memory limit, or convert fewer layers at a time.",
        "other programs may leave it more memory"),
    "device_fault": _outside(
        "Read what it was told to do (the line and the file it names). See whether the device is there and free, and reset it "
        "(tt-smi -r, nvidia-smi --gpu-reset).",
        "a device that failed may work after a reset"),
    "collective_timeout": _outside(
        "Find the rank that came late or ended first: its own log has the cause; check the network between the machines "
        "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, NCCL_DEBUG=INFO).",
        "its peers may answer"),
    "io_error": _outside(
        "Check the disk, server or daemon behind the path that it names (dmesg, nfsstat).",
        "the storage may answer"),
    "stale_handle": _outside(
        "Remount it if its server or daemon is gone; keep caches that several machines write at once (TRITON_CACHE_DIR) on "
        "local disks.",
        "the file may be found again"),
    "cache_race": _again(
        "Let each generator fill a directory of its own and share what is whole (cachewatch generate --store); point kernel caches "
        "(TRITON_CACHE_DIR, TT_METAL_CACHE, TORCH_EXTENSIONS_DIR) to a local disk.",
        "another program may have replaced the file meanwhile",
        pause_s=0),
    "killed": _outside(
        "Most often memory ran out: look at dmesg and at the container's limit; else find what sent it (an administrator, a "
        "scheduler).",
        "something killed it, and may not do so again"),
    "segmentation_fault": _again(
        "Look for a core dump (coredumpctl), and run it with python -X faulthandler; a library that does not fit is the usual "
        "reason.",
        "what it has compiled may be broken"),
    "missing_module": _never(
        "Run it in the environment that it was installed in: check the interpreter, PYTHONPATH and LD_LIBRARY_PATH.",
        "a module that is missing is not installed meanwhile"),
    "missing_file": _never(
        "Check the path that it names, and the working directory if that is relative.",
        "a file that is missing does not come by itself"),
    "access_denied_hub": _never(
        "Ask for access on the model's page, and give a token that has it (HF_TOKEN); check the model's name.",
        "the hub refuses it until its token or its rights change"),
    "download_error": _outside(
        "Try again; check the network and the proxy; HF_HUB_DISABLE_XET=1 downloads without xet.",
        "the download may succeed"),
    "port_in_use": _outside(
        "End what listens there (ss -ltnp), or choose another port.",
        "the port may be free then", pause_s=60),
    "wrong_architecture": _never(
        "Install a build for this device (torch.cuda.get_arch_list, TORCH_CUDA_ARCH_LIST), or run it on the device it is for.",
        "the device is the same"),
    "compile_error": _again(
        "Read the first error of the compiler; check that compiler, headers and toolkit fit the package, and remove its kernel "
        "cache.",
        "what it has compiled may be broken",
        pause_s=0),
    "assertion": _again(
        "Read the condition and the line that it names; most often a size, a shape or a version does not fit.",
        "what it asserts may hold"),
    "bad_argument": _never(
        "Check its options: it says itself which of them it does not take.",
        "its command line is the same"),
    "python_error": _again(
        "Read the end of its log from the last traceback on.",
        "what it said names no cause that lasts"),
}  # fmt: skip
#: In the place of a cause in the bundle of a cancelled attempt.
CANCELLED = "cancelled"
_CANCELLED = _again(
    "The cache is not whole: start the generation again when you want it. If it was cancelled because it stood still, lower "
    "stall_after_s: the next such pause is then stopped and explained without you.",
    "it was cancelled",
)


@dataclass(frozen=True)
class Cause:
    """The cause of a stall or of a failure, as far as it can be told.

    `confidence` is `high` (the evidence leaves no other reading), `medium` (the best reading of several) or `low` (a guess).
    """

    #: A contract: automations match on it.
    category: str
    #: The end of a sentence, without a full stop.
    summary: str
    #: What was seen, a line each.
    evidence: tuple[str, ...] = ()
    confidence: Confidence = "high"
    #: Lines of the generator's output on which it rests.
    said: tuple[str, ...] = ()
    #: Whether it is certain that the generator never goes on by itself.
    is_final: bool = False
    #: What a person does next, by the table.
    resolution: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolution", self.known.next_step)

    @property
    def known(self) -> Known:
        """What the table has of its category."""
        return _CANCELLED if self.category == CANCELLED else CAUSES[self.category]

    @property
    def is_sure(self) -> bool:
        """Whether a message may name it without a `probably`."""
        return self.confidence == "high" or self.known.seen


def find_following(cause: Cause | None) -> tuple[str, Known]:
    """Find what follows an attempt.

    Args:
        cause: of the attempt; a guess counts as `unknown`.

    Returns:
        The category, and what is known of it.

    Example:
        >>> find_following(Cause("disk_full", "the disk is full"))[1].again
        False
    """
    category = cause.category if cause is not None and cause.confidence != "low" else "unknown"
    return category, CAUSES[category]
