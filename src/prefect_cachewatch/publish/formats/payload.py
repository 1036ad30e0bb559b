"""Looks whether the payload of a file is one repeated value, as it is after a write whose data never arrived."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from prefect_cachewatch.publish.formats.reading import Source

# A smaller payload may well be a bias of zeros or a norm of ones.
MIN_BYTES = 1 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_PERIOD = 8


def find_constant(source: Source, payload: Sequence[tuple[int, int]]) -> str | None:
    """Sample a payload evenly and say what it repeats.

    Args:
        source: the file.
        payload: offsets of the first byte and behind the last, for each part.

    Returns:
        The value in hexadecimal, of at most 8 bytes; None if the samples differ or the payload is below 1 MiB.
    """
    ends = list(accumulate(behind - first for first, behind in payload))
    if not ends or ends[-1] < MIN_BYTES:
        return None
    seen = b""
    for number in range(_SAMPLES):
        place = ends[-1] * number // _SAMPLES
        part = bisect_right(ends, place)
        first, behind = payload[part]
        offset = behind - (ends[part] - place)
        offset -= (offset - first) % _PERIOD
        block = source.read(offset, min(_SAMPLE_BYTES, behind - offset), "its payload")
        if len(block) < _PERIOD:
            continue
        seen = seen or block[:_PERIOD]
        if block != (seen * (len(block) // _PERIOD + 1))[: len(block)]:
            return None
    return _shortest(seen) if seen else None


def _shortest(value: bytes) -> str:
    for length in (1, 2, 4):
        if value == value[:length] * (len(value) // length):
            return value[:length].hex()
    return value.hex()
