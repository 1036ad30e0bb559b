"""Signals as people name them."""

from __future__ import annotations

import signal

__all__ = ["signal_name"]


def signal_name(number: int) -> str:
    """Name a signal.

    Example:
        >>> signal_name(9)
        'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
