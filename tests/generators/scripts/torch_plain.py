"""A torch.compile program that says nothing about caches: where they go, the environment tells.

usage: torch_plain.py [PACKAGE.pt2]

With a package it is compiled ahead of time (AOTInductor) instead. Needs torch==2.13.0 and g++.
"""

import sys

import torch


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x))).softmax(-1)


def main() -> None:
    torch.set_num_threads(2)
    module, x = Block(64).eval(), torch.randn(8, 64)
    with torch.no_grad():
        if sys.argv[1:]:
            exported = torch.export.export(module, (x,))
            torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1])
        else:
            torch.compile(module)(x)
    print("compiled", flush=True)


if __name__ == "__main__":
    main()
