"""What the peers' own test suites check, each as a case of ours: by which name, and why where it does not hold.

A check counts as held if what it asks of timeout, dumb-init or tini is true of `cachewatch exec`. Where it is not, a test
shows what is true instead, or that there is no such option; the reason stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support import CACHEWATCH, Ran, run, run_exec

F = TypeVar("F", bound=Callable[..., Any])

TOTALS = {"coreutils timeout": 36, "dumb-init": 84, "tini": 12}
QUIET = ("--allow-empty", "--quiet", "--no-bundle", "--grace", "0.5s", "--poll", "0.3s")


@dataclass(frozen=True)
class Check:
    """One check of a peer; `reason` only where it does not hold."""

    peer: str
    name: str
    reason: str = ""


def peer(which: str, name: str, reason: str = "") -> pytest.MarkDecorator:
    """Mark a test as a peer's check."""
    return pytest.mark.peer(which, name, reason)


def each(which: str, checks: dict[str, Any], argument: str) -> pytest.MarkDecorator:
    """Parametrize a test with a peer's checks, one value each."""
    return pytest.mark.parametrize(
        argument, [pytest.param(value, marks=peer(which, name), id=name) for name, value in checks.items()]
    )


def lacking(which: str, checks: dict[str, tuple[str, ...]]) -> pytest.MarkDecorator:
    """Parametrize a test with options of a peer that `cachewatch exec` does not have: name to (reason, option)."""
    values = [pytest.param(option, marks=peer(which, name, why), id=name) for name, (why, *option) in checks.items()]
    return pytest.mark.parametrize("option", values)


def refuse(option: list[str], tmp_path: Path) -> None:
    """See that there is no such option, and that nothing is run with it."""
    ran = run(
        [*CACHEWATCH, "exec", "--cache-dir", str(tmp_path / "cache"), *option, "--", "touch", str(tmp_path / "ran")]
    )
    assert ran.status == 125
    assert "No such option" in ran.stderr or "is for a container" in ran.stderr  # -v and -p mean something else
    assert not (tmp_path / "ran").exists()


def guarded(tmp_path: Path, *command: str, options: tuple[str, ...] = (), **more: Any) -> Ran:
    """Run a command under `cachewatch exec` to its end."""
    return run_exec(tmp_path / "cache", *QUIET, *options, command=list(command), **more)
