"""Strikes a process of the store at one of its calls into the kernel: what it does there, it never does."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

CHANGES = [
    "fsync", "ftruncate", "link", "mkdir", "open", "pwrite", "rename", "rmdir", "symlink", "unlink", "utime", "write",
]  # fmt: skip
# What the generator itself does is not hit: that is its own matter.
GENERATING: list[None] = []


def strike(step: int, hit: Callable[[str], object]) -> None:
    """Call `hit` with its name right before the step-th call that changes something."""
    seen = 0

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            if not GENERATING and (name != "open" or args[1] & os.O_CREAT):
                seen += 1
                if seen == step:
                    hit(name)
            return real(*args, **kwargs)

        return call

    for name in CHANGES:
        setattr(os, name, wrap(name, getattr(os, name)))
