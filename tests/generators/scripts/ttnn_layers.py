"""A real tt-metal tensor cache, layer by layer: one .tensorbin per weight, as a Llama-like model on tt-metal has it.

usage: ttnn_layers.py CACHE_DIR [--layers 12] [--dim 2048] [--pause 0.0] [--freeze-at LAYER]

Needs ttnn==0.81.1 and numpy on Python 3.12 or 3.10; no torch, no device. A weight that is there is not
written again. --freeze-at LAYER sends SIGSTOP to this process before that layer: a generator that hangs.
"""

import argparse
import os
import signal
import time
from pathlib import Path

os.environ.setdefault("TT_LOGGER_LEVEL", "error")
os.environ.setdefault("LOGURU_LEVEL", "WARNING")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache_dir", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between layers")
    parser.add_argument("--freeze-at", type=int, default=None)
    args = parser.parse_args()

    import numpy as np
    import ttnn

    d, f = args.dim, args.dim * 3
    weights = {
        "attention.wqkv": (d, d * 3 // 2),
        "attention.wo": (d, d),
        "feed_forward.w1": (d, f),
        "feed_forward.w2": (f, d),
        "feed_forward.w3": (d, f),
        "attention_norm": (32, d),
    }
    root = args.cache_dir / "tensor_cache_bf16_N150"
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for layer in range(args.layers):
        if layer == args.freeze_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        began_s = time.monotonic()
        for name, shape in weights.items():
            path = root / f"layers.{layer}.{name}_dtype_BFLOAT16_layout_ROW_MAJOR.tensorbin"
            if path.exists():
                continue
            tensor = ttnn.Tensor(rng.standard_normal((1, 1, *shape), dtype=np.float32), ttnn.bfloat16)
            ttnn.dump_tensor(str(path), tensor)
        print(f"layer {layer + 1}/{args.layers} in {time.monotonic() - began_s:.2f} s", flush=True)
        time.sleep(args.pause)


if __name__ == "__main__":
    main()
