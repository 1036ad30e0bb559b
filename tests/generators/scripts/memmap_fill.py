"""One .npy in full size from the start (sparse), filled in place layer by layer: its size never grows again.

usage: memmap_fill.py CACHE_DIR [--layers 12] [--pause 0.3] [--freeze-at LAYER]

Needs numpy. --freeze-at LAYER sends SIGSTOP to this process before that layer.
"""

import argparse
import os
import signal
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache_dir", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between layers")
    parser.add_argument("--freeze-at", type=int, default=None)
    args = parser.parse_args()

    import numpy as np

    args.cache_dir.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    array = np.lib.format.open_memmap(
        args.cache_dir / "weights.npy", mode="w+", dtype=np.float16, shape=(args.layers, 2048, 4096)
    )
    for layer in range(args.layers):
        if layer == args.freeze_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        array[layer] = rng.standard_normal((2048, 4096), dtype=np.float32).astype(np.float16)
        print(f"layer {layer + 1}/{args.layers}", flush=True)
        time.sleep(args.pause)
    array.flush()


if __name__ == "__main__":
    main()
