"""How many jobs a storage carries at once before each is so slow that it looks stalled.

The models need pydantic only; the functions are imported when they are first used, since
numpy and scipy come with the extra `planner`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.capacity.results import ClassPrediction, HistoryCheck, LimitPlan
from prefect_cachewatch.capacity.workload import (
    CodecProfile,
    CurvePoint,
    LinkProfile,
    Policy,
    ServiceCurve,
    StorageProfile,
    UslFit,
    WorkloadClass,
)
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect_cachewatch.capacity.convolution import ClosedSolution, solve_closed
    from prefect_cachewatch.capacity.curve import fit_usl
    from prefect_cachewatch.capacity.planning import plan
    from prefect_cachewatch.capacity.queueing import Bounds, bounds, erlang_b, erlang_c
    from prefect_cachewatch.capacity.simulation import SimulationResult, simulate

__all__ = [
    "Bounds",
    "ClassPrediction",
    "ClosedSolution",
    "CodecProfile",
    "CurvePoint",
    "HistoryCheck",
    "LimitPlan",
    "LinkProfile",
    "Policy",
    "ServiceCurve",
    "SimulationResult",
    "StorageProfile",
    "UslFit",
    "WorkloadClass",
    "bounds",
    "erlang_b",
    "erlang_c",
    "fit_usl",
    "plan",
    "simulate",
    "solve_closed",
]

_NUMERIC = {
    "Bounds": "queueing",
    "ClosedSolution": "convolution",
    "SimulationResult": "simulation",
    "bounds": "queueing",
    "erlang_b": "queueing",
    "erlang_c": "queueing",
    "fit_usl": "curve",
    "plan": "planning",
    "simulate": "simulation",
    "solve_closed": "convolution",
}


def __getattr__(name: str) -> Any:
    if name not in _NUMERIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_NUMERIC[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"numpy", "scipy"}:
            raise
        raise InputError(
            f"the planner needs {error.name.partition('.')[0]}, which is not installed: "
            "pip install 'prefect-cachewatch[planner]'"
        ) from None
    value = getattr(module, name)
    globals()[name] = value
    return value
