"""A torch.compile cache: small modules, each compiled by inductor with g++ as a child process.

usage: torch_inductor.py CACHE_DIR [--modules 3]

Needs torch==2.13.0 and g++.
"""

import argparse
import os
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache_dir")
    parser.add_argument("--modules", type=int, default=3)
    args = parser.parse_args()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = args.cache_dir
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

    import torch

    class Block(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up = torch.nn.Linear(width, 2 * width)
            self.down = torch.nn.Linear(2 * width, width)
            self.norm = torch.nn.LayerNorm(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))).softmax(-1)

    torch.set_num_threads(2)
    for number in range(args.modules):
        began_s = time.monotonic()
        torch._dynamo.reset()
        width = 64 + 16 * number
        module = torch.compile(Block(width))
        with torch.no_grad():
            module(torch.randn(8 + number, width))
        print(f"module {number + 1}/{args.modules} in {time.monotonic() - began_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
