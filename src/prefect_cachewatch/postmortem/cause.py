"""The outcome of a diagnosis as a value; a module of its own, since every report holds one."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Diagnosis"]


@dataclass(frozen=True)
class Diagnosis:
    """The cause of a stall, as far as it can be told.

    `category` is a contract: automations match on it. `confidence` is `high` (the evidence
    leaves no other reading), `medium` (the best reading of several) or `low` (a guess).
    """

    category: str
    summary: str
    evidence: tuple[str, ...] = ()
    resolution: str = ""
    confidence: str = "high"
