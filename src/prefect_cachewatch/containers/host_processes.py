"""A container's processes as this host sees them: found by pid, checked to be that container's, signalled by pidfd.

An engine names the pid of a container's first process in its own pid namespace; here it may be somebody else's,
or nobody's. It is believed only where its control group or its environment names the container. Standard library
only.
"""

from __future__ import annotations

from prefect_cachewatch.supervise.proc import ProcessStat, carried_cookie, descendants, read_stat, send_signal
from prefect_cachewatch.supervise.reading import read_each

__all__ = ["container_tree", "signal_tree", "start_ticks_of"]


def start_ticks_of(pid: int, container: str, cookie: str) -> int | None:
    """Say since when a pid is a container's first process on this host.

    Args:
        pid: as the engine gives it.
        container: the container's full identifier.
        cookie: the run's identifier, in the container's environment.

    Returns:
        Its start time in clock ticks since boot; None where that pid is not of this container here.

    Example:
        >>> start_ticks_of(1, "f" * 64, "no-such-run") is None
        True
    """
    before = read_stat(pid) if pid > 0 else None
    if before is None:
        return None
    if not _names(pid, container) and read_each([pid], carried_cookie).get(pid) != cookie:
        return None
    after = read_stat(pid)
    return before.start_ticks if after is not None and after.start_ticks == before.start_ticks else None


def _names(pid: int, container: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return container.encode() in file.read(1 << 21)
    except OSError:
        return False


def container_tree(pid: int, start_ticks: int) -> dict[int, ProcessStat]:
    """List a container's living processes, the first one first; what `exec` put into it from outside is not found."""
    first = read_stat(pid)
    if first is None or first.start_ticks != start_ticks or first.state in "ZXx":
        return {}
    return {pid: first, **descendants(pid)}


def signal_tree(tree: dict[int, ProcessStat], number: int) -> list[int]:
    """Send a signal to each process of a tree that is still the same; returns the pids that got it."""
    return [pid for pid, found in tree.items() if send_signal(pid, found.start_ticks, number)]
