"""What a generator that ended by itself said last, and what that says of the cause; pure.

A generator knows best why it ended: its last lines go before whatever else looks odd on the machine at that moment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DENIED", "NO_SPACE", "QUOTA", "READ_ONLY", "LastWords", "find_last_words"]

NO_SPACE = re.compile(r"No space left on device|ENOSPC|[Ee]rrno[ =:]*28\b")
QUOTA = re.compile(r"[Qq]uota exceeded|EDQUOT|[Ee]rrno[ =:]*122\b")
READ_ONLY = re.compile(r"Read-only file system|EROFS|[Ee]rrno[ =:]*30\b")
DENIED = re.compile(r"Permission denied|EACCES|Operation not permitted|EPERM|[Ee]rrno[ =:]*(?:13|1)\b")
_LINES_MAX = 40
_LINE_MAX = 2000


@dataclass(frozen=True)
class LastWords:
    """The last line that explains an end; `category` is that of the rule which it confirms."""

    line: str
    category: str
    what: str
    resolution: str


@dataclass(frozen=True)
class _Kind:
    pattern: re.Pattern[str]
    what: str
    resolution: str
    category: str = "generator_failed"


# Of the kinds that fit one line the first counts.
_KINDS = (
    _Kind(NO_SPACE, "there was no space left", "Free space, or use a larger file system.", "disk_full"),
    _Kind(QUOTA, "its quota was used up", "Remove old files of this user, or have the quota raised.", "quota_exceeded"),
    _Kind(READ_ONLY, "a file system was read-only", "Read dmesg, check the disk, remount it rw.", "read_only_filesystem"),
    _Kind(
        re.compile(r"Stale file handle|Transport endpoint is not connected|Input/output error|[Ee]rrno[ =:]*(?:5|107|116)\b"),
        "a file system failed",
        "Check the disk, server or daemon behind the path that it names (dmesg, nfsstat).",
        "filesystem_unresponsive",
    ),
    _Kind(
        re.compile(r"ModuleNotFoundError|ImportError|error while loading shared libraries|undefined symbol|DLL load failed"),
        "a module or library that it needs is missing or does not fit",
        "Run it in the environment that it was installed in: check the interpreter, PYTHONPATH and LD_LIBRARY_PATH.",
    ),
    _Kind(
        re.compile(r"(?i)cuda|cublas|cudnn|\bnvml|\bnccl|\bhip(?:error|[a-z]*:)|TT_FATAL|TT_THROW|tenstorrent|\btt-kmd|ttnn\.|\bnpu\b"),
        "its device failed or was not to be had",
        "See whether the device is there and free (nvidia-smi, tt-smi), reset it, and look for another process that holds it.",
    ),
    _Kind(
        re.compile(r"MemoryError|bad_alloc|Cannot allocate memory|(?i:out of memory)"),
        "it ran out of memory",
        "Raise its memory limit, or convert fewer layers at a time.",
    ),
    _Kind(
        re.compile(
            r"(?i)^usage:|unrecognized arguments|arguments are required|invalid choice|unrecognized option|unknown option|"
            r"no such option|invalid option|expected one argument|missing argument|got unexpected extra argument"
        ),
        "its command line is wrong",
        "Check its options: it says itself which of them it does not take.",
    ),
    _Kind(
        re.compile(r"No such file or directory|FileNotFoundError|can't open file|[Ee]rrno[ =:]*2\b|command not found|: not found$"),
        "a file or program that it needs is not there",
        "Check the path that it names, and the working directory if that is relative.",
    ),
    _Kind(
        DENIED,
        "it was refused access",
        "Look at owner and mode of what it names, and as whom it runs.",
        "permission_denied",
    ),
    _Kind(
        re.compile(
            r"(?i)segmentation fault|core dumped|fatal python error|double free|terminate called after|illegal instruction|"
            r"bus error|stack smashing|assertion .{0,500}failed"
        ),
        "it crashed",
        "Look for a core dump (coredumpctl), and run it with python -X faulthandler.",
    ),
    _Kind(
        re.compile(r"^(?:[A-Za-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}(?:Error|Exception|Exit|Interrupt|Warning)(?::|$)"),
        "it raised an exception",
        "Read the end of its log from the last traceback on.",
    ),
)  # fmt: skip


def find_last_words(log_tail: str) -> LastWords | None:
    """Find the last line of a log that explains why the program ended.

    Args:
        log_tail: the end of its output.

    Returns:
        The line and what it says; None where no line of the last forty is one that explains an end.

    Example:
        >>> find_last_words("loading\\npython: can't open file '/x/gen.py': [Errno 2] No such file or directory\\n").what
        'a file or program that it needs is not there'
    """
    lines = [line.strip()[:_LINE_MAX] for line in log_tail.splitlines() if line.strip()]
    for line in reversed(lines[-_LINES_MAX:]):
        for kind in _KINDS:
            if kind.pattern.search(line):
                return LastWords(line, kind.category, kind.what, kind.resolution)
    return None
