"""The board of the runs of one user on one machine: a file for each run in the state directory. Standard library only.

A file says which process its run belongs to. That of a dead one does not count, and is removed by whoever reads it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import make_own_directory, open_own_directory, state_directory
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.supervise.proc import boot_id, read_stat
from prefect_cachewatch.supervise.run_files import RunFileRefused, machine_id, pid_namespace, read_each_file
from prefect_cachewatch.watching.neighbours import Neighbours, probe_with, storage_of
from prefect_cachewatch.watching.suspicion import Standing, Suspected

if TYPE_CHECKING:
    from prefect_cachewatch.config import StallPolicy
    from prefect_cachewatch.watching.site import CacheDirectories

_SUFFIX, _PATIENCE_S = ".standing", 2.0


class HostBoard:
    """The board of the runs of this user on this machine.

    Args:
        files: the helper process, which writes and reads.
        storage: its name.
        job: name of the job.
    """

    def __init__(self, files: Files, storage: str, job: str) -> None:
        self.me = os.urandom(16).hex()
        self._files, self._directory = files, state_directory("storages")
        mine = read_stat(os.getpid())
        self._record = {
            "run": self.me, "job": job, "storage": storage, "pid": os.getpid(), "ticks": mine.start_ticks if mine else 0,
            **_place(),
        }  # fmt: skip

    def say(self, silent_s: float | None) -> None:
        """Write how this run stands."""
        since_s = None if silent_s is None else time.monotonic() - silent_s  # the same clock for the whole machine
        record = {**self._record, "silent_since_s": since_s}
        self._files.run(_write, self._directory, self.me + _SUFFIX, record, timeout_s=_PATIENCE_S)

    def read(self) -> Sequence[Standing]:
        """Return how the living runs stand."""
        found: list[Standing] = self._files.run(_read, self._directory, self._record["storage"], timeout_s=_PATIENCE_S)
        return found

    def follow(self, suspected: Suspected | None, window_s: float) -> bool:
        """Do nothing: each command says on its own terminal what it suspects."""
        return False

    def leave(self) -> None:
        """Remove this run's file."""
        self._files.run(_remove, self._directory, self.me + _SUFFIX, timeout_s=_PATIENCE_S)


def neighbours_on_host(
    files: Files, site: CacheDirectories, stall: StallPolicy, job: str, tell: Callable[[str], None] = lambda _: None
) -> Neighbours | None:
    """Return what knows the other runs of this user on the storage of a run; None where nobody is to know them.

    Args:
        files: the helper process.
        site: the run's directories; the storage of the first one counts.
        stall: the run's policy.
        job: its name.
        tell: takes a sentence on a suspicion.
    """
    if not site.paths or stall.storage_patience_s == 0:
        return None
    key, told = storage_of(site.paths[0], os.uname().nodename)
    return Neighbours(told, HostBoard(files, key, job), probe_with(files, site.paths[0]), tell)


def _place() -> dict[str, Any]:
    return {"boot_id": boot_id(), "machine": machine_id(), "pid_namespace": pid_namespace()}


def _write(directory: str, name: str, record: Mapping[str, Any]) -> None:
    with Opened(make_own_directory(directory)) as here:
        write_entry(here, name, json.dumps(record).encode())


def _remove(directory: str, name: str) -> None:
    with Opened(open_own_directory(directory)) as here:
        os.unlink(name, dir_fd=here)


def _read(directory: str, storage: str) -> list[Standing]:
    place = _place()

    def read(name: str, data: bytes, fd: int, here: int) -> Standing | None:
        record = _parse(data)
        if {key: record[key] for key in place} != place:
            return None  # another machine's, in a home directory that both have
        process = read_stat(record["pid"])
        if process is None or process.start_ticks != record["ticks"]:
            os.unlink(name, dir_fd=here)
            return None
        if record["storage"] != storage:
            return None
        return Standing(record["run"], record["job"], record["silent_since_s"])

    found, _ = read_each_file(directory, _SUFFIX, read)
    return [standing for standing in found if standing is not None]


def _parse(data: bytes) -> dict[str, Any]:
    try:
        record: Any = json.loads(data)
        texts = [record[key] for key in ("run", "job", "storage", "boot_id", "machine", "pid_namespace")]
        numbers = [record["pid"], record["ticks"]]
        since = record["silent_since_s"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFileRefused("it does not say how a run stands") from error
    if not (
        all(isinstance(text, str) for text in texts)
        and all(type(number) is int for number in numbers)
        and (since is None or (isinstance(since, float) and math.isfinite(since)))
    ):
        raise RunFileRefused("it does not say how a run stands")
    return dict(record)
