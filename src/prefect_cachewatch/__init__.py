"""Guarded tensor-cache generation for Prefect.

The engine lives here and in the packages below and never imports Prefect;
`prefect_cachewatch.flows` and `prefect_cachewatch.tasks` put it on Prefect.
Nothing is imported at this level: the guard and scan processes start through it.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
