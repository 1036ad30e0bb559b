"""Causes: what one is, and for each category what a person does next and whether it is tried again. Pure.

The only table of its kind: message, page, artifact, notification and retry read it. `docs/causes.md` is made
from it, and its categories are a contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Known:
    """What is known of a category.

    Attributes:
        next_step: what a person does.
        lasts: why it is not tried again; empty if it is.
        pause_s: the pause before it; None for the policy's back-off.
        outside: whether the cause lies outside the generator, which then fails at the same place as before.
        seen: whether the summary is what was seen and no reading of it, so that it is never only probable.
    """

    next_step: str
    lasts: str = ""
    pause_s: float | None = None
    outside: bool = False
    seen: bool = False

    @property
    def again(self) -> bool:
        """Whether it is tried again."""
        return not self.lasts

    @property
    def why(self) -> str:
        """Why it is tried again or not, as the end of a sentence that begins with "because"."""
        if self.outside:
            return "what stopped it lies outside of it, and may be over"
        return self.lasts or ("no cause that lasts is known" if self.seen else "it may end otherwise")


_outside, _seen = partial(Known, outside=True), partial(Known, seen=True)

#: In the order of precedence of the rules; then those that the last output of a crash alone can tell.
CAUSES: Mapping[str, Known] = {
    "oom_killed": _outside(
        "Raise the memory limit, convert fewer layers at a time, or run fewer generations on this machine."),
    "filesystem_unresponsive": Known(
        "Check the server or daemon behind the mount (dmesg, nfsstat, the FUSE process). Remount it before the next "
        "attempt: nothing can be said about the cache, and no process in it can be killed, until it answers.",
        "the file system does not answer"),
    "cache_directory_missing": Known(
        "Find what removed, renamed or unmounted it (a clean-up job, tmpfiles, a second run), then start again.",
        "its directory is gone"),
    "stopped_by_signal": _outside(
        "Find who stopped it: a person, job control, a checkpointer, a debugger or strace that is attached (end "
        "that), or a background job that reads its terminal (start it with stdin from /dev/null)."),
    "read_only_filesystem": Known(
        "A file system that turns read-only by itself has met an error: read dmesg, check the disk, remount it rw.",
        "a file system stays read-only until a person has mended it"),
    "inodes_exhausted": Known(
        "Remove directories of many small files (df -i shows the file system), or move the cache to one with more "
        "inodes.",
        "there are no more inodes than before"),
    "quota_exceeded": Known(
        "Remove old files of this user (quota -s), or have the quota raised.",
        "the quota is used up as before"),
    "disk_full": Known(
        "Free space (old caches first), or use a larger file system; look at TMPDIR, /dev/shm and the home directory "
        "too (df -h).",
        "the disk is as full as before"),
    "permission_denied": Known(
        "Look at owner and mode of what it names, and as whom it runs.",
        "its rights are the same as before"),
    "still_writing": Known(
        "Raise --max-duration, or find out why it is slower than expected (storage, CPU, other generations beside "
        "it)."),
    "stale_lock": Known(
        "Remove that lock (rm; a directory with rm -r): a run that was killed has left it behind.",
        "the lock that it waited for has no living holder, and stays until a person removes it"),
    "waiting_for_lock": _outside(
        "See what the holder does (lslocks, fuser; also on other hosts and in other containers that share the "
        "directory). If it is left over from another run, end it. Two runs on one cache directory exclude each "
        "other."),
    "generator_failed": _seen("Read the end of its log; its exit status is its own."),
    "memory_pressure": _outside(
        "Give it more memory (the limit of its container or slice), convert fewer layers at a time, or run less "
        "beside it."),
    "waiting_for_device": _outside(
        "Reset the device (for Tenstorrent: tt-smi -r), look for its driver in dmesg, and see that no other process "
        "uses it (fuser -v)."),
    "waiting_for_input": Known(
        "A prompt (licence, overwrite, password) stands unanswered: give the option that answers it, or start the "
        "generator with stdin from /dev/null.",
        "no person answers its prompt the next time either"),
    "blocked_on_output_pipe": Known(
        "Make the reader of that pipe read on, or send the output to a file. subprocess.Popen(stdout=PIPE) with "
        "wait() instead of communicate() is the usual fault."),
    "churning": Known(
        "Look for a step that fails and starts over (the log), or for temporary files that are never renamed."),
    "in_place_writes": Known(
        'Not a hang: watch modification times too (--progress-by any, StallPolicy(progress="any")).'),
    "writing_elsewhere": Known(
        "If that is the cache, watch its directory (--cache-dir); if it is a cache of its own (TMPDIR, "
        "TT_METAL_CACHE, TORCHINDUCTOR_CACHE_DIR), add it as a further --cache-dir."),
    "reading_checkpoint": Known(
        "Probably healthy: allow more time for loading (--first-write-within), or put the checkpoint on faster "
        "storage."),
    "compute_bound": Known(
        "If this step is known to be long, lengthen --stall-after; if not, it is an endless loop: the extra `stacks` "
        "(py-spy) names the place."),
    "blocked_on_io": _outside(
        "Look at that file's file system and disk (dmesg, iostat -x, the server of a network mount). A process in "
        "state D ends only when the storage answers."),
    "waiting_for_network": _outside(
        "Check that the peer is reachable and answers (ss -tanp, its log, a firewall). Set a timeout in the "
        "generator, or download its input beforehand."),
    "deadlocked": Known(
        "The stacks in the bundle show who waits where. Locks taken in different orders, a fork in a process with "
        "threads, or a worker that died with the lock are the usual faults."),
    "waiting_for_child": Known("See why the child does not end; the generator goes on when it does."),
    "never_started": _seen(
        "Check that it writes to the watched directory at all (its options, TT_CACHE_PATH); if it loads for long, "
        "raise --first-write-within."),
    "never_ready": _seen(
        "Read the end of its log, and ask its address by hand; if it does warm up for so long, raise "
        "--warmup-within."),
    "unknown": _seen("Look at the stacks and the end of the log in the bundle."),
    "gpu_out_of_memory": _outside(
        "Use a smaller batch, context or share of the device (--gpu-memory-utilization), spread the model over more "
        "devices, or end the other process that holds their memory (nvidia-smi, rocm-smi, tt-smi).", pause_s=60),
    "host_out_of_memory": _outside("Raise its memory limit, or convert fewer layers at a time."),
    "device_fault": _outside(
        "Read what it was told to do (the line and the file it names). See whether the device is there and free, and "
        "reset it (tt-smi -r, nvidia-smi --gpu-reset)."),
    "collective_timeout": _outside(
        "Find the rank that came late or ended first: its own log has the cause; check the network between the "
        "machines (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, NCCL_DEBUG=INFO)."),
    "io_error": _outside("Check the disk, server or daemon behind the path that it names (dmesg, nfsstat)."),
    "stale_handle": _outside(
        "Remount it if its server or daemon is gone; keep caches that several machines write at once "
        "(TRITON_CACHE_DIR) on local disks."),
    "cache_race": Known(
        "Let each generator fill a directory of its own and share what is whole (cachewatch generate --store); point "
        "kernel caches (TRITON_CACHE_DIR, TT_METAL_CACHE, TORCH_EXTENSIONS_DIR) to a local disk.", pause_s=0),
    "killed": _outside(
        "Most often memory ran out: look at dmesg and at the container's limit; else find what sent it (an "
        "administrator, a scheduler)."),
    "segmentation_fault": Known(
        "Look for a core dump (coredumpctl), and run it with python -X faulthandler; a library that does not fit is "
        "the usual reason."),
    "missing_module": Known(
        "Run it in the environment that it was installed in: check the interpreter, PYTHONPATH and LD_LIBRARY_PATH.",
        "a module that is missing is not installed meanwhile"),
    "missing_file": Known(
        "Check the path that it names, and the working directory if that is relative.",
        "a file that is missing does not come by itself"),
    "access_denied_hub": Known(
        "Ask for access on the model's page, and give a token that has it (HF_TOKEN); check the model's name.",
        "the hub refuses it until its token or its rights change"),
    "download_error": _outside(
        "Try again; check the network and the proxy; HF_HUB_DISABLE_XET=1 downloads without xet."),
    "port_in_use": _outside("End what listens there (ss -ltnp), or choose another port.", pause_s=60),
    "wrong_architecture": Known(
        "Install a build for this device (torch.cuda.get_arch_list, TORCH_CUDA_ARCH_LIST), or run it on the device "
        "it is for.",
        "the device is the same"),
    "compile_error": Known(
        "Read the first error of the compiler; check that compiler, headers and toolkit fit the package, and remove "
        "its kernel cache.", pause_s=0),
    "assertion": Known(
        "Read the condition and the line that it names; most often a size, a shape or a version does not fit."),
    "bad_argument": Known(
        "Check its options: it says itself which of them it does not take.",
        "its command line is the same"),
    "python_error": Known("Read the end of its log from the last traceback on."),
}  # fmt: skip
#: In the place of a cause in the bundle of a cancelled attempt.
CANCELLED = "cancelled"
_CANCELLED = Known(
    "The cache is not whole: start the generation again when you want it. If it was cancelled because it stood still, lower "
    "stall_after_s: the next such pause is then stopped and explained without you."
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
