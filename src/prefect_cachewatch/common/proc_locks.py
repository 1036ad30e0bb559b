"""Reads the kernel's list of file locks, /proc/locks or an fdinfo; see proc_locks(5). Standard library only."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Iterator


class LockLine:
    """A lock, or a wait for one; `mark` is device and inode as the kernel shows them, `start` the first byte.

    Args:
        words: the line's words, without the arrow of a wait.
        waits: whether it is a wait.

    Raises:
        ValueError: it is no such line.
        IndexError: likewise.
    """

    __slots__ = ("exclusive", "inode", "kind", "mark", "number", "pid", "start", "waits")

    def __init__(self, words: list[str], waits: bool) -> None:
        self.number, self.kind, self.waits = words[0], words[1], waits
        self.exclusive, self.pid, self.mark = words[3] == "WRITE", int(words[4]), words[5]
        self.inode, self.start = int(self.mark.rpartition(":")[2]), int(words[6])


def parse_locks(text: str) -> Iterator[LockLine]:
    """Read lines of /proc/locks, or the locks in an fdinfo; a line that is none is passed over.

    Args:
        text: the file's content.

    Example:
        >>> [(lock.pid, lock.exclusive, lock.inode) for lock in parse_locks("1: FLOCK  ADVISORY  WRITE 10 08:02:77 0 EOF")]
        [(10, True, 77)]
    """
    for line in text.splitlines():
        words = line.removeprefix("lock:").split()
        rest = [word for word in words if word != "->"]
        try:
            yield LockLine(rest, len(rest) < len(words))
        except (ValueError, IndexError):
            continue


def lock_waits(text: str) -> Iterator[tuple[LockLine, LockLine | None]]:
    """Find who waits for which lock: each waiter follows the lock it waits for, with the same number.

    Args:
        text: content of /proc/locks.

    Yields:
        A wait, and the lock it waits for; None if that is not visible.

    Example:
        >>> text = "1: FLOCK  ADVISORY  WRITE 10 08:02:77 0 EOF\\n1: -> FLOCK  ADVISORY  WRITE 11 08:02:77 0 EOF"
        >>> [(wait.pid, lock.pid) for wait, lock in lock_waits(text)]
        [(11, 10)]
    """
    held: dict[str, LockLine] = {}
    for lock in parse_locks(text):
        if lock.waits:
            yield lock, held.get(lock.number)
        else:
            held[lock.number] = lock
