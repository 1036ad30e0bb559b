"""Compiled models in OpenVINO's cache: small perceptrons, one blob each.

usage: openvino_blobs.py CACHE_DIR [--models 3]

Needs openvino and numpy.
"""

import argparse

import numpy as np
import openvino as ov
from openvino import opset13 as ops


def perceptron(width: int) -> ov.Model:
    inputs = ops.parameter([1, width], np.float32)
    node = inputs
    for layer in range(4):
        weights = np.full((width, width), 0.01 * (layer + 1), np.float32)
        node = ops.relu(ops.matmul(node, ops.constant(weights), False, False))
    return ov.Model([node], [inputs], f"perceptron-{width}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache_dir")
    parser.add_argument("--models", type=int, default=3)
    args = parser.parse_args()
    core = ov.Core()
    core.set_property({"CACHE_DIR": args.cache_dir})
    for number in range(args.models):
        compiled = core.compile_model(perceptron(256 + 64 * number), "CPU")
        cached = compiled.get_property("LOADED_FROM_CACHE")
        print(f"model {number + 1}/{args.models}, from the cache: {cached}", flush=True)


if __name__ == "__main__":
    main()
