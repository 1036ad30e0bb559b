"""The generation as Prefect tasks: `generation` (the two sides of an attempt, and a monitor for other work) and its neighbours."""

from prefect_cachewatch.tasks.generation import monitor_cache, monitor_growth, run_generator

__all__ = ["monitor_cache", "monitor_growth", "run_generator"]
