"""Whether the content of a file can be what its format demands: real files, each cut and damaged, and large headers."""

from __future__ import annotations

import io
import json
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.written import write_gguf, write_safetensors, write_tensorbin, write_torch, write_zip64

from prefect_cachewatch.store.formats import inspect

REAL = Path(__file__).parents[2] / "data" / "formats"


def see(data, name):
    return inspect(io.BytesIO(data), name)


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def compressed():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"text " * 50)
    return file.getvalue()


WHOLE = {
    **{path.name: path.read_bytes() for path in REAL.iterdir() if path.suffix != ".md"},
    "a.npy": npy(np.arange(12, dtype="f4").reshape(3, 4)),
    "scalar.npy": npy(np.float64(1)),
    "text.npy": npy(np.array(["ab", "c"])),
    "date.npy": npy(np.array(["2026-01-01"], dtype="M8[ns]")),
    "second.npy": npy(np.arange(3, dtype="i1"), version=(2, 0)),
    "two.npz": npz(a=np.arange(4), b=np.ones(2)),
    "packed.zip": compressed(),
    "empty.zip": b"PK\x05\x06" + bytes(18),
    "model.pt": write_torch([b"x" * 40, b"y" * 24]),
    "large.pt": write_zip64(b"model/data/0", b"x" * 30),
    "a.gguf": write_gguf([("t", (32, 2), 8, b"q" * 68), ("u", (3,), 0, b"f" * 12)], ["one", "two"]),
    "words.gguf": write_gguf([], ["one"]),
    "a.safetensors": write_safetensors({"t": ("BF16", [2, 3], b"x" * 12), "z": ("F32", [0], b"")}),
    "only.safetensors": write_safetensors({}, __metadata__={"format": "pt"}),
    "a.tensorbin": write_tensorbin([1, 1, 4, 8], 0, [(0, 64)], b"x" * 64),
    "tiles.tensorbin": write_tensorbin([4, 8], 3, [(0, 1088)], b"x" * 1088),
    "replicated.tensorbin": write_tensorbin([2, 2], 1, [(0, 16)] * 4, b"x" * 16, mesh=(2, 2)),
    "sharded.tensorbin": write_tensorbin([2, 2], 1, [(0, 16), (64, 16)], b"x" * 80, mesh=(1, 2)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_file_is_whole(name):
    found = see(WHOLE[name], name)
    assert (found.verdict, found.message) == ("whole", "has the length that its header says")


@pytest.mark.parametrize("name", WHOLE)
def test_no_prefix_of_a_file_is_whole(name):
    data = WHOLE[name]
    padding = {"a.gguf": 64, "words.gguf": 64, "gguf-0.19.0.gguf": 32}.get(name, 0)  # which a loader does without
    verdicts = {see(data[:end], name).verdict for end in range(len(data) - padding)}
    assert verdicts == {"broken"}


@pytest.mark.parametrize("name", WHOLE)
def test_any_changed_bit_gives_a_verdict(name):
    data = WHOLE[name]
    for at in range(min(len(data), 600)):
        see(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :], name)


def refused(data, name):
    found = see(data, name)
    assert found.verdict == "broken", found
    return found.message


def test_what_a_damaged_file_is_told():
    tensor = WHOLE["a.safetensors"]
    size = len(tensor)
    assert refused(tensor[:-1], "a.safetensors") == (
        f"is cut off: its tensors should end at byte {size}, and the file has {size - 1}"
    )
    assert refused(tensor + b"\0", "a.safetensors").startswith("has 1 bytes behind its tensors")
    assert refused(b"", "a.pt") == "is empty, and is named like zip"
    assert refused(bytes(5000), "a.pt") == "does not begin like zip, as its name says: it is cut off or damaged"
    assert see(b"x" * 5000, "a.tensorbin").verdict == "unknown"
    assert refused(bytes(5000), "a.tensorbin").startswith("is cut off or no tensorbin: its header should have 0 bytes")
    assert refused(struct.pack("<Q", 24) + b"\xff" * 24, "a.tensorbin") == "has a header that makes no sense"
    assert refused(struct.pack("<Q", 2) + b"[]", "a.safetensors") == "has a header that makes no sense"
    assert refused(b"not numpy", "a.npy") == "does not begin like npy, as its name says: it is cut off or damaged"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    assert "git lfs pull" in refused(pointer, "model.safetensors") == refused(pointer, "model.pt")


def test_a_type_that_is_not_known_here_is_not_refused():
    assert see(write_safetensors({"a": ("F8_NEW", [3], b"xxxxx")}), "x.safetensors").verdict == "whole"
    assert see(write_gguf([("t", (3,), 99, b"x" * 64)]), "x.gguf").verdict == "whole"
    assert see(write_tensorbin([2, 2], 77, [(0, 1)], b"x"), "x.tensorbin").verdict == "whole"


def test_bytes_that_belong_to_nothing_are_suspicious_where_a_loader_passes_over_them():
    for name in ("a.tensorbin", "a.npy"):
        found = see(WHOLE[name] + bytes(64), name)
        assert found.verdict == "suspicious" and "bytes behind its" in found.message, found


def test_a_name_is_not_trusted():
    assert see(WHOLE["a.npy"], "weights.bin").format == "npy"
    found = see(WHOLE["model.pt"], "model.safetensors")
    assert (found.verdict, found.message) == ("suspicious", "is named like safetensors, and is zip")
    assert see(b"\x80\x02}q\x00.", "old.pt").verdict == "unknown"
    assert see(b"\xff" * 9 + bytes(99), "old.tensorbin").verdict == "unknown"
    for name in ("notes.txt", "", "x.bin", "libc.so", "x.blob"):
        assert see(b"hello", name).verdict == see(b"", name).verdict == "unknown"


def test_what_the_readers_do_not_understand_is_unknown():
    for data, name in [
        (npy(np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])), "records.npy"),
        (npy(np.array([{}], dtype=object)), "objects.npy"),
        (WHOLE["a.npy"].replace(b"'", b'"'), "other-writer.npy"),
        (WHOLE["a.npy"] * 2, "several.npy"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian.gguf"),
    ]:
        assert see(data, name).verdict == "unknown", name


def header(text):
    return struct.pack("<Q", len(text)) + text


MANY = 1 << 40
HOSTILE = {
    "deep.safetensors": header(b"{" + b'"a":{' * 200_000),
    "lists.safetensors": header(b'{"a":' + b"[" * 200_000),
    "values.safetensors": header(b'{"a":[' + b"[]," * 2_000_000 + b"]}"),
    "digits.safetensors": header(b'{"a":{"dtype":"U8","shape":[' + b"9" * 1_000_000 + b'],"data_offsets":[0,0]}}'),
    "name.safetensors": header(json.dumps({"\x1b" * 300_000: {}}).encode()),
    "values.gguf": b"GGUF" + struct.pack("<IQQ", 3, 1, MANY),
    "tensors.gguf": b"GGUF" + struct.pack("<IQQ", 3, MANY, 0) + bytes(4096),
    "array.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, MANY),
    "words.gguf": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0) + struct.pack("<IIQ", 9, 8, 99_999) + bytes(800_000),
    "dimensions.gguf": b"GGUF" + struct.pack("<IQQQI", 3, 1, 0, 0, 1 << 31) + bytes(4096),
    "nested.gguf": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0) + struct.pack("<IIQ", 9, 9, 1) * 9 + bytes(64),
    "shape.npy": npy(np.zeros(1)).replace(b"(1,), }" + b" " * 40, b"(" + b"9" * 45 + b"}"),
    "directory.pt": b"PK\x03\x04" + bytes(20 << 20) + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0, 0, 20 << 20, 4, 0),
    "large.pt": b"PK\x03\x04" + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, MANY % 7, 4, 0),
    "shards.tensorbin": struct.pack("<Q", 4 << 20) + struct.pack("<I", 4) + b"\x01\x00\x00\x00" * ((1 << 20) - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_costs_little(name):
    tracemalloc.start()
    before = time.process_time()
    found = see(HOSTILE[name], name)
    spent = time.process_time() - before
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.verdict in ("broken", "unknown") or name == "words.gguf", found
    assert len(found.message) < 300 and "\x1b" not in found.message
    assert peak < 64 << 20 and spent < 20


STARTS = [b"", b"GGUF\x03\0\0\0", b"\x93NUMPY\x01\0", b"PK\x03\x04", b"\x10" + bytes(7)]  # fmt: skip
NAMES = ["x", *(f"x{end}" for end in (".safetensors", ".tensorbin", ".gguf", ".npy", ".npz", ".pt"))]


@given(st.sampled_from(STARTS), st.binary(max_size=200), st.sampled_from(NAMES))
@settings(max_examples=300, deadline=None, database=None, derandomize=True)
def test_random_bytes_never_raise_and_are_not_whole(start, data, name):
    # GGUF without keys and tensors is whole, and begins as one of these does.
    assert see(start + data, name).verdict != "whole" or start


@given(st.sampled_from(sorted(WHOLE)), st.data())
@settings(max_examples=200, deadline=None, database=None, derandomize=True)
def test_a_whole_file_with_random_damage_never_raises(name, draw):
    data = bytearray(WHOLE[name])
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data) - 1))
        piece = draw.draw(st.binary(min_size=1, max_size=9))
        data[at : at + len(piece)] = piece
    see(bytes(data), name)
