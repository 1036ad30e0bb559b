"""Shards of a checkpoint as safetensors: each is made in full size at once, filled, then renamed; an index comes last.

usage: safetensors_shards.py CACHE_DIR [--shards 10] [--pause 0.3] [--freeze-at SHARD]

Needs safetensors==0.8.0 and numpy. --freeze-at SHARD sends SIGSTOP to this process before that shard.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache_dir", type=Path)
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between shards")
    parser.add_argument("--freeze-at", type=int, default=None)
    args = parser.parse_args()

    import numpy as np
    from safetensors.numpy import save_file

    args.cache_dir.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    index = {}
    for shard in range(args.shards):
        if shard == args.freeze_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        name = f"model-{shard + 1:05d}-of-{args.shards:05d}.safetensors"
        tensors = {
            f"layers.{shard}.w{k}": rng.standard_normal((2048, 4096), dtype=np.float32).astype(np.float16)
            for k in range(4)
        }
        save_file(tensors, args.cache_dir / name)
        index.update(dict.fromkeys(tensors, name))
        print(name, flush=True)
        time.sleep(args.pause)
    (args.cache_dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


if __name__ == "__main__":
    main()
