"""The Prefect flows: generation, deployment, fleet, and follow-up of a stall.

Each flow is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "CacheGeneration",
    "CacheGenerationError",
    "GenerationSummary",
    "check_capacity",
    "deploy_cache",
    "follow_up_stall",
    "generate_cache",
    "generate_fleet",
    "plan_capacity",
]

if TYPE_CHECKING:
    from prefect_cachewatch.flows.blocks import CacheGeneration
    from prefect_cachewatch.flows.capacity import check_capacity, plan_capacity
    from prefect_cachewatch.flows.deployment import deploy_cache
    from prefect_cachewatch.flows.fleet.flow import generate_fleet
    from prefect_cachewatch.flows.follow_up import follow_up_stall
    from prefect_cachewatch.flows.generation import CacheGenerationError, GenerationSummary, generate_cache
else:
    _PLACES = {
        "blocks": "CacheGeneration",
        "capacity": "check_capacity plan_capacity",
        "deployment": "deploy_cache",
        "fleet.flow": "generate_fleet",
        "follow_up": "follow_up_stall",
        "generation": "CacheGenerationError GenerationSummary generate_cache",
    }

    def __getattr__(name):
        from prefect_cachewatch.common.lazy import resolve  # noqa: PLC0415 - no flow that is imported by its module needs it

        return resolve(globals(), _PLACES, name)

    def __dir__():
        return list(__all__)
