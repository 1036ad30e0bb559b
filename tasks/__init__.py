"""The engine as Prefect tasks: `generation` (the guarded attempt) and its neighbours."""

from prefect_cachewatch.tasks.generation import Attempt, monitor_cache, monitor_growth, run_generator

__all__ = ["Attempt", "monitor_cache", "monitor_growth", "run_generator"]
