"""`--retry-cause CATEGORY=WHAT,...`: what follows an attempt of one cause, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import Change
from prefect_cachewatch.config.quantities import DURATION
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.remedies import REMEDIES


def read_causes(written: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Read the values of `--retry-cause`.

    Args:
        written: by category, words separated by commas: `again` or `never`, a pause, changes, `unchanged`.

    Returns:
        By category, the fields of `CauseRetry`.

    Raises:
        InputError: a category or a word is not known.

    Example:
        >>> read_causes({"disk_full": "again,10m", "waiting_for_network": "unchanged"})
        {'disk_full': {'again': True, 'pause_s': 600.0}, 'waiting_for_network': {'change': []}}
    """
    found: dict[str, dict[str, Any]] = {}
    for category, words in written.items():
        if category not in REMEDIES:
            raise InputError(f"--retry-cause: {for_terminal(category, 64)} is no cause{nearest(category, REMEDIES)}")
        own: dict[str, Any] = {}
        found[category] = own
        for word in map(str.strip, words.split(",")):
            if word in ("again", "never"):
                own["again"] = word == "again"
            elif word in get_args(Change):
                own.setdefault("change", []).append(word)
            elif word == "unchanged":
                own.setdefault("change", [])
            else:
                own["pause_s"] = _pause(category, word)
    return found


def _pause(category: str, word: str) -> float:
    try:
        return float(DURATION.read(word))
    except ValueError:
        raise InputError(
            f"--retry-cause {category}={for_terminal(word, 40)}: give again, never, a pause such as 10m, unchanged, or "
            f"what is to be changed ({', '.join(get_args(Change))}), separated by commas"
        ) from None
