"""Measure a compression on a sample of the user's own data: ratio and CPU seconds.

A codec's figures on other people's data say nothing: tensors in bfloat16 hardly shrink, sparse
ones do. Nothing is written.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Literal

from prefect_cachewatch.capacity.model.profile import CodecProfile
from prefect_cachewatch.capacity.probe.checks import spread_of
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import CachewatchError, InputError

CODECS = ("zstd", "lz4", "lzo")
CodecName = Literal["zstd", "lz4", "lzo"]

_LEVELS = {"zstd": (-7, 22, 3), "lz4": (0, 12, 0), "lzo": (1, 9, 1)}  # lowest, highest, default
_CHUNK_BYTES = 8 * 2**20
_BATCH_BYTES = 32 * 2**20  # starting lzop once for each of these is no part of the figure
_MIN_SAMPLE_BYTES = 64 * 2**10
_EXTRA = "pip install 'prefect-cachewatch[codec]'"


@dataclass(frozen=True)
class CodecMeasurement:
    """One codec on one sample; the profile is what a plan reads."""

    profile: CodecProfile
    library: str
    repetitions: int
    compress_spread: float
    decompress_spread: float
    whole_sample_bytes: int

    @property
    def pays_below_bytes_per_s(self) -> float:
        """The rate of a job's bytes below which compressing with one core makes its writes faster.

        Writing takes max(cpu, wire / rate) instead of bytes / rate, which is less where the processor
        compresses faster than the storage takes; 0 where the sample does not shrink.
        """
        if self.profile.ratio <= 1:
            return 0.0
        return 1e9 / max(self.profile.compress_cpu_s_per_gb, 1e-9)


@dataclass(frozen=True)
class _Codec:
    """Two functions from bytes to (bytes, CPU seconds)."""

    library: str
    compress: Callable[[bytes], tuple[bytes, float]]
    decompress: Callable[[bytes], tuple[bytes, float]]


def measure_codec(
    name: CodecName,
    sample: Path,
    *,
    level: int | None = None,
    max_bytes: int = 128 * 2**20,
    repetitions: int = 3,
    time_s: float = 60.0,
    stop: Event | None = None,
) -> CodecMeasurement:
    """Measure a codec on a file, or on the files of a directory.

    Args:
        name: zstd, lz4 or lzo.
        sample: a file or directory of the data in question; symbolic links in it are not followed.
        level: the codec's level; default 3 for zstd, 0 for lz4, 1 for lzo.
        max_bytes: of a larger sample, this many bytes are taken in chunks spread evenly over it.
        repetitions: runs over the sample; medians are reported.
        time_s: the longest it measures; the first run then ends with the chunks done.
        stop: set it to end after the chunk under way.

    Returns:
        Ratio and CPU seconds per 10^9 bytes of uncompressed data, of one core.

    Raises:
        InputError: for an unreadable, empty or too small sample, a level out of range, or a library that
            is not installed.
        CachewatchError: if what comes back from the codec is not what went in.
    """
    lowest, highest, default = _LEVELS[name]
    chosen = default if level is None else level
    if not lowest <= chosen <= highest:
        raise InputError(f"{name} has no level {chosen}: choose one from {lowest} to {highest}")
    codec = _load(name, chosen)
    try:
        files = _files(sample)
        whole_bytes = sum(size for _, size in files)
        chunks = list(_joined(_chunks(files, whole_bytes, max_bytes)))
    except OSError as error:
        raise InputError(
            f"{for_terminal(str(error.filename or sample))} cannot be read ({error.strerror}): "
            "name a sample that this user can open"
        ) from None
    if whole_bytes < _MIN_SAMPLE_BYTES:
        raise InputError(
            f"{for_terminal(str(sample))} has {whole_bytes} bytes, too few to measure a codec on: "
            "name a sample of at least 64 KiB, better 100 MiB"
        )
    runs = _time_codec(codec, chunks, repetitions, time_s, stop or Event())
    per_gb = 1e9 / runs.taken_bytes
    return CodecMeasurement(
        profile=CodecProfile(
            name=name,
            ratio=round(runs.taken_bytes / runs.packed_bytes, 4),
            compress_cpu_s_per_gb=float(f"{statistics.median(runs.packs_s) * per_gb:.4g}"),
            decompress_cpu_s_per_gb=float(f"{statistics.median(runs.unpacks_s) * per_gb:.4g}"),
            level=chosen,
            sample=for_terminal(str(sample), 4096),
            sample_bytes=runs.taken_bytes,
        ),
        library=codec.library,
        repetitions=len(runs.packs_s),
        compress_spread=spread_of(runs.packs_s),
        decompress_spread=spread_of(runs.unpacks_s),
        whole_sample_bytes=whole_bytes,
    )


@dataclass(frozen=True)
class _Runs:
    taken_bytes: int
    packed_bytes: int
    packs_s: list[float]
    unpacks_s: list[float]


def _time_codec(codec: _Codec, chunks: list[bytes], repetitions: int, time_s: float, stop: Event) -> _Runs:
    end_s = time.monotonic() + time_s
    packs_s: list[float] = []
    unpacks_s: list[float] = []
    packed_bytes = 0
    for repetition in range(repetitions):
        pack_s = unpack_s = 0.0
        for number, chunk in enumerate(chunks, 1):
            packed, pack_cpu_s = codec.compress(chunk)
            back, unpack_cpu_s = codec.decompress(packed)
            if back != chunk:
                raise CachewatchError(f"{codec.library} gave back other bytes than it got: do not use it here")
            pack_s += pack_cpu_s
            unpack_s += unpack_cpu_s
            if repetition == 0:
                packed_bytes += len(packed)
            late = stop.is_set() or time.monotonic() >= end_s
            if late and repetition == 0:
                # A slow codec: what the first run has seen is the sample.
                chunks = chunks[:number]
                break
            if late and number < len(chunks):
                return _Runs(sum(map(len, chunks)), packed_bytes, packs_s, unpacks_s)
        # A clock tick is more than a fast codec needs for a small sample; a spread needs positive figures.
        packs_s.append(max(pack_s, 1e-9))
        unpacks_s.append(max(unpack_s, 1e-9))
        if stop.is_set() or time.monotonic() >= end_s:
            break
    return _Runs(sum(map(len, chunks)), packed_bytes, packs_s, unpacks_s)


def _files(sample: Path) -> list[tuple[Path, int]]:
    shown = for_terminal(str(sample))
    if sample.is_file():
        return [(sample, sample.stat().st_size)]
    if not sample.is_dir():
        state = "is neither a file nor a directory" if sample.exists() else "does not exist"
        raise InputError(f"{shown} {state}: name a file, or a directory of files, of the data in question")
    paths = [Path(folder) / entry for folder, _, names in os.walk(sample) for entry in names]
    found = [(path, path.stat().st_size) for path in paths if path.is_file() and not path.is_symlink()]
    if not found:
        raise InputError(f"{shown} has no file in it: name a file, or a directory of files, of the data in question")
    return sorted(found)


def _chunks(files: list[tuple[Path, int]], whole_bytes: int, max_bytes: int) -> Iterator[bytes]:
    # Every k-th chunk of the files in a row: the head of a checkpoint is metadata, not like the rest.
    step = max(1, -(-whole_bytes // max_bytes))
    number = 0
    for path, size in files:
        with path.open("rb") as file:
            for offset in range(0, size, _CHUNK_BYTES):
                if number % step == 0:
                    file.seek(offset)
                    yield file.read(_CHUNK_BYTES)
                number += 1


def _joined(chunks: Iterator[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    for chunk in chunks:
        batch.append(chunk)
        if sum(map(len, batch)) >= _BATCH_BYTES:
            yield b"".join(batch)
            batch = []
    if any(batch):
        yield b"".join(batch)


def _load(name: str, level: int) -> _Codec:
    if name == "zstd":
        zstandard = _import("zstandard", f"zstd needs the package zstandard: {_EXTRA}")
        packer, unpacker = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
        return _in_process(f"zstandard {zstandard.__version__}", packer.compress, unpacker.decompress)
    if name == "lz4":
        lz4 = _import("lz4.frame", f"lz4 needs the package lz4: {_EXTRA}")
        return _in_process("lz4", lambda data: lz4.compress(data, compression_level=level), lz4.decompress)
    with contextlib.suppress(ModuleNotFoundError):
        lzo: Any = importlib.import_module("lzo")
        return _in_process("python-lzo", lambda data: lzo.compress(data, level), lzo.decompress)
    lzop = shutil.which("lzop")
    if lzop is None:
        raise InputError("lzo needs the program lzop or the package python-lzo: apt install lzop")
    return _Codec(
        "lzop",
        lambda data: _run([lzop, f"-{level}", "-c"], data),
        lambda data: _run([lzop, "-d", "-c"], data),
    )


def _import(module: str, missing: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise InputError(missing) from None


def _in_process(library: str, compress: Callable[[bytes], bytes], decompress: Callable[[bytes], bytes]) -> _Codec:
    def timed(function: Callable[[bytes], bytes], data: bytes) -> tuple[bytes, float]:
        # This thread's CPU time: what other processes take from the machine is not the codec's.
        before_s = time.thread_time()
        result = function(data)
        return result, time.thread_time() - before_s

    return _Codec(library, lambda data: timed(compress, data), lambda data: timed(decompress, data))


def _run(argv: list[str], data: bytes) -> tuple[bytes, float]:
    with os.fdopen(os.memfd_create("in"), "w+b") as source, os.fdopen(os.memfd_create("out"), "w+b") as sink:
        source.write(data)
        source.seek(0)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = subprocess.run(argv, stdin=source, stdout=sink, stderr=subprocess.DEVNULL, check=False).returncode
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if status:
            raise CachewatchError(f"{argv[0]} failed with exit code {status}: try another codec")
        sink.seek(0)
        return sink.read(), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
