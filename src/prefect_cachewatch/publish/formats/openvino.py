"""Reads blobs of OpenVINO's model cache: a header in XML, and for the CPU plugin the places of constants and model.

Other plugins write what only they can read: for their blobs nothing is said beyond the header.
"""

from __future__ import annotations

import struct

from prefect_cachewatch.publish.formats.reading import Broken, Layout, Source, Unjudged

_MAX_HEADER_BYTES = 64 << 10
# How the CPU plugin of newer versions begins; then a version, and the length of a text.
_CPU = b"RR_UPCVO"
_PLACES = "<6Q"
_PLACES_BYTES = 48


def read_openvino(source: Source) -> Layout:
    """Compare the places of constants and model with the file's size.

    Raises:
        Broken: they contradict each other, or there is nothing behind the header.
        Unjudged: the blob of another plugin.
    """
    head = source.head(_MAX_HEADER_BYTES)
    at = head.find(b"/>\n") + 3
    if at < 3:
        if source.size > len(head):
            raise Unjudged("has a header that is too large to be read here")
        raise Broken(f"is cut off: it ends at byte {source.size}, within its header")
    if at == source.size:
        raise Broken("is cut off: it ends behind its header")
    if head.startswith(_CPU, at):
        (length,) = struct.unpack("<Q", source.read(at + 12, 8, "its header"))
        at += 20 + length
        source.read(at, _PLACES_BYTES, "its header")
    elif source.size - at < _PLACES_BYTES:
        raise Unjudged("is the blob of a plugin whose form is not read here")
    return _read_places(source, at)


def _read_places(source: Source, at: int) -> Layout:
    places = struct.unpack(_PLACES, source.read(at, _PLACES_BYTES, "its header"))
    custom_at, custom_bytes, constants_at, constants_bytes, model_at, model_bytes = places
    # Older versions count from the beginning of the file.
    base = {_PLACES_BYTES: at, at + _PLACES_BYTES: 0}.get(custom_at)
    if base is None:
        raise Unjudged("is the blob of a plugin whose form is not read here")
    if custom_at + custom_bytes != constants_at or constants_at + constants_bytes != model_at:
        raise Broken("has a header whose places contradict each other")
    end = base + model_at + model_bytes
    if not model_bytes or end > source.size:
        raise Broken(f"is cut off: its model should end at byte {end}, and the file has {source.size}")
    doubts = (f"has {source.size - end} bytes behind its model, which ends at byte {end}",) if end < source.size else ()
    payload = ((base + constants_at, base + model_at),) if constants_bytes else ()
    return Layout(payload, doubts, written=((base + custom_at, end),))
