"""A cache is whole only as a set: what its indexes, models, numbers and links name is there, with its size."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.builds import active, offer
from tests.contract.harness import WELL, Place

# For generators: files of each format, written by hand.
FORMATS = """
import json, struct

def safetensors(size):
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\\x07" * size

def index(*names, total=None):
    metadata = {} if total is None else {"total_size": total}
    return json.dumps({"metadata": metadata, "weight_map": {f"t{n}": name for n, name in enumerate(names)}}).encode()

def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])

def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data

def onnx(location, offset=0, length=1000):
    entries = [("location", location), ("offset", str(offset)), ("length", str(length))]
    tensor = b"".join(field(13, field(1, key.encode()) + field(2, value.encode())) for key, value in entries)
    return b"\\x08\\x09" + field(7, field(5, tensor + varint(14 << 3) + varint(1)))

cache = Path(sys.argv[1])
cache.mkdir(exist_ok=True)

def write(name, data=b"x" * 1000):
    (cache / name).parent.mkdir(parents=True, exist_ok=True)
    (cache / name).write_bytes(data)

def link(name, target):
    (cache / name).parent.mkdir(parents=True, exist_ok=True)
    (cache / name).symlink_to(target)
"""
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
LOST = {
    "safetensors index": (
        f"write('model.safetensors.index.json', index('{A}', '{B}')); write('{A}', safetensors(1000))",
        B,
    ),
    "pytorch index": (
        "write('pytorch_model.bin.index.json', index('first.bin', 'second.bin')); write('first.bin')",
        "second.bin",
    ),
    "index in a directory below": (
        "write('unet/diffusion_pytorch_model.safetensors.index.fp16.json', index('one.safetensors', 'two.safetensors'))\n"
        "write('unet/one.safetensors', safetensors(1000))",
        "two.safetensors",
    ),
    "total_size": (
        "write('model.safetensors.index.json', index('a.safetensors', total=5_000_000))\n"
        "write('a.safetensors', safetensors(1000))",
        "total_size",
    ),
    "index cut off": (
        "write('model.safetensors.index.json', index('a.safetensors')[:20]); write('a.bin')",
        "is cut off",
    ),
    "onnx": ("write('model.onnx', onnx('weights.data'))", "weights.data"),
    "onnx data too short": (
        "write('model.onnx', onnx('weights.data', 500, 900)); write('weights.data')",
        "weights.data",
    ),
    "gguf": ("write('llama-00001-of-00003.gguf'); write('llama-00003-of-00003.gguf')", "llama-00002-of-00003.gguf"),
    "numbers alone": (f"write('{A}', safetensors(1000))", B),
    "snapshot": (
        f"write('blobs/1', safetensors(1000)); link('snapshots/c/{A}', '../../blobs/1')\n"
        f"write('blobs/2', index('{A}', '{B}')); link('snapshots/c/model.safetensors.index.json', '../../blobs/2')",
        B,
    ),
    "weights_complete": (
        "write('a.tensorbin.x'); write('.weights_complete', json.dumps({'cache_files': ['a.tensorbin.x', 'b.x']}).encode())",
        "b.x",
    ),
    "link to nothing": ("write('a.bin'); link('b.bin', 'blobs/never')", "b.bin"),
    "zero bytes among equals": ("write('a.bin'); write('b.bin'); write('c.bin', b'')", "c.bin"),
    "blob cut off": (
        "write('blobs/1', safetensors(1000)[:-9]); link('snapshots/c/model.safetensors', '../../blobs/1')",
        "blobs/1 is cut off",
    ),
    "empty blob": (
        "write('blobs/1', b'{}'); write('blobs/2', b'')\n"
        "link('snapshots/c/config.json', '../../blobs/1'); link('snapshots/c/pytorch_model.bin', '../../blobs/2')",
        "snapshots/c/pytorch_model.bin",
    ),
    "pointer of Git LFS": (
        "write('pytorch_model.bin', b'version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 9\\n')",
        "pointer of Git LFS",
    ),
    "tokenizer cut off": (
        "write('a.bin'); write('tokenizer.json', b'{\"model\": {\"vocab\": {\"a\": 1,')",
        "tokenizer.json is cut off",
    ),
    "all parts missing, state of the trainer there": (
        f"write('model.safetensors.index.json', index('{A}', '{B}', total=1_000_000)); write('training_args.bin')",
        A,
    ),
    "one empty file alone": ("write('config.json', b'{}'); write('rank0.engine', b'')", "rank0.engine"),
    "empty among numbered": ("write('layer_1'); write('layer_2', b''); write('layer_3')", "layer_2"),
    "empty in the directory of one rank": (
        "write('rank_0_0/model'); write('rank_1_0/model', b''); write('rank_2_0/model')",
        "rank_1_0/model",
    ),
    "in a directory of an unfinished name": (
        "write('a.bin'); write('engine.tmp/rank0.engine')",
        "engine.tmp/rank0.engine",
    ),
    "unfinished": ("write('a.bin'); write('b.bin.aria2')", "b.bin.aria2"),
}
WHOLE = f"""
write('model.safetensors.index.json', index('{A}', '{B}', total=2000))
write('{A}', safetensors(1000)); write('{B}', safetensors(1000))
write('pytorch_model.bin.index.json', index('pytorch_model-00001-of-00001.bin'))
write('onnx/model.onnx', onnx('model.onnx_data', 500, 500)); write('onnx/model.onnx_data')
write('single.safetensors', safetensors(50)); write('x-of-y.bin'); write('log-1-of-9.txt')
write('train-00000-of-00002.parquet'); write('train-00001-of-00002.parquet')
write('hub/blobs/1', safetensors(1000)); link('hub/snapshots/c/{A}', '../../blobs/1')
write('hub/blobs/2', safetensors(1000)); link('hub/snapshots/c/{B}', '../../blobs/2')
write('hub/blobs/3', index('{A}', '{B}')); link('hub/snapshots/c/model.safetensors.index.json', '../../blobs/3')
link('hub/latest', 'snapshots/c')
write('hub/blobs/e69de29b', b''); link('hub/snapshots/c/__init__.py', '../../blobs/e69de29b'); write('hub/.no_exist/c/adapter.json', b'')
write('added_tokens.json', b'{{}}'); write('lines.json', b'{{"a": 1}}\\n{{"a": 2}}\\n'); write('commented.json', b'{{}}\\n// the end\\n')
write('pkg/__init__.py', b''); write('pkg/a.py'); write('pkg/b.py'); write('pkg/py.typed', b''); write('pkg/.gitkeep', b'')
write('kernels/1/.SUCCESS', b''); write('neuron/model.done', b''); write('READY', b''); write('README.md', b'')
"""


# Of each kind of look that `exec` takes at what it does not publish.
TOLD = (
    "safetensors index", "total_size", "gguf", "link to nothing", "empty among numbered", "blob cut off", "unfinished",
)  # fmt: skip


def writes(place: Place, body: str) -> Callable[[Path], object]:
    """What fills a build by running the generator, without the flow around it."""
    program = place.program(FORMATS + body)
    return lambda directory: subprocess.run([*map(str, program), str(directory)], check=True)


@pytest.mark.parametrize("case", TOLD)
def test_exec_tells_which_part_of_a_set_is_missing(place: Place, case: str) -> None:
    body, lost = LOST[case]
    ran = place.exec(*WELL, command=[*place.program(FORMATS + body), place.cache])
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.stderr
    assert lost in ran.report["message"]
    assert ran.last_line == ran.report["message"]
    assert {finding["severity"] for finding in ran.report["findings"]} == {"warn"}


@pytest.mark.parametrize("case", LOST)
def test_a_build_without_a_part_of_its_set_is_refused_by_name(place: Place, root: Path, case: str) -> None:
    body, lost = LOST[case]
    offered = offer(root, writes(place, body))
    assert lost in offered.said
    if case == "total_size":  # loaders do not compare it
        assert (offered.refused, offered.warned, active(root)) == ([], ["wrong_total"], offered.build_id)
    else:
        assert offered.refused and active(root) is None


def test_generate_refuses_a_build_without_a_part_of_its_set(place: Place) -> None:
    body, lost = LOST["snapshot"]
    ran = place.generate(*WELL, "--attempts", "1", command=[*place.program(FORMATS + body), "{cache_dir}"])
    assert (ran.status, ran.report["outcome"]) == (1, "verification_failed"), ran.stderr
    assert lost in ran.report["message"]
    assert place.current() is None


def test_whole_sets_are_published(place: Place, root: Path) -> None:
    offered = offer(root, writes(place, WHOLE))
    # An index of weights that were not fetched is a word in the report, and no more.
    assert (offered.refused, offered.warned, active(root)) == ([], ["unused_index"], offered.build_id)


def test_exec_says_nothing_of_whole_sets_nor_of_a_warm_cache(place: Place) -> None:
    command = [*place.program(FORMATS + f"if not (cache / '{A}').exists():\n    exec({WHOLE!r})"), place.cache]
    for _ in range(2):
        ran = place.exec(*WELL, command=command)
        assert (ran.status, ran.report["findings"]) == (0, []), ran.report["message"]
        assert "whole" not in ran.report["message"]


def test_a_model_in_one_file_does_without_the_index_of_its_parts(place: Place, root: Path) -> None:
    body = f"write('model.safetensors', safetensors(1000)); write('model.safetensors.index.json', index('{A}', '{B}'))"
    offered = offer(root, writes(place, body))
    assert (offered.refused, offered.warned) == ([], ["unused_index"])
