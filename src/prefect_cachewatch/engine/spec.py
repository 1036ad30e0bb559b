"""The engine's spec: the checked inputs of a run as plain JSON, and back as objects with the same attributes.

The front has checked them with pydantic, which the engine never loads. Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Plain(SimpleNamespace):
    """A checked model of the front, read back: its fields and properties as attributes."""

    def model_copy(self, *, update: dict[str, Any]) -> Plain:
        """Return a copy with other values."""
        return Plain(**(vars(self) | update))


def make_spec(**given: Any) -> dict[str, Any]:
    """Make the spec of a run: its job and its policies stall, stop, outputs, and what `ASKED` names.

    Args:
        given: by name; the rest is as in `ASKED`.

    Returns:
        What JSON can hold.

    Raises:
        TypeError: a name that no engine knows.

    Example:
        >>> sorted(from_plain(make_spec(job=1, stall=2, stop=3, outputs=4, run_id="5")).__dict__)[:3]
        ['attach', 'checks_only', 'front']
    """
    if unknown := given.keys() - ASKED.keys() - {"job", "stall", "stop", "outputs", "signals"}:
        raise TypeError(f"no engine knows {', '.join(sorted(unknown))}")
    signals = given.pop("signals", {})
    spec: dict[str, Any] = to_plain({**ASKED, **given})["dict"]
    return {"model": spec | {"signals": {"model": signals}}}


#: What a front may ask of an engine besides job and policies, and what holds if it does not.
ASKED: dict[str, Any] = {
    "front": "command",  # what it is called where it was killed
    "attach": None,  # the process to watch, which runs already; None where one is started
    "refusal": None,  # why the front refuses the run: the engine counts that, and no more
    "checks_only": False,  # whether nothing is run: bad input is refused
    "retry": None,  # its policy; None for one attempt
    "publish": None,  # its policy; None without a store
    "secrets": {},  # further variables of the generator, whose values are never told
    "metrics": None,  # where they go
    "needs_metrics": False,  # whether a port that is taken refuses the run
    "run_id": None,  # of the directory that keeps reports and logs; None for no directory
    "storage": None,  # name of the storage whose slots the front takes
    "origin": {},  # worker and link of the flow run, for reports
    "streams": None,  # descriptors that the generator's output is copied to
    "has_stdin": False,  # whether the generator reads the front's standard input
    "output_every_s": None,  # how often the output's lines are told; None for never, not even the last ones
    "streams_output": False,  # whether they are told while the generator runs, too
    "status": None,  # file that gets the last measurement
    "verbose": False,  # whether each step of the guard is told
}


def to_plain(value: Any) -> Any:
    """Turn models, paths and containers of them into what JSON can hold.

    Example:
        >>> from prefect_cachewatch.config import Outputs
        >>> to_plain(Outputs(log="/a"))["model"]["log"]
        {'path': '/a'}
    """
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, dict):
        return {"dict": {str(name): to_plain(one) for name, one in value.items()}}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    if (fields := getattr(type(value), "model_fields", None)) is not None:
        properties = [name for name, one in vars(type(value)).items() if isinstance(one, property)]
        return {"model": {name: to_plain(getattr(value, name)) for name in (*fields, *properties)}}
    return value


def from_plain(data: Any) -> Any:
    """Read back what `to_plain` has made; a model is `Plain`.

    Example:
        >>> from_plain({"model": {"log": {"path": "/a"}, "bundle": True}}).log
        PosixPath('/a')
    """
    if isinstance(data, list):
        return [from_plain(one) for one in data]
    if isinstance(data, dict):
        ((kind, inner),) = data.items()
        if kind == "path":
            return Path(inner)
        read = {name: from_plain(one) for name, one in inner.items()}
        return Plain(**read) if kind == "model" else read
    return data
