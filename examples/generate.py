"""A small cache generator to try cachewatch on: it writes one file a layer, and can freeze on the way.

    python3 examples/generate.py DIR [--layers N] [--freeze-at LAYER]

Standard library only. Each file is written under a temporary name first and renamed when it is whole.
`--freeze-at` stops the process by SIGSTOP before that layer, as a generator that hangs: it lives, and writes no more.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

LAYER_BYTES = 4_000_000
PAUSE_S = 0.5


def generate(cache_dir: Path, layers: int, freeze_at: int | None) -> None:
    cache_dir.mkdir(parents=True, exist_ok=True)
    for layer in range(layers):
        if layer == freeze_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        print(f"layer {layer}", flush=True)
        target = cache_dir / f"layers.{layer}.tensorbin"
        temporary = target.with_suffix(".tmp")
        temporary.write_bytes(os.urandom(LAYER_BYTES))
        temporary.replace(target)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache_dir", type=Path)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--freeze-at", type=int)
    options = parser.parse_args()
    generate(options.cache_dir, options.layers, options.freeze_at)
