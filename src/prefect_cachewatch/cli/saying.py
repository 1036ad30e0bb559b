"""What a command says beside its output: sentences on standard error."""

from __future__ import annotations

import sys


def say(sentence: str, *, flush: bool = False) -> None:
    """Print a sentence on standard error.

    Args:
        sentence: harmless for a terminal.
        flush: whether to wait until it is written, as long as a reader who is slow is waited for.
    """
    print(f"cachewatch: {sentence}", file=sys.stderr, flush=flush)
