"""Whether a silent tree is certain never to go on by itself: all of it waits for itself, and nothing can wake it. Pure.

A proof, and no guess: where anything is not known, or of another kind than the few that are understood, it is not certain.
A live tree that is taken for dead would be stopped for nothing; a dead one that is not is stopped when its window is over.
"""

from __future__ import annotations

from prefect_cachewatch.evidence.model import Evidence, ProcessFacts
from prefect_cachewatch.evidence.readings import ThreadFacts

#: Two looks at the tree are at least so far apart, and no thread had a turn on a processor between them.
APART_S = 10.0
_CHILDREN = ("wait4", "waitid")


def cannot_go_on(evidence: Evidence) -> bool:
    """Say whether the tree of an evidence is certain never to go on by itself.

    Each thread of each process waits without a time limit: for memory of its process alone, for a child in the tree, or
    for a file lock, where one of the tree holds each that the process waits for. No process has a timer or handles a signal by which another program might
    wake it, none is stopped or traced, and none has had a turn since the earlier look.

    Args:
        evidence: of a tree that another look came before.

    Returns:
        False where anything of it is not known.
    """
    alive = [process for process in evidence.processes if process.state not in "ZX"]
    if not alive or evidence.window_s < APART_S or evidence.process_count != len(evidence.processes):
        return False
    parents = {process.parent_pid for process in alive}
    held: dict[int, bool] = {}
    for lock in evidence.locks:  # its threads may wait for several, and each one counts
        held[lock.waiter_pid] = held.get(lock.waiter_pid, True) and lock.holder_in_tree
    return all(
        _is_still(process)
        and all(
            _waits_within(thread, process.pid in parents, held.get(process.pid, False)) for thread in process.threads
        )
        for process in alive
    )


def _is_still(process: ProcessFacts) -> bool:
    """Whether nothing from outside wakes a process, and nothing did since the earlier look."""
    seen_whole = 0 < len(process.threads) == process.thread_count
    return seen_whole and process.can_be_woken is False and not process.tracer_pid and process.turns_in_window == 0


def _waits_within(thread: ThreadFacts, has_child: bool, lock_is_ours: bool) -> bool:
    if thread.state != "S":
        return False
    if thread.syscall == "futex":
        return thread.timed is False and thread.private is True
    if thread.syscall in _CHILDREN:
        return has_child
    return thread.syscall in ("flock", "fcntl") and lock_is_ours
