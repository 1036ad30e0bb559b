"""A generator that behaves as ttnn 0.72.0 did: it writes final names in place and keeps whatever exists.

usage: truncating_layers.py CACHE_DIR [--layers 12] [--size 400000] [--pause 0.1] [--once FILE]
       [--kill-at LAYER | --freeze-at LAYER] [--tensors]

Each file is a header with its length and digest, then the contents, written in pieces. At --kill-at the
process kills itself in mid-file, at --freeze-at it hangs there; with --once only if FILE does not exist
yet (it is made then), so that a retry goes through. --tensors writes real .tensorbin files: ttnn dumps
them elsewhere, and their bytes are copied piece by piece over the final name.
"""

import argparse
import hashlib
import os
import signal
import tempfile
import time
from pathlib import Path

MAGIC = b"LAYERS1\n"


def content(layer: int, size: int) -> bytes:
    body = hashlib.shake_128(f"layer {layer}".encode()).digest(size)
    return MAGIC + len(body).to_bytes(8, "little") + hashlib.sha256(body).digest() + body


def tensor(layer: int, dim: int) -> bytes:
    import numpy as np
    import ttnn

    values = np.random.default_rng(layer).standard_normal((1, 1, dim, dim), dtype=np.float32)
    with tempfile.TemporaryDirectory() as scratch:
        ttnn.dump_tensor(f"{scratch}/t.tensorbin", ttnn.Tensor(values, ttnn.bfloat16))
        return Path(f"{scratch}/t.tensorbin").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache_dir", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--size", type=int, default=400_000)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--once", type=Path)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--freeze-at", type=int)
    parser.add_argument("--tensors", type=int, metavar="DIM")
    args = parser.parse_args()
    os.environ.setdefault("TT_LOGGER_LEVEL", "error")
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")
    first = args.once is None or not args.once.exists()
    if args.once is not None:
        args.once.touch()
    root = args.cache_dir / "tensor_cache"
    root.mkdir(parents=True, exist_ok=True)
    kept = 0
    for layer in range(args.layers):
        path = root / f"layers.{layer}.w.tensorbin"
        if path.exists():
            kept += 1  # cut or not
            continue
        data = tensor(layer, args.tensors) if args.tensors else content(layer, args.size)
        with path.open("wb") as file:
            piece = max(1, len(data) // 8)
            for start in range(0, len(data), piece):
                file.write(data[start : start + piece])
                file.flush()
                if first and start >= len(data) // 2:
                    if layer == args.kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if layer == args.freeze_at:
                        os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(args.pause / 8)
    print(f"wrote {args.layers - kept}, kept {kept}", flush=True)


if __name__ == "__main__":
    main()
