"""Reads JSON as far as to see that it was cut: what begins with a bracket ends with one."""

from __future__ import annotations

from prefect_cachewatch.store.formats.reading import Broken, Source, Unjudged

_ENDS = {b"{": b"}", b"[": b"]"}
_LOOK_BYTES = 4096


def read_json(source: Source) -> list[str]:
    """Judge a file of JSON, or of lines of JSON, by its first and its last character."""
    count = min(source.size, _LOOK_BYTES)
    first = source.head(count).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    last = source.read(source.size - count, count, "its end").rstrip()
    if (
        first not in _ENDS or last.endswith(b"*/") or b"//" in last.rpartition(b"\n")[2]
    ):  # a comment may stand at the end
        raise Unjudged("does not begin like JSON, or ends with a comment")
    if not last.endswith(tuple(_ENDS.values())):
        raise Broken(f"is cut off: it begins with {first.decode()}, and does not end with {_ENDS[first].decode()}")
    return []
