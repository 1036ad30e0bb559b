"""Measure a storage: fresh writes, reads and random reads with 1, 2, 4, ... streams.

It slows other users of the storage, so it runs only when asked, within caps of size and time, and inside one directory
that is removed however the probe ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from pydantic import Field

from prefect_cachewatch.capacity.inputs import StorageProfile
from prefect_cachewatch.capacity.probe.direct import BLOCK_BYTES, measure_once
from prefect_cachewatch.capacity.probe.rates import KINDS, Rates, profile_of
from prefect_cachewatch.capacity.units import say_bytes, say_time
from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import Duration, Size
from prefect_cachewatch.errors import InputError

_LEAST_BYTES = 16 * 2**20
_REPETITIONS = 3
_SHORTEST_S = 0.1
_MEMORY = ("ramfs", "tmpfs")


class ProbeSettings(InputModel):
    """The limits of a probe: streams, bytes and time."""

    max_concurrency: int = Field(
        default=16, ge=1, le=256, description="The most streams; measured at 1, 2, 4, ... of them."
    )
    size_bytes: Size = Field(
        default=2**30, ge=_LEAST_BYTES, le=10**15,
        description="The most bytes it has on the storage at once; never over half of what is free.",
    )  # fmt: skip
    time_s: Duration = Field(
        default=120, ge=1, le=86400, description="The longest it measures; what it has then is kept."
    )


def run_probe(
    directory: Path, name: str, settings: ProbeSettings, stop: Event, say: Callable[[str], None]
) -> StorageProfile | None:
    """Measure the storage under a directory.

    Args:
        directory: an existing directory on the storage.
        name: what the storage is called, in plans and as a concurrency limit.
        settings: caps and choices.
        stop: set from another thread or a signal handler, it ends the probe after the request under way.
        say: told what is about to happen, at the begin and before each phase.

    Returns:
        What was measured until the time was up; None if it was stopped.

    Raises:
        InputError: it is no directory, or it is full, read-only, without O_DIRECT, or permission is missing.
    """
    rates: Rates = {}
    begin_s = time.monotonic()
    path = directory.resolve()
    shown, mount = for_terminal(str(path)), mount_of(str(path), read_mounts())
    filesystem, scratch = mount.type if mount is not None else "unknown", ""
    try:
        free_bytes = shutil.disk_usage(path).free
        size_bytes = min(settings.size_bytes, free_bytes // 2)
        if size_bytes < (least := max(_LEAST_BYTES, 2 * BLOCK_BYTES * settings.max_concurrency)):
            raise InputError(
                f"{settings.max_concurrency} streams need {say_bytes(least, binary=True)} on {shown}, and may have "
                f"{say_bytes(size_bytes, binary=True)}, half of what is free or --size: make room, allow more, or fewer "
                "with --max-concurrency"
            )
        say(
            f"Probing {shown}: writes up to {say_bytes(size_bytes, binary=True)} at once, for up to "
            f"{say_time(settings.time_s)}. Whoever shares this storage is slowed meanwhile; Ctrl-C ends it and removes "
            "the test files."
        )
        with tempfile.TemporaryDirectory(
            prefix=f".cachewatch-probe-{os.getpid()}-", dir=path, ignore_cleanup_errors=True
        ) as scratch:
            notes = _measure(Path(scratch), stop, size_bytes, settings, rates, say)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise InputError(
                f"{filesystem} at {shown} does not open files with O_DIRECT, so the page cache would be measured: use "
                "fio with larger files than memory, and --fio"
            ) from None
        raise InputError(
            f"{shown} cannot be written to ({error.strerror or type(error).__name__}): make room there, or name a "
            "directory on the storage that you may write to"
        ) from None
    if stop.is_set():
        return None
    if os.path.exists(scratch):  # on NFS a file that was open until now may keep it
        notes.append(f"the probe's own directory could not be removed: delete {for_terminal(scratch)} by hand")
    if filesystem in _MEMORY:
        notes.append(f"{filesystem} is memory: these are figures of RAM, not of a storage")
    source = (
        f"cachewatch probe, {filesystem}, through O_DIRECT, {say_bytes(size_bytes, binary=True)} at once, in "
        f"{say_time(time.monotonic() - begin_s)}"
    )
    return profile_of(name, source, rates, notes, free_bytes=free_bytes)


def _measure(
    scratch: Path, stop: Event, size_bytes: int, settings: ProbeSettings, rates: Rates, say: Callable[[str], None]
) -> list[str]:
    """Measure each kind of access with each number of streams; return a note if it ended early."""
    most = settings.max_concurrency
    streams = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    levels = [(n, kind) for n in streams for kind in KINDS]
    end_s, left = time.monotonic() + settings.time_s, len(levels) * _REPETITIONS
    for number, (n, kind) in enumerate(levels, start=1):
        say(f"{number} of {len(levels)}: {KINDS[kind]}, n = {n}")
        size = size_bytes // n // BLOCK_BYTES * BLOCK_BYTES
        for _ in range(_REPETITIONS):
            if (left_s := end_s - time.monotonic()) <= 0:
                return [f"partial: the time of {say_time(settings.time_s)} was up at n = {n}: allow more with --time"]
            # An even share of the time that is left; some of it is for fsync, threads and removal.
            share_s, left = max(_SHORTEST_S, 0.8 * left_s / left), left - 1
            rate = measure_once(scratch, stop, kind, n, size, share_s)
            if stop.is_set():
                return []
            rates.setdefault(kind, {}).setdefault(n, []).append(rate)
    return []
