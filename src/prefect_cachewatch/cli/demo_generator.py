"""A small but real cache generator for the demo: a float32 checkpoint converted to bfloat16, layer by layer.

Standard library only. The checkpoint is in the safetensors layout. The generator reads it and
writes one .tensorbin per weight, to a temporary name first, as tt-metal does. `--freeze-at` stops the
process with SIGSTOP before that layer: a generator that hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import struct
import time
from pathlib import Path

_WEIGHTS = {"attention.wqkv": 6, "attention.wo": 4, "feed_forward.w1": 8, "feed_forward.w2": 8}


def make_checkpoint(path: Path, layers: int, unit_bytes: int = 131072) -> int:
    """Write a checkpoint of random float32 weights: header length, JSON header, data.

    Args:
        path: the file.
        layers: layers of four weights each.
        unit_bytes: the sizes of the weights are multiples of this.

    Returns:
        The file's size in bytes.
    """
    header: dict[str, object] = {}
    offset = 0
    for layer in range(layers):
        for name, units in _WEIGHTS.items():
            size = units * unit_bytes
            header[f"layers.{layer}.{name}"] = {
                "dtype": "F32",
                "shape": [units, unit_bytes // 4],
                "data_offsets": [offset, offset + size],
            }
            offset += size
    text = json.dumps(header).encode()
    noise = random.Random(0)  # noqa: S311 - weights, not a secret
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(offset // unit_bytes):
            file.write(noise.randbytes(unit_bytes))
    return path.stat().st_size


def convert(checkpoint: Path, cache_dir: Path, pause_s: float, freeze_at: int | None) -> None:
    """Convert a checkpoint to bfloat16, skipping weights that exist already.

    Args:
        checkpoint: from `make_checkpoint`.
        cache_dir: where the .tensorbin files go.
        pause_s: seconds between two layers.
        freeze_at: layer before which the process stops itself, None for never.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    with checkpoint.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data_start = 8 + length
        layer_seen = -1
        for name, tensor in header.items():
            layer = int(name.split(".")[1])
            if layer != layer_seen:
                layer_seen = layer
                print(f"layer {layer}", flush=True)
                if layer == freeze_at:
                    os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(pause_s)
            target = cache_dir / f"{name}_dtype_BFLOAT16_layout_ROW_MAJOR.tensorbin"
            if target.exists():
                continue
            begin, end = tensor["data_offsets"]
            file.seek(data_start + begin)
            raw = file.read(end - begin)
            half = bytearray(len(raw) // 2)  # bfloat16 is the upper half of a little-endian float32
            half[0::2], half[1::2] = raw[2::4], raw[3::4]
            temporary = target.with_name(f"{target.name}.tmp.{os.getpid()}")
            temporary.write_bytes(half)
            temporary.replace(target)


def main() -> None:
    """Run `CHECKPOINT CACHE_DIR`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("cache_dir", type=Path)
    parser.add_argument("--pause", type=float, default=0.4)
    parser.add_argument("--freeze-at", type=int)
    options = parser.parse_args()
    convert(options.checkpoint, options.cache_dir, options.pause, options.freeze_at)


if __name__ == "__main__":
    main()
