"""The guard's side of a state file: writes the list of the run's processes.

Separate from `run_files`, whose imports a guard does not need. Two guards live as long as every generation, so each
import costs memory twice.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing costs the guards a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TREE = 4096


def update_run_file(fd: int, header_bytes: int, tree: Iterable[tuple[int, int]]) -> None:
    """Rewrite the list of the run's processes; the header stays.

    Args:
        fd: of the state file.
        header_bytes: length of its first line.
        tree: (pid, start time) of each process; the first 4,096 are kept.
    """
    lines = [f"[{pid}, {ticks}]\n" for pid, ticks in list(tree)[:MAX_TREE]]
    data = "".join(lines).encode()
    # A writer that is killed in between leaves a mix of old and new lines; each is true or cut short, none is wrong.
    os.pwrite(fd, data, header_bytes)
    os.ftruncate(fd, header_bytes + len(data))
