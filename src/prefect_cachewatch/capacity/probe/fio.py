"""Measure with fio: one process per repetition, its JSON read into a sample.

Knows fio's options and output; which concurrencies and how often is `run`'s matter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from threading import Event
from typing import Any

from prefect_cachewatch.capacity.probe.checks import Phase, Repetition, Sample
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import CachewatchError

_FIO_RW: dict[Phase, str] = {"write": "write", "read": "read", "random_read": "randread"}
_DDIR: dict[Phase, str] = {"write": "write", "read": "read", "random_read": "read"}
_PR_SET_PDEATHSIG = 1


class FioError(CachewatchError):
    """fio failed; `data["errno"]` is its error, if it named one."""


def find_fio() -> str | None:
    """Say where fio is, or None where it is not installed."""
    return shutil.which("fio")


class FioEngine:
    """Runs fio in a directory; ends it at once when `stop` is set."""

    def __init__(self, executable: str, *, direct: bool, stop: Event) -> None:
        self.executable = executable
        self.direct = direct
        self.stop = stop
        self.name = _version(executable)

    def run(self, asked: Repetition) -> Sample | None:
        """Measure one repetition, with a job of fio for each stream.

        Args:
            asked: what is measured.

        Returns:
            The sample, or None when `stop` was set meanwhile.

        Raises:
            FioError: if fio failed.
        """
        argv = self._argv(asked)
        # fio reads 0.9 as 0: whole milliseconds only.
        argv.append(f"--runtime={max(1, round(asked.time_s * 1000))}ms")
        if asked.phase == "random_read":
            argv += ["--time_based", "--norandommap"]
        if asked.phase == "write":
            # Blocks are allocated while writing, as a generator does it: overwriting is far faster.
            argv += ["--end_fsync=1", "--fallocate=none", "--unlink=1"]
        output = self._output(argv, asked.directory, asked.time_s)
        return None if output is None else read_fio_json(output, asked.phase, asked.streams)

    def _argv(self, asked: Repetition) -> list[str]:
        return [
            self.executable,
            "--name=fresh" if asked.phase == "write" else "--name=stream",
            # A colon separates directories in fio; the working directory has none in it.
            "--directory=.",
            "--filename_format=$jobname.$jobnum.0",
            f"--rw={_FIO_RW[asked.phase]}",
            f"--bs={asked.block_bytes}",
            f"--size={asked.stream_bytes}",
            f"--numjobs={asked.streams}",
            # Threads of one process: whatever ends fio, none of its jobs is left behind.
            "--thread",
            "--ioengine=psync",
            f"--direct={int(self.direct)}",
            "--randrepeat=0",
            "--eta=never",
            "--output-format=json",
        ]

    def _output(self, argv: list[str], directory: Path, time_s: float) -> str | None:
        process = subprocess.Popen(
            argv,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A session of its own: Ctrl-C reaches the probe, which ends fio and keeps what was measured.
            start_new_session=True,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 - one prctl call, resolved before the fork
        )
        # Laying out, fsync and thread start come on top of the run time.
        deadline_s = time_s * 4 + 60
        waited_s = 0.0
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=0.05)
                    break
                except subprocess.TimeoutExpired:
                    waited_s += 0.05
                    if self.stop.is_set():
                        return None
                    if waited_s > deadline_s:
                        raise FioError(
                            f"fio did not end within {deadline_s:.0f} s: the storage does not answer; "
                            "look at its health"
                        ) from None
        finally:
            if process.poll() is None:
                process.kill()
                # On a hung file system even SIGKILL waits: then fio is left to the kernel.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=10)
        if process.returncode != 0:
            said = next((line for line in err.splitlines() if line.strip()), "") or out[:200]
            raise FioError(f"fio failed with exit code {process.returncode}: {for_terminal(said.strip())}")
        return out


def read_fio_json(output: str, phase: Phase, streams: int) -> Sample:
    """Read fio's JSON into a sample.

    Args:
        output: what fio wrote, possibly with messages before the JSON.
        phase: what was measured.
        streams: how many jobs ran.

    Returns:
        The sample of all jobs together: the elapsed time is that of the last job, fsync included.

    Raises:
        FioError: if it is no such JSON, or says that a job failed or did nothing.
    """
    try:
        jobs: list[dict[str, Any]] = json.loads(output[output.index("{") :])["jobs"]
        parts = [job[_DDIR[phase]] for job in jobs]
        errors = [int(job["error"]) for job in jobs]
        operations = sum(int(part["total_ios"]) for part in parts)
        latency_ns = sum(int(part["total_ios"]) * float(part["lat_ns"]["mean"]) for part in parts)
        done_bytes = sum(int(part["io_bytes"]) for part in parts)
        elapsed_s = max(float(part["runtime"]) for part in parts) / 1000
        # Percentiles of jobs cannot be joined: the worst job's stands for all.
        p99s_ns = [float(part["clat_ns"].get("percentile", {}).get("99.000000", 0)) for part in parts]
        p99_s = max(p99s_ns) / 1e9 or None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FioError(
            f"fio's output could not be read ({type(error).__name__}): use --engine direct, or another fio"
        ) from None
    if any(errors):
        number = next(filter(None, errors))
        raise FioError(f"fio could not {_DDIR[phase]}: {os.strerror(number)}", errno=number)
    if not operations or elapsed_s <= 0:
        raise FioError("fio ended without a single operation: give the probe more time (--time) or size (--size)")
    return Sample(
        phase=phase,
        concurrency=streams,
        done_bytes=done_bytes,
        operations=operations,
        elapsed_s=elapsed_s,
        mean_latency_s=latency_ns / 1e9 / operations,
        p99_latency_s=p99_s,
    )


def _version(executable: str) -> str:
    try:
        run = subprocess.run([executable, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise FioError(
            f"{for_terminal(executable)} does not run ({type(error).__name__}): use --engine direct"
        ) from None
    return for_terminal(run.stdout.strip(), 40)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> functools.partial[int]:
    return functools.partial(_libc().prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
