"""A storage profile from the JSON that a person's own runs of fio made. Runs nothing.

    fio --name=w --directory=/mnt/nfs-a/fio --rw=write --bs=1M --size=1G --direct=1 --end_fsync=1 --numjobs=4
        --group_reporting --output-format=json --output=w4.json

Each group of jobs is one measurement: `numjobs` streams of one kind of access.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_cachewatch.capacity.inputs import StorageProfile
from prefect_cachewatch.capacity.probe.rates import Rates, profile_of
from prefect_cachewatch.common.files import read_input
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

# How a job accesses its files (option `rw`), to the curve.
_CURVES = {"write": "write", "read": "read", "randread": "random_read"}


def profile_from_fio(paths: Sequence[Path], name: str) -> StorageProfile:
    """Read fio's JSON files into the profile that a plan reads.

    Args:
        paths: files of `--output-format=json`, one or more runs each; runs at the same n are repetitions.
        name: what the storage is called, in plans and as a concurrency limit.

    Returns:
        The profile, its basis `measured`.

    Raises:
        InputError: a file is not fio's JSON, a job failed, moved nothing or is no curve of a plan, or n = 1 is missing.
    """
    rates: Rates = {}
    notes: list[str] = []
    for path in paths:
        shown = for_terminal(str(path))
        try:
            raw = read_input(path).decode()
            for options, job in _jobs(json.loads(raw[raw.index("{") :])):  # fio may put warnings before it
                kind, n, rate = _measurement(options, job, shown)
                rates.setdefault(kind, {}).setdefault(n, []).append(rate)
                if options.get("direct") != "1":
                    notes.append(f"{shown}: direct=1 was not given, so the page cache may have answered")
        except OSError as error:
            raise InputError(f"{shown} cannot be read ({error.strerror}): check the path") from None
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InputError(
                f"{shown} is not the report of whole runs of fio that moved bytes ({type(error).__name__}): run it with "
                "--output-format=json --group_reporting, and mend what fio itself complains of"
            ) from None
    return profile_of(name, f"fio, {', '.join(for_terminal(path.name, 40) for path in paths)}", rates, notes)


def _jobs(document: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each group of jobs with its options."""
    jobs = document["jobs"]
    if not jobs or len({(job["groupid"], job["jobname"]) for job in jobs}) < len(jobs):
        raise ValueError  # without group_reporting nobody knows how long the group took
    shared = document.get("global options", {})
    return [(shared | job.get("job options", {}), job) for job in jobs]


def _measurement(options: dict[str, Any], job: dict[str, Any], shown: str) -> tuple[str, int, float]:
    """The kind of access of a group, its streams, and the bytes per second of all of them."""
    access = options.get("rw", "read")  # fio's own default
    if access not in _CURVES or options.get("iodepth", "1") != "1":
        raise InputError(
            f"{shown}: a stream of a plan has one request in flight, and writes, reads or reads at random: run it with "
            "rw=write, rw=read or rw=randread, iodepth=1 and more numjobs"
        )
    side = job[access.removeprefix("rand")]
    streams, rate = int(options.get("numjobs", 1)), side["io_bytes"] / max(side["runtime"], 1e-3) * 1e3
    if job["error"] or not (1 <= rate < 1e15 and 1 <= streams <= 4096):
        raise ValueError
    return _CURVES[access], streams, rate
