"""How many jobs a storage carries at once before each is so slow that it looks stalled.

The models need pydantic only; the functions are imported when they are first used, since
numpy and scipy come with the extra `planner`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.profile import (
    CodecProfile,
    CurvePoint,
    LinkProfile,
    ServiceCurve,
    StorageProfile,
    UslFit,
)
from prefect_cachewatch.capacity.model.results import ClassPrediction, HistoryCheck, LimitPlan

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

if TYPE_CHECKING:
    from prefect_cachewatch.capacity.model.convolution import ClosedSolution, solve_closed
    from prefect_cachewatch.capacity.model.planning import plan
    from prefect_cachewatch.capacity.model.queueing import Bounds, bounds, erlang_b, erlang_c
    from prefect_cachewatch.capacity.model.simulation import SimulationResult, simulate
    from prefect_cachewatch.capacity.model.usl import fit_usl
else:
    _PLACES = {
        "model.convolution": "ClosedSolution solve_closed",
        "model.planning": "plan",
        "model.queueing": "Bounds bounds erlang_b erlang_c",
        "model.simulation": "SimulationResult simulate",
        "model.usl": "fit_usl",
    }

    def __getattr__(name):
        from prefect_cachewatch.common.lazy import resolve  # noqa: PLC0415 - the models need none of it
        from prefect_cachewatch.errors import InputError  # noqa: PLC0415

        try:
            return resolve(globals(), _PLACES, name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in {"numpy", "scipy"}:
                raise
            raise InputError(
                f"the planner needs {missing}, which is not installed: pip install 'prefect-cachewatch[planner]'"
            ) from None

    def __dir__():
        return list(__all__)
