"""Reads ELF, as compiled kernels and `.so` are: the tables of segments and sections, and where they lead."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from prefect_cachewatch.publish.formats.reading import Broken, Layout, Source, Unjudged

_LOAD = 1
_NO_BITS = 8
_NULL = 0
_EXECUTABLE = 4
_MAX_TABLE_BYTES = 8 << 20


@dataclass(frozen=True)
class _Form:
    """The forms of `struct` for 32 or 64 bits: the header's tail, a segment's and a section's first fields."""

    header: str
    header_bytes: int
    segment: str
    section: str


_FORMS = {1: _Form("IIIIHHHHHH", 52, "IIIII", "IIIIII"), 2: _Form("QQQIHHHHHH", 64, "IIQQQQ", "IIQQQQ")}
_ORDERS = {1: "<", 2: ">"}


def read_elf(source: Source) -> Layout:
    """Compare segments and sections with the file's size.

    Bytes behind them are allowed: some tools append data to a library.

    Raises:
        Broken: a table or what it leads to is not in the file.
        Unjudged: an unknown class or byte order, or tables beyond the budget.
    """
    ident = source.read(0, 16, "its header")
    form, order = _FORMS.get(ident[4]), _ORDERS.get(ident[5])
    if form is None or order is None:
        raise Unjudged("is an ELF file of an unknown class or byte order")
    header = source.read(0, form.header_bytes, "its header")
    fields = struct.unpack_from(order + form.header, header, 24)
    _, segments_at, sections_at, _, _, segment_bytes, segments, section_bytes, sections, _ = fields
    if segments and segment_bytes < struct.calcsize(order + form.segment):
        raise Broken("has a header with an impossible size of segments")
    if sections_at and section_bytes < struct.calcsize(order + form.section):
        raise Broken("has a header with an impossible size of sections")
    if sections_at and not sections:
        # More than fit into the header: the first section has their number.
        first = source.read(sections_at, section_bytes, "its table of sections")
        sections = struct.unpack_from(order + form.section, first)[5]
    if not segments and not sections_at:
        raise Broken("has neither segments nor sections")
    debug = _check_sections(source, order + form.section, sections_at, section_bytes, sections)
    if not debug:
        _check_segments(source, order, form, segments_at, segment_bytes, segments)
    return Layout()


def _check_sections(source: Source, form: str, at: int, entry_bytes: int, count: int) -> bool:
    table = _read_table(source, at, entry_bytes, count, "its table of sections") if at else b""
    debug = False
    for start in range(0, len(table), entry_bytes or 1):
        _, kind, flags, _, offset, size = struct.unpack_from(form, table, start)
        if kind == _NO_BITS:
            # Code without bytes: a file with debugging information only, whose segments are those of the program.
            debug = debug or bool(flags & _EXECUTABLE)
        elif kind != _NULL and size:
            source.require_end(offset + size, "a section ends")
    return debug


def _check_segments(source: Source, order: str, form: _Form, at: int, entry_bytes: int, count: int) -> None:
    table = _read_table(source, at, entry_bytes, count, "its table of segments")
    for start in range(0, len(table), entry_bytes or 1):
        values = struct.unpack_from(order + form.segment, table, start)
        kind, offset, size = values[0], values[1 if len(values) == 5 else 2], values[-1]
        if kind == _LOAD and size:
            source.require_end(offset + size, "a segment ends")


def _read_table(source: Source, at: int, entry_bytes: int, count: int, what: str) -> bytes:
    size = entry_bytes * count
    if at + size <= source.size and size > _MAX_TABLE_BYTES:
        raise Unjudged("has more sections than are read here")
    return source.read(at, size, what)
