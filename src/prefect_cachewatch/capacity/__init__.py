"""How many jobs a storage carries at once before each is so slow that it looks stalled.

The models need pydantic only; the functions are imported when they are first used, since
numpy and scipy come with the extra `planner`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.capacity.model.inputs import (
    CodecProfile,
    CurvePoint,
    LinkProfile,
    Policy,
    ServiceCurve,
    StorageProfile,
    UslFit,
    WorkloadClass,
)
from prefect_cachewatch.capacity.model.results import ClassPrediction, HistoryCheck, LimitPlan
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect_cachewatch.capacity.model.convolution import ClosedSolution, solve_closed
    from prefect_cachewatch.capacity.model.planning import plan
    from prefect_cachewatch.capacity.model.queueing import Bounds, bounds, erlang_b, erlang_c
    from prefect_cachewatch.capacity.model.simulation import SimulationResult, simulate
    from prefect_cachewatch.capacity.model.usl import fit_usl

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
    "Bounds": "model.queueing",
    "ClosedSolution": "model.convolution",
    "SimulationResult": "model.simulation",
    "bounds": "model.queueing",
    "erlang_b": "model.queueing",
    "erlang_c": "model.queueing",
    "fit_usl": "model.usl",
    "plan": "model.planning",
    "simulate": "model.simulation",
    "solve_closed": "model.convolution",
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
