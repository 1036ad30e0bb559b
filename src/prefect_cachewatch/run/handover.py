"""The attempts that other processes have made of a run which one worker has handed to another. Pure.

A run that is handed back to its work pool goes on in a new process, which knows of the attempts before it what this record says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from prefect_cachewatch.watching.attempt import Outcome

#: The shortest pause. A worker starts the process of a run up to 10 s before it is due, and the last process must have gone.
LEAST_PAUSE_S = 20.0
_VERSION = 1


@dataclass(frozen=True)
class Earlier:
    """The attempts of a run before those of this process.

    Attributes:
        made: how many.
        counted: how many of them use up one of the policy's: all but one that a learned window has stopped.
        barren: how many of the last ones in a row did not take the cache beyond its largest size.
        size_mark: that size, in apparent bytes.
        disk_mark: the same on disk.
        traceback: fingerprint of the last attempt's traceback; empty if it left none.
        change: the changes that stay for all further attempts.
    """

    made: int = 0
    counted: int = 0
    barren: int = 0
    size_mark: int = 0
    disk_mark: int = 0
    traceback: str = ""
    change: tuple[str, ...] = ()

    def plus(
        self,
        outcomes: Sequence[Outcome],
        start_bytes: int,
        least: int,
        traceback: str = "",
        change: Sequence[str] = (),
    ) -> Earlier:
        """Add the attempts of this process.

        Args:
            outcomes: their outcomes.
            start_bytes: bytes that were in the directories before the first of them.
            least: smaller growth counts as none.
            traceback: of the last one, by `fingerprint`.
            change: changes that stay, besides those that have been made.

        Returns:
            All attempts so far.
        """
        # Fewer bytes than before: another machine's directories, or files that were removed. Growth begins anew.
        disk_mark = self.disk_mark if start_bytes >= self.size_mark else 0
        size_mark, barren = start_bytes, self.barren
        for outcome in outcomes:
            growth = outcome.growth
            if growth.bytes_present >= size_mark + least or growth.allocated_present >= disk_mark + least:
                barren = 0
            else:
                barren += outcome.learned_stop is None
            size_mark = max(size_mark, growth.bytes_present)
            disk_mark = max(disk_mark, growth.allocated_present)
        counted = sum(outcome.learned_stop is None for outcome in outcomes)
        return Earlier(
            self.made + len(outcomes), self.counted + counted, barren, size_mark, disk_mark, traceback,
            tuple(dict.fromkeys((*self.change, *change))),
        )  # fmt: skip

    def to_json(self, run_count: int) -> str:
        """Write the record.

        Args:
            run_count: how many times Prefect has begun the run, this process included.
        """
        return json.dumps({"version": _VERSION, "run_count": run_count, **asdict(self)})


def read_earlier(text: str, run_count: int) -> Earlier:
    """Read the record that the last process of a run has left.

    Args:
        text: from `Earlier.to_json`; it comes from the API, so it may be anything.
        run_count: how many times Prefect has begun the run, this process included.

    Returns:
        The attempts; none if the record is not of the process right before this one. A person who runs the run again has
        all attempts.

    Example:
        >>> record = Earlier(made=1, counted=1).to_json(run_count=1)
        >>> read_earlier(record, run_count=2).made, read_earlier(record, run_count=3).made
        (1, 0)
    """
    try:
        found = json.loads(text)
        if found["version"] != _VERSION or found["run_count"] + 1 != run_count:
            return Earlier()
        given = {one.name: found[one.name] for one in fields(Earlier)}
        numbers = [given[name] for name in ("made", "counted", "barren", "size_mark", "disk_mark")]
        change, traceback = given["change"], given["traceback"]
    except (ValueError, KeyError, TypeError):
        return Earlier()
    if not all(type(number) is int and number >= 0 for number in numbers) or not 0 < numbers[0] < 10_000:
        return Earlier()
    if not isinstance(traceback, str) or not isinstance(change, list) or not all(type(name) is str for name in change):
        return Earlier()
    return Earlier(**{**given, "change": tuple(change)})


def fingerprint(traceback: str) -> str:
    """Shorten a traceback to what tells it from another; empty for none."""
    return hashlib.sha256(traceback.encode("utf-8", "replace")).hexdigest()[:16] if traceback else ""
